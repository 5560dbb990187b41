from reward_kit import RewardOutput, reward_function


@reward_function
def evaluate(messages, *, db, end_goal_sql, **kwargs):
    solved = db.execute(end_goal_sql).scalar()
    return RewardOutput(score=1.0 if solved else 0.0, reason="seated" if solved else "no seat")
