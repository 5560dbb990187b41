"""A rollout in words: its players, conversation, end and failure, for its page; and as one text."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.history import shown_text
from reward_kit.agent.base.redaction import HIDDEN
from reward_kit.agent.base.text import call_line, count, json_text
from reward_kit.agent.bundles.rules import violation_text
from reward_kit.agent.models.answer_parts import reasoning_of
from reward_kit.agent.rollout.outcome import total_usage
from reward_kit.agent.scoring.failures.row_differences import row_line
from reward_kit.agent.scoring.numbers import duration, duration_with_waiting, money, tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.base.types import ToolCall
    from reward_kit.agent.reports.facts import Fact
    from reward_kit.agent.rollout.trace import Trace


def player_facts(record: Trace) -> Iterator[Fact]:
    """Agent, user, the tools that the agent showed its model, and when it began."""
    for role, name in (("agent", record.agent), ("user", record.user)):
        model = record.models.get(role)
        yield role, f"{name} ({model})" if model else name
    if record.offered_tools is not None:
        shown = ", ".join(record.offered_tools) or "none"
        yield "tools", f"those that the agent showed its model: {shown}"
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started))
    attempt = f", attempt {record.attempt + 1}" if record.attempt else ""
    yield "begun", f"{begun}, seed {record.seed}{attempt}"


def end_facts(record: Trace) -> Iterator[Fact]:
    """The stop reason, the length, the cost of each model, and violations of rules."""
    yield "stopped", f"{record.stop_reason}{f' ({record.stop_detail})' if record.stop_detail else ''}"
    counts = ((record.steps, "step"), (record.turns, "turn"), (len(record.tool_calls), "tool call"))
    took = duration_with_waiting(record.seconds, record.waited)
    yield "length", ", ".join([*(count(number, noun) for number, noun in counts), took])
    usages = {f"{role}'s cost": usage for role, usage in record.usage.items()}
    if len(usages) > 1:
        usages["cost"] = total_usage(record.usage.values())
    for name, usage in usages.items():
        if usage.calls or usage.input_tokens or usage.output_tokens:
            flow = f"{tokens(usage.input_tokens)} tokens in, {tokens(usage.output_tokens)} out"
            yield name, f"{money(usage)}, {count(usage.calls, 'model call')}, {flow}"
    if record.redacted:
        yield "redacted", f"secrets were replaced by {HIDDEN} when it was stored"
    for rule, rows in (record.violations or {}).items():
        yield from (("broken rule", f"{rule}: {violation_text(row)}") for row in rows)


def failure_facts(failure: Mapping[str, Any]) -> Iterator[Fact]:
    """The expected and the made call, then the values that differ at the end."""
    for name in ("expected", "made"):
        call = failure.get(name)
        if call:
            yield name, call_line(call["name"], call["arguments"])
    yield from (("data", row_line(row)) for row in failure.get("rows") or ())
    if failure.get("more_rows"):
        yield "data", f"and {failure['more_rows']} more values differ"


@dataclass(slots=True)
class CallEntry:
    """A tool call with its answer; ``made`` is the call as it ran, None if it did not run."""

    name: str
    arguments: str
    status: str
    made: ToolCall | None
    is_wrong: bool
    answer: str | None = None


@dataclass(slots=True)
class Entry:
    """A message: its role, text and thought, and its tool calls."""

    role: str
    text: str
    thought: str = ""
    calls: list[CallEntry] = field(default_factory=list)


def conversation(record: Trace) -> Iterator[Entry]:
    """The messages of a rollout, answers of tools with their calls; the first wrong call is marked."""
    made = {call.id: call for call in record.tool_calls}
    opening = record.opening
    wrong = (record.failure or {}).get("call")
    unanswered: dict[str, CallEntry] = {}
    entries = []
    for number, message in enumerate(record.messages):
        text = shown_text(message.get("content"))
        answered = unanswered.pop(str(message.get("tool_call_id")), None)
        if message["role"] == "tool" and answered is not None:
            answered.answer = text
            continue
        entry = Entry(message["role"], text, reasoning_of(message))
        for call in message.get("tool_calls") or ():
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            found = made.get(call["id"])
            status = found.status if found else "given by the row" if number < opening else "not run"
            is_wrong = found is not None and found.index == wrong
            unanswered[call["id"]] = CallEntry(name, arguments, status, found, is_wrong)
            entry.calls.append(unanswered[call["id"]])
        entries.append(entry)
    yield from entries


def transcript(record: Trace) -> str:
    """The whole rollout; control characters in it are not removed."""
    return "\n".join([*_head(record), "", *_conversation(record), *_end(record)]) + "\n"


def _head(record: Trace) -> Iterator[str]:
    yield f"rollout {record.id}: row {record.row_id}, number {record.index + 1}"
    yield from (f"{name}: {text}" for name, text in player_facts(record))


def _conversation(record: Trace) -> Iterator[str]:
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


def _end(record: Trace) -> Iterator[str]:
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
