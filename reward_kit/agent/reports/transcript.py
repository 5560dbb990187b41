"""A rollout as text: head, conversation with the changes of each call, and the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.base.text import json_text
from reward_kit.agent.reports.numbers import duration
from reward_kit.agent.reports.rollout_facts import conversation, end_facts, failure_facts, player_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.records.rollout_record import RolloutRecord
    from reward_kit.agent.reports.rollout_facts import CallEntry


def transcript(record: RolloutRecord) -> str:
    """The whole rollout; control characters in it are not removed."""
    return "\n".join([*_head(record), "", *_conversation(record), *_end(record)]) + "\n"


def _head(record: RolloutRecord) -> Iterator[str]:
    yield f"rollout {record.id}: row {record.row_id}, number {record.index + 1}"
    yield from (f"{name}: {text}" for name, text in player_facts(record))


def _conversation(record: RolloutRecord) -> Iterator[str]:
    for entry in conversation(record):
        if entry.text:
            yield entry.role.upper()
            yield from _indented(entry.text)
        for call in entry.calls:
            yield from _call(call)
        yield ""


def _call(call: CallEntry) -> Iterator[str]:
    yield f"CALL {call.name} {call.arguments}"
    took = f", {duration(call.made.seconds)}" if call.made else ""
    yield f"TOOL {call.name} ({call.status}{took})"
    yield from _indented(call.answer or "")
    for change in call.made.changes if call.made else ():
        rest = {name: value for name, value in change.items() if name not in ("table", "op")}
        yield f"  * {change['op']} {change['table']} {json_text(rest)}"


def _end(record: RolloutRecord) -> Iterator[str]:
    yield from (f"{name}: {text}" for name, text in end_facts(record))
    if record.error:
        yield f"not judged: {record.error}"
    if record.reward is not None:
        reason = (record.result or {}).get("reason")
        yield f"reward {record.reward:g}{f': {reason}' if reason else ''}"
    for fault in record.user_faults or ():
        yield f"simulated user, turn {fault['turn']}: {fault['kind']} ({fault['detail']})"
    failure = record.failure
    if failure:
        yield f"failure: {failure['kind']} ({failure['detail']})"
        if failure.get("step") is not None:
            yield f"  first wrong step: {failure['step']}, in turn {failure.get('turn')}"
        yield from (f"  {name}: {text}" for name, text in failure_facts(failure))


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
