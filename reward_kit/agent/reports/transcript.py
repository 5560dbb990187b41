"""A rollout as text: head, conversation with the changes of each call, and the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.history import shown_text
from reward_kit.agent.base.text import (
    call_line,
    count,
    duration,
    duration_with_waiting,
    json_text,
    money,
    tokens,
)
from reward_kit.agent.records.outcome import total_usage
from reward_kit.agent.scoring.failures.row_differences import row_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.base.types import ToolCall
    from reward_kit.agent.records.rollout_record import RolloutRecord


def transcript(record: RolloutRecord) -> str:
    """The whole rollout; control characters in it are not removed."""
    return "\n".join([*_head(record), "", *_conversation(record), *_end(record)]) + "\n"


def _head(record: RolloutRecord) -> Iterator[str]:
    yield f"rollout {record.id}: row {record.row_id}, number {record.index + 1}, seed {record.seed}"
    if record.attempt:
        yield f"attempt {record.attempt + 1}"
    yield f"agent {record.agent}, user {record.user}"
    for role, model in record.models.items():
        yield f"model of the {role}: {model}"
    if record.offered_tools is not None:
        yield f"tools that the agent showed its model: {', '.join(record.offered_tools) or 'none'}"
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started))
    yield f"begun {begun}, took {duration_with_waiting(record.seconds, record.waited)}"


def _conversation(record: RolloutRecord) -> Iterator[str]:
    calls = {call.id: call for call in record.tool_calls}
    for message in record.messages:
        text = shown_text(message.get("content"))
        if message["role"] == "tool":
            yield from _observation(message, text, calls.get(message.get("tool_call_id", "")))
            continue
        if text:
            yield message["role"].upper()
            yield from _indented(text)
        for call in message.get("tool_calls") or ():
            yield f"CALL {call['function']['name']} {call['function']['arguments']}"
        if not message.get("tool_calls"):
            yield ""


def _observation(message: dict[str, Any], text: str, call: ToolCall | None) -> Iterator[str]:
    took = f" ({call.status}, {duration(call.seconds)})" if call else ""
    yield f"TOOL {message.get('name', '')}{took}"
    yield from _indented(text)
    for change in call.changes if call else ():
        rest = {name: value for name, value in change.items() if name not in ("table", "op")}
        yield f"  * {change['op']} {change['table']} {json_text(rest)}"
    yield ""


def _end(record: RolloutRecord) -> Iterator[str]:
    yield f"stopped: {record.stop_reason}{f' ({record.stop_detail})' if record.stop_detail else ''}"
    counts = ((record.steps, "step"), (record.turns, "turn"), (len(record.tool_calls), "tool call"))
    yield ", ".join(count(number, noun) for number, noun in counts)
    for role, usage in record.usage.items():
        flow = f"{tokens(usage.input_tokens)} tokens in, {tokens(usage.output_tokens)} out"
        yield f"{role}: {count(usage.calls, 'model call')}, {flow}, {money(usage)}"
    if len(record.usage) > 1:
        yield f"together: {money(total_usage(record.usage.values()))}"
    if record.error:
        yield f"not judged: {record.error}"
    if record.reward is not None:
        reason = (record.result or {}).get("reason")
        yield f"reward {record.reward:g}{f': {reason}' if reason else ''}"
    for fault in record.user_faults or ():
        yield f"simulated user, turn {fault['turn']}: {fault['kind']} ({fault['detail']})"
    if record.failure:
        yield from _failure(record.failure)


def _failure(failure: Mapping[str, Any]) -> Iterator[str]:
    yield f"failure: {failure['kind']} ({failure['detail']})"
    if failure.get("step") is not None:
        yield f"  first wrong step: {failure['step']}, in turn {failure.get('turn')}"
    for name in ("expected", "made"):
        call = failure.get(name)
        if call:
            yield f"  {name}: {call_line(call['name'], call['arguments'])}"
    yield from (f"  {row_line(row)}" for row in failure.get("rows") or ())
    if failure.get("more_rows"):
        yield f"  and {failure['more_rows']} more values differ"


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
