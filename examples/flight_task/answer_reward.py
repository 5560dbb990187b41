"""The reward of rows that ask for an answer: nothing was changed, and the user was told every output."""

from reward_kit import RewardOutput, reward_function


@reward_function
def evaluate(messages, *, db, end_goal_sql, outputs, **kwargs):
    said = " ".join(m["content"] or "" for m in messages if m["role"] == "assistant")
    untold = [output for output in outputs if output not in said]
    untouched = bool(db.execute(end_goal_sql).scalar_one())
    return RewardOutput(
        score=1.0 if untouched and not untold else 0.0,
        reason=f"Not told: {', '.join(untold)}" if untold else "All was told",
        metrics={
            "told": {"score": 0.0 if untold else 1.0, "reason": "What the user was told"},
            "untouched": {"score": 1.0 if untouched else 0.0, "reason": "What was changed in the database"},
        },
    )
