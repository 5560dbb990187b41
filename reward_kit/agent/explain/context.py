"""A failed rollout as the judging model gets to see it: all of it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.history import shown_text
from reward_kit.agent.base.text import call_line, json_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.records.rollout_record import RolloutRecord

PROMPTS = Path(__file__).parent / "prompts"


@cache
def prompt(name: str) -> str:
    """The text of a prompt file, without the line break at its end."""
    return (PROMPTS / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


@cache
def prompt_version() -> str:
    """A fingerprint of the prompts: judgements made with others are not reused."""
    return hashlib.sha256("\0".join((prompt("judge"), prompt("again"))).encode()).hexdigest()[:12]


def context_of(record: RolloutRecord, *, longest_result: int | None = None) -> str:
    """Everything there is on a rollout; results of tools are cut after ``longest_result`` characters."""
    return "\n\n".join(
        f"<{name}>\n{text}\n</{name}>" for name, text in _parts(record, longest_result) if text
    )


def _parts(record: RolloutRecord, longest_result: int | None) -> Iterator[tuple[str, str]]:
    fields = record.fields
    yield "what_the_user_was_told_to_want", str(fields.get("sim_user_prompt") or "")
    yield "rules_for_the_agent", str(fields.get("system_prompt") or "")
    solution = (call_line(call["name"], call["arguments"], None) for call in fields.get("actions") or ())
    yield "calls_that_solve_the_task", "\n".join(solution)
    yield (
        "what_the_agent_had_to_say",
        "\n".join(str(output) for output in fields.get("outputs") or ()),
    )
    if not fields.get("actions"):
        yield "when_the_task_is_solved", str(fields.get("end_goal_sql") or "")
    yield "conversation", "\n".join(_conversation(record, longest_result))
    yield "how_it_ended", _ending(record)
    yield "differences_of_the_final_data", "\n".join(_differences(record.failure or {}))
    yield "finding_of_the_program", _finding(record)


def _conversation(record: RolloutRecord, longest_result: int | None) -> Iterator[str]:
    begin = 1 if record.fields.get("system_prompt") is not None else 0
    opening = record.opening
    for number, message in enumerate(record.messages[begin:], start=begin):
        text = shown_text(message.get("content"))
        role = message["role"]
        if role == "tool":
            yield f"result of {message.get('name', 'the tool')}: {_shortened(text, longest_result)}"
            continue
        calls = message.get("tool_calls") or ()
        if text:
            aside = " (to itself)" if calls else " (given)" if number < opening else ""
            yield f"{'agent' if role == 'assistant' else role}{aside}: {text}"
        for call in calls:
            yield f"agent calls: {call['function']['name']}({call['function']['arguments']})"


def _shortened(text: str, longest: int | None) -> str:
    if longest is None or len(text) <= longest:
        return text
    return f"{text[:longest]}… ({len(text) - longest} more characters)"


def _ending(record: RolloutRecord) -> str:
    detail = f" ({record.stop_detail})" if record.stop_detail else ""
    reason = (record.result or {}).get("reason")
    reward = f"reward {record.reward:g}" if record.reward is not None else "no reward"
    return f"{record.stop_reason}{detail}; {reward}{f': {reason}' if reason else ''}"


def _differences(failure: Mapping[str, Any]) -> Iterator[str]:
    for row in failure.get("rows") or ():
        yield json_text(row)
    if failure.get("more_rows"):
        yield f"and {failure['more_rows']} more"


def _finding(record: RolloutRecord) -> str:
    failure = record.failure or {}
    lines = [f"{failure.get('kind')}: {failure.get('detail')}"]
    if failure.get("step") is not None:
        lines.append(f"first wrong step: {failure['step']} (turn {failure.get('turn')})")
    lines += [
        f"simulated user, turn {fault['turn']}: {fault['kind']}: {fault['detail']}"
        for fault in record.user_faults or ()
    ]
    return "\n".join(lines)
