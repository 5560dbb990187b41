"""A rollout as text, for the terminal and its page: its conversation, end, failure and players."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.history import shown_text
from reward_kit.agent.base.printing import Styled, folded
from reward_kit.agent.base.redaction import HIDDEN
from reward_kit.agent.base.text import call_line, count, cut
from reward_kit.agent.bundles.rules import violation_text
from reward_kit.agent.database.changes import RowChange
from reward_kit.agent.models.answer_parts import reasoning_of
from reward_kit.agent.rollout.outcome import total_usage
from reward_kit.agent.rollout.replaying import step_of_messages
from reward_kit.agent.scoring.failures.row_differences import row_line
from reward_kit.agent.scoring.numbers import duration, duration_with_waiting, money, tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.base.types import Side, ToolCall
    from reward_kit.agent.reports.facts import Fact
    from reward_kit.agent.rollout.trace import Trace

BRANCHED = "From here on the rollout is a branch of another one, with another seed."
SHORT_PROMPT = 6
"""Lines of a system prompt that is shown whole."""
LONGEST_ANSWER = 800
LONGEST_FAILURE, LONGEST_REASON = 6, 200
"""Characters of a tool's answer, lines of a failure and characters of a reason, unless all is asked for."""


def player_facts(record: Trace) -> Iterator[Fact]:
    """Agent, user, the tools that the agent showed its model, and when it started."""
    for role, name in (("agent", record.agent), ("user", record.user)):
        model = record.models.get(role)
        yield role, f"{name} ({model})" if model else name
    if record.offered_tools is not None:
        shown = ", ".join(record.offered_tools) or "none"
        yield "tools", f"those that the agent showed its model: {shown}"
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started))
    attempt = f", attempt {record.attempt + 1}" if record.attempt else ""
    yield "started", f"{started}, seed {record.seed}{attempt}"


def end_facts(record: Trace) -> Iterator[Fact]:
    """The stop reason, the length, the cost of each model, and violations of rules."""
    yield "stopped", f"{record.stop_reason}{f' ({record.stop_detail})' if record.stop_detail else ''}"
    by_user = sum(call.by == "user" for call in record.tool_calls)
    made = len(record.tool_calls) - by_user
    counts = ((record.steps, "step"), (record.turns, "turn"), (made, "tool call"))
    others = [f"{count(by_user, 'tool call')} of the user"] if by_user else []
    took = duration_with_waiting(record.seconds, record.waited)
    yield "length", ", ".join([*(count(number, noun) for number, noun in counts), *others, took])
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
            by = " by the user" if call.get("by") == "user" else ""
            yield name, f"{call_line(call['name'], call['arguments'])}{by}"
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
    """A message: its role, text and thought, and its tool calls; ``by`` the agent or the user.

    ``step`` is the one that the agent said it in. The role ``branch`` marks where a rollout left another one.
    """

    role: str
    text: str
    thought: str = ""
    calls: list[CallEntry] = field(default_factory=list)
    by: Side = "agent"
    step: int | None = None


def conversation(record: Trace) -> Iterator[Entry]:
    """The messages of a rollout, answers of tools with their calls; the first wrong call is marked.

    The user's calls stand before the line that the user said after them.
    """
    made = {(call.by, call.id): call for call in record.tool_calls}
    opening, steps = record.opening, step_of_messages(record)
    wrong = (record.failure or {}).get("call")
    unanswered: dict[tuple[Side, str], CallEntry] = {}
    entries = []
    forks = [fork["messages"] for fork in record.forks]
    for number, by, message in record.both_sides():
        if forks and by == "agent" and number >= forks[0]:
            forks.pop(0)
            entries.append(Entry("branch", BRANCHED))
        text = shown_text(message.get("content"))
        answered = unanswered.pop((by, str(message.get("tool_call_id"))), None)
        if message["role"] == "tool" and answered is not None:
            answered.answer = text
            continue
        entry = Entry(message["role"] if by == "agent" else by, text, reasoning_of(message), by=by)
        if entry.role == "assistant" and number >= opening:
            entry.step = steps[number]
        for call in message.get("tool_calls") or ():
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            found = made.get((by, call["id"]))
            given = number < opening + (by == "user")
            status = found.status if found else "given by the row" if given else "not run"
            is_wrong = found is not None and found.index == wrong
            unanswered[by, call["id"]] = CallEntry(name, arguments, status, found, is_wrong)
            entry.calls.append(unanswered[by, call["id"]])
        entries.append(entry)
    yield from entries


