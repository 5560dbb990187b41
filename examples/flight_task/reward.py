# reward.py
from reward_kit import reward_function, RewardOutput

@reward_function
def evaluate(messages, *, db, end_goal_sql, **kwargs):
    ok = db.execute(end_goal_sql).scalar_one()
    return RewardOutput(
        score=1.0 if ok else 0.0,
        reason="Task completed successfully" if ok else "Task incomplete",
        metrics={"task_complete": {"score": 1.0 if ok else 0.0, "reason": "Goal achieved" if ok else "Goal not met"}}
    )
