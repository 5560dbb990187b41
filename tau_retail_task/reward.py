"""The reward: the data are what the gold actions make of them, and the customer was told all there was to
tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reward_kit import EvaluateResult, MetricResult, reward_function

if TYPE_CHECKING:
    from reward_kit.agent.database import ReadOnlyDatabase

NOT_COMPARED = ("users.address_replaced", "orders.address_replaced")
"""Columns that only decide how tools show a row."""
FINISHED = frozenset({"user_stop", "terminal_tool", "agent_done"})
"""How a conversation ends that is judged; one that is cut off in any other way is worth nothing."""


@reward_function
def evaluate(
    messages: Sequence[Mapping[str, Any]],
    *,
    db: ReadOnlyDatabase,
    outputs: Sequence[str] | None = None,
    gold_db: ReadOnlyDatabase | None = None,
    rollout: Any = None,
    **kwargs: Any,  # noqa: ARG001 - the other fields of the row
) -> EvaluateResult:
    """1.0 if the final data equal those after the gold actions and every output was said, else 0.0.

    Without ``gold_db`` nothing was to be changed. Of ``rollout`` only ``stop_reason`` is asked: where it
    was cut off, by ``max_steps`` for example, the score is 0.0 whatever the data are.
    """
    differences = _differences(db, gold_db)
    unsaid = [f"never said: {output!r}" for output in missing_outputs(outputs or (), said_to_user(messages))]
    stop_reason = getattr(rollout, "stop_reason", None)
    faults = [*differences, *unsaid]
    if stop_reason is not None and stop_reason not in FINISHED:
        faults.insert(0, f"the conversation was cut off: {stop_reason}")
    return EvaluateResult(
        score=0.0 if faults else 1.0,
        reason="; ".join(faults) or "The data are as expected and everything was said",
        metrics={
            "database": _metric(differences, "The data equal those after the gold actions"),
            "outputs": _metric(
                unsaid, "Every output was said" if outputs else "There was nothing to be said"
            ),
        },
    )


def said_to_user(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """The assistant's replies; text that stands beside a tool call does not reach the user."""
    replies = (
        message for message in messages if message["role"] == "assistant" and not message.get("tool_calls")
    )
    return [text for text in map(_text, replies) if text]


def missing_outputs(outputs: Iterable[str], replies: Iterable[str]) -> list[str]:
    """The outputs that stand in none of the replies.

    They are looked for anywhere, also inside of words and numbers, ignoring case and the replies' commas.
    """
    heard = [reply.lower().replace(",", "") for reply in replies]
    return [output for output in outputs if not any(output.lower() in reply for reply in heard)]


def _differences(db: ReadOnlyDatabase, gold_db: ReadOnlyDatabase | None) -> list[str]:
    """One line for each value that differs; empty where all are equal."""
    if gold_db is None:
        changes = db.changes().ignoring(NOT_COMPARED)
        return [f"expected no change, got {line}" for line in changes.lines()]
    if db.equals(gold_db, NOT_COMPARED):
        return []
    lines = db.changes().describe(gold_db.changes(), NOT_COMPARED)
    return lines or ["the two databases come from different seeds"]


def _metric(faults: Sequence[str], praise: str) -> MetricResult:
    return MetricResult(score=0.0 if faults else 1.0, reason="; ".join(faults) or praise)


def _text(message: Mapping[str, Any]) -> str:
    """The content as one text; some models give a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))
