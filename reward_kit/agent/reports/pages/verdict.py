"""The verdict on a rollout in two lines: what was wanted, and what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.text import cut, json_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from reward_kit.agent.reports.pages.timeline import Step
    from reward_kit.agent.rollout.trace import Trace

LONGEST_ARGUMENT = 120


class Verdict(NamedTuple):
    """Both lines; ``wanted`` may be empty. ``is_told`` is False if ``happened`` is all that is known."""

    wanted: str
    happened: str
    is_told: bool = True


def verdict_on(record: Trace, steps: Sequence[Step]) -> Verdict:
    """The verdict on a rollout, passed or not."""
    failure = record.failure or {}
    reason = str((record.result or {}).get("reason") or "")
    if record.reward is None:
        return Verdict("", record.error or record.stop_detail or record.stop_reason or "", is_told=False)
    detail = str(failure.get("detail") or "")
    expected, made = failure.get("expected"), failure.get("made")
    if failure.get("kind") in (None, "other") and expected is None:
        return Verdict("", reason or detail, is_told=False)
    if expected is None and made is None:
        unsaid = [json_text(one, LONGEST_ARGUMENT) for one in failure.get("unsaid") or ()]
        if not unsaid:
            return Verdict("", detail)
        return Verdict(f"the agent says {', '.join(unsaid)}", "it was never said")
    ignored = ignored_columns(failure)
    differing = {one["argument"] for one in failure.get("arguments") or ()}
    names = differing - ignored or differing
    wanted = "no such call" if expected is None else call_words(expected, names, ignored)
    if expected is not None and (more := sum(step.expected is not None for step in steps) - 1) > 0:
        wanted += f", and {more} more {'call' if more == 1 else 'calls'}"
    happened = "it was never called" if made is None else call_words(made, names)
    if made is not None and made.get("status", "ok") != "ok":
        happened += f": {made['status']}, {made.get('answer', '')}"
    if failure["kind"] not in ("wrong_arguments", "wrong_tool", "unintended_action", "partially_completed"):
        happened = f"{happened}; {detail}" if made else detail
    return Verdict(wanted, happened)


def ignored_columns(failure: Mapping[str, Any]) -> set[str]:
    """The columns that the reward does not compare, without their tables."""
    return {name.rpartition(".")[2] for name in failure.get("not_compared") or () if "." in name}


def call_words(
    call: Mapping[str, Any], names: Collection[str | None] = (), ignored: Collection[str] = ()
) -> str:
    """A call as Python writes it, without arguments ``ignored``; only ``names``, if there are any."""
    arguments = call["arguments"]
    if not isinstance(arguments, dict):
        return f"{call['name']}({cut(str(arguments), LONGEST_ARGUMENT)})"
    chosen = {
        name: value for name, value in arguments.items() if (name in names if names else name not in ignored)
    }
    shown = [f"{name}={json_text(value, LONGEST_ARGUMENT)}" for name, value in chosen.items()]
    return f"{call['name']}({', '.join(['…'] * (len(chosen) < len(arguments)) + shown)})"
