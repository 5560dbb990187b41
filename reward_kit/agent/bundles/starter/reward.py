"""The reward: 1 if the data is as the gold actions leave it, and everything in `outputs` was said."""

from typing import Any

from reward_kit import RewardOutput, reward_function


@reward_function
def evaluate(
    messages: list[Any], *, db: Any, gold_db: Any, outputs: list[str] | None = None, **kwargs: Any
) -> RewardOutput:
    # gold_db is the database after the row's gold actions; db.equals compares every row of every table.
    if not db.equals(gold_db):
        return RewardOutput(score=0.0, reason="the data is not as it should be")
    said = " ".join(line.get("content") or "" for line in messages if line["role"] == "assistant").lower()
    missing = [text for text in outputs or [] if text.lower() not in said]
    if missing:
        return RewardOutput(score=0.0, reason=f"not said: {', '.join(missing)}")
    return RewardOutput(score=1.0, reason="solved")