def transcript(record: Trace) -> str:
    """The whole rollout; control characters in it are not removed."""
    return "\n".join(transcript_lines(record, full=True)) + "\n"


def transcript_lines(record: Trace, width: int | None = None, *, full: bool = False) -> Iterator[str]:
    """Conversation, end and players, folded at ``width``; long prompts and answers cut unless ``full``."""
    title = f"{record.eval_id} {record.row_id}#{record.index + 1}: {record.verdict}".strip()
    for line in (Styled(title, bold=True), "", *_conversation(record, full=full)):
        yield from folded(line, width, hang=0)
    for line in _end(record, full=full):
        yield from folded(line, width)


def _conversation(record: Trace, *, full: bool) -> Iterator[str]:
    for entry in conversation(record):
        lines = entry.text.splitlines()
        if entry.role == "system" and len(lines) > SHORT_PROMPT and not full:
            yield Styled(f"SYSTEM  {len(lines)} lines; --full shows them", 0, 6, bold=True)
        elif entry.text:
            said = "" if entry.step is None else f" (step {entry.step})"
            yield Styled(f"{entry.role.upper()}{said}", bold=True)
            yield from _indented(entry.text)
        for call in entry.calls:
            yield from _call(call, by="" if entry.by == "agent" else "USER'S ", full=full)
        yield ""


def _call(call: CallEntry, *, by: str, full: bool) -> Iterator[str]:
    wrong = "  <- the first wrong call" if call.is_wrong else ""
    line, color = f"{by}CALL {call.name} {call.arguments}{wrong}", "red" if wrong else None
    yield Styled(line, 0, len(by) + 4, bold=True, fg=color)
    took = f", {duration(call.made.seconds)}" if call.made else ""
    if call.made and call.made.by == "agent":
        took = f", step {call.made.step}{took}"
    yield Styled(f"{by}TOOL {call.name} ({call.status}{took})", 0, len(by) + 4, bold=True)
    answer = call.answer or ""
    if len(answer) > LONGEST_ANSWER and not full:
        yield from _indented(answer[:LONGEST_ANSWER])
        yield f"  … {len(answer) - LONGEST_ANSWER} more characters; --full shows them"
    else:
        yield from _indented(answer)
    for change in call.made.changes if call.made else ():
        yield from (f"  * {line}" for line in RowChange.from_json(change).lines(whole=full))


def _end(record: Trace, *, full: bool) -> Iterator[str]:
    failure = record.failure
    if failure:
        facts = list(failure_facts(failure))
        shown = facts if full else facts[: LONGEST_FAILURE + 1]
        detail = failure["detail"] if full or not facts else failure["detail"].partition("; missing ")[0]
        step = failure.get("step")
        where = "" if step is None else f" in step {step}, turn {failure.get('turn')}"
        yield Styled(f"failure: {failure['kind']}{where}: {detail}", 0, 7, fg="red")
        yield from (f"  {name}: {text}" for name, text in shown)
        if len(shown) < len(facts):
            yield f"  {len(facts) - len(shown)} more; --full shows them"
    if record.error:
        yield f"not judged: {record.error}"
    if record.reward is not None and (reason := (record.result or {}).get("reason")):
        yield f"reason: {reason if full or not failure else cut(str(reason), LONGEST_REASON)}"
    for fault in record.user_faults or ():
        yield f"simulated user, turn {fault['turn']}: {fault['kind']} ({fault['detail']})"
    yield from (f"{name}: {text}" for name, text in (*end_facts(record), *player_facts(record)))
    yield f"id: {record.id}"


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
