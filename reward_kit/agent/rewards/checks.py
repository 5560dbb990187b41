"""Checks of a finished rollout, and their combination; each check is a metric with a score and a reason."""

from __future__ import annotations

import inspect
import math
import re
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import equal_values
from reward_kit.agent.base.text import call_line, text_of
from reward_kit.agent.database.changes import in_one_spelling
from reward_kit.agent.rows.field_checks import arguments_match, is_reference
from reward_kit.agent.tools.values import json_value
from reward_kit.errors import BundleError, DatabaseError
from reward_kit.models import EvaluateResult, MetricResult

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from reward_kit.agent.base.types import Message, ToolCall
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database import ReadOnlyDatabase

_TASK: ContextVar[Task | None] = ContextVar("task", default=None)
"""The task whose reward runs."""
FINISHED = frozenset({"user_stop", "terminal_tool", "agent_done"})
"""Stop reasons of a conversation that came to its end; any other has cut it off."""
EQUAL = "The data equal those after the gold actions"


def check_of(faults: Sequence[str], passed: str) -> MetricResult:
    """The metric of a check: 1.0 with the reason ``passed``, or 0.0 with the ``faults``."""
    return MetricResult(score=0.0 if faults else 1.0, reason="; ".join(faults) or passed)


def database_equal(
    db: ReadOnlyDatabase,
    gold_db: ReadOnlyDatabase | None,
    *,
    ignore: Collection[str] = (),
    exact: bool = False,
) -> MetricResult:
    """1.0 if the data are those after the gold actions, or unchanged without ``gold_db``.

    ``ignore`` names what is not compared: ``"table.column"``, ``"*.column"`` or ``"table"``. Unless
    ``exact``, 12 and 12.0 are equal, also inside JSON text, whose order of keys does not count.
    """
    if gold_db is None:
        changes = db.changes().ignoring(ignore)
        changes = changes if exact else in_one_spelling(changes)[0]
        faults = [f"expected no change, got {line}" for line in changes.lines()]
    elif db.equals(gold_db, ignore, exact=exact):
        faults = []
    else:
        faults = db.changes().describe(gold_db.changes(), ignore, exact=exact)
        faults = faults or ["the two databases come from different seeds"]
    return check_of(faults, EQUAL)


def is_exact(reward: Callable[..., Any]) -> bool:
    """True if the module of ``reward`` has ``EXACT = True``: the reward compares exactly."""
    return bool(_of_module(reward, "EXACT"))


def finds_anywhere(reward: Callable[..., Any]) -> bool:
    """True if the module of ``reward`` has ``ANYWHERE = True``: outputs may be inside words and numbers."""
    return bool(_of_module(reward, "ANYWHERE"))


def not_compared(reward: Callable[..., Any], fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Tables and columns that a comparison leaves out.

    They are ``NOT_COMPARED`` of the module of ``reward``, and the field ``not_compared`` of the row.
    """
    named = _of_module(reward, "NOT_COMPARED") or ()
    return (*((named,) if isinstance(named, str) else named), *(fields.get("not_compared") or ()))


@lru_cache(maxsize=64)
def _of_module(reward: Callable[..., Any], name: str) -> Any:
    return getattr(inspect.unwrap(reward), "__globals__", {}).get(name)


def outputs_said(
    outputs: Sequence[str] | None, messages: Iterable[Message], *, anywhere: bool = False
) -> MetricResult:
    """1.0 if the agent has said each of ``outputs`` to the user; see ``missing_outputs``."""
    missing = missing_outputs(outputs or (), said_to_user(messages), anywhere=anywhere)
    faults = [f"never said: {output!r}" for output in missing]
    return check_of(faults, "Every output was said" if outputs else "There was nothing to be said")


def said_to_user(messages: Iterable[Message]) -> list[str]:
    """The agent's replies; text beside a tool call does not reach the user."""
    return [
        text_of(message.get("content"))
        for message in messages
        if message["role"] == "assistant" and not message.get("tool_calls")
    ]


def missing_outputs(outputs: Iterable[str], said: Iterable[str], *, anywhere: bool = False) -> list[str]:
    """The ``outputs`` that no text of ``said`` contains; case and line breaks are ignored.

    An output is not inside a longer word or number: "40" is not in "140", "1,240", "40.5", "-40", "09:40" or
    "2025-05-40". Equal numbers are one: "1240" is said in "1,240.00". With ``anywhere`` an output may also
    be inside words and numbers, and commas in ``said`` are ignored (the rule of tau-bench).
    """
    if anywhere:
        texts = [text.replace(",", "").lower() for text in said]
        return [output for output in outputs if not any(output.lower() in text for text in texts)]
    texts = [_in_plain_numbers(text) for text in said]
    return [output for output in outputs if not any(_says(text, _in_plain_numbers(output)) for text in texts)]


_NUMBER = re.compile(r"(?<![\w.,:/])([1-9]\d{0,2}(?:,\d{3})+|\d+)(\.\d+)?(?![.,:/-]?\w)")
"""A number that is no part of a longer token such as a time, a date, a version or an id."""
_INTO_NUMBER, _ON_IN_NUMBER = re.compile(r"\d[.,:/]$|-$"), re.compile(r"[.,:/-]\d")
_DASHES = dict.fromkeys((*range(0x2010, 0x2014), 0x2212), "-") | {0x2014: " ", 0x2015: " "}
"""Hyphens, dashes and the minus sign, which models write; long dashes stand between words."""


def _in_plain_numbers(text: str) -> str:
    """The text in lower case and one line, with 1,240.00 written as 1240."""

    def plain(number: re.Match[str]) -> str:
        return number[1].replace(",", "") + (number[2] or "").rstrip("0").rstrip(".")

    return _NUMBER.sub(plain, " ".join(text.lower().translate(_DASHES).split()))


def _says(text: str, output: str) -> bool:
    """True if ``output`` is in ``text`` and no part of a longer word or number."""
    if not output:
        return True
    for found in re.finditer(f"(?={re.escape(output)})", text):
        start, end = found.start(), found.start() + len(output)
        before, after = text[max(0, start - 2) : start], text[end : end + 2]
        within = _are_joined(before[-1:], output[0]) or _are_joined(output[-1], after[:1])
        within |= output[0].isdigit() and _INTO_NUMBER.search(before) is not None
        within |= output[-1].isdigit() and _ON_IN_NUMBER.match(after) is not None
        within |= re.search(r"[^\W_]_$", before) is not None or re.match(r"_[^\W_]", after) is not None
        if not within:
            return True
    return False


def _are_joined(left: str, right: str) -> bool:
    """True if two neighbours are of one word or number; scripts without case write words without spaces."""
    return all(one.isdigit() or one.lower() != one.upper() for one in (left, right))


def calls_made(
    tool_calls: Iterable[ToolCall],
    *,
    required: Iterable[str | Mapping[str, Any]] = (),
    forbidden: Iterable[str | Mapping[str, Any]] = (),
) -> MetricResult:
    """1.0 if every ``required`` tool call was made and succeeded, and no ``forbidden`` one was tried.

    A call is the name of a tool of the agent, or ``{"name": …, "arguments": {…}, "by": …}``: a call of the
    tool by that side with at least these arguments. Gold actions are such calls, too: a reference to an
    earlier result fits any value, and a ``refused`` call needs no success. ``tool_calls`` are those of the
    rollout.
    """
    made = list(tool_calls)
    faults = [f"never called: {_text(one)}" for one in required if not _is_made(made, one)]
    tried = [one for one in forbidden if _is_made(made, one, tried=True)]
    faults += [f"called {_text(one)}, which is forbidden" for one in tried]
    return check_of(faults, "The tool calls are as required")


@contextmanager
def checking(task: Task | None) -> Iterator[None]:
    """Give ``checks_hold`` the check functions of a task, while its reward runs."""
    token = _TASK.set(task)
    try:
        yield
    finally:
        _TASK.reset(token)


def checks_hold(checks: Iterable[str | Mapping[str, Any]], db: Any) -> MetricResult:
    """1.0 if all ``checks`` of a row hold in the final data ``db``.

    A check is SQL, whose first value is to be true, or ``{"name": …, "arguments": {…}, "by": …, "is": …}``:
    a function registered with ``@R.check``, which is to return the value ``is`` (default: true). One that
    raises does not hold. Raises ``DatabaseError`` for faulty SQL.
    """
    faults = []
    db = getattr(db, "sync", db)
    for number, check in enumerate(checks):
        if isinstance(check, str):
            try:
                if not db.execute(check).scalar():
                    faults.append(f"does not hold: {' '.join(check.split())}")
            except DatabaseError as error:
                error.place = f"checks[{number}]"
                raise
            continue
        task = _TASK.get()
        if task is None:
            raise TypeError(f"the check function {check['name']!r} is known only where a task is judged")
        registry, arguments = task.registry_of(check.get("by", "agent")), check.get("arguments") or {}
        wanted = check.get("is", True)
        try:
            got = registry.run_function("check", check["name"], arguments, db)
        except BundleError as error:
            faults.append(error.fault)
        else:
            with suppress(TypeError):  # what has no JSON is equal to nothing
                got = got if isinstance(wanted, bool) else json_value(got)
            holds = bool(got) is wanted if isinstance(wanted, bool) else equal_values(got, wanted)
            line = call_line(check["name"], arguments)
            faults += [] if holds else [f"{line}: expected {wanted!r}, got {got!r}"]
    return check_of(faults, "All checks hold")


def rules_kept(rollout: Any) -> MetricResult:
    """1.0 if the rollout broke no rule of the bundle's ``rules.sql``."""
    broken = [f"broke the rule {name}" for name, rows in (rollout.violations or {}).items() if rows]
    return check_of(broken, "All rules were kept")


def _is_made(calls: Iterable[ToolCall], wanted: str | Mapping[str, Any], *, tried: bool = False) -> bool:
    """True if one of the calls is as ``wanted``, and succeeded unless it is enough that it was ``tried``."""
    call: Mapping[str, Any] = {"name": wanted} if isinstance(wanted, str) else wanted
    arguments, by = call.get("arguments") or {}, call.get("by") or "agent"
    tried |= bool(call.get("refused"))
    for made in calls:
        if (made.name, made.by) != (call["name"], by) or not (tried or made.status == "ok"):
            continue
        given = made.arguments if isinstance(made.arguments, dict) else {}
        if all(
            (key in given or not is_reference(value)) and arguments_match(value, given.get(key))
            for key, value in arguments.items()
        ):
            return True
    return False


def _text(call: str | Mapping[str, Any]) -> str:
    if isinstance(call, str):
        return call
    side = "the user's " if call.get("by") == "user" else ""
    return side + call_line(call["name"], call.get("arguments") or {})


def all_of(
    checks: Mapping[str, MetricResult], *, rollout: Any = None, passed: str = "Everything is as required"
) -> EvaluateResult:
    """1.0 if all ``checks`` are, else 0.0; they are the metrics of the result.

    The reason is those of the failed checks, or ``passed``. With ``rollout``, a conversation that was cut off
    (by ``max_steps``, for example) gets 0.0.
    """
    faults = [*_cut_off(rollout), *(check.reason for check in checks.values() if check.score < 1.0)]
    reason = "; ".join(faults) or passed
    return EvaluateResult(score=0.0 if faults else 1.0, reason=reason, metrics=dict(checks))


def product_of(parts: Mapping[str, MetricResult], *, rollout: Any = None) -> EvaluateResult:
    """The product of the scores of ``parts``; ``rollout`` and the reason are those of ``all_of``."""
    result = all_of(parts, rollout=rollout)
    if not _cut_off(rollout):
        result.score = math.prod(part.score for part in parts.values())
    return result


def weighted_sum(
    checks: Mapping[str, MetricResult], weights: Mapping[str, float], *, rollout: Any = None
) -> EvaluateResult:
    """The mean score of ``checks``, by ``weights``; ``rollout`` and the reason are those of ``all_of``.

    Raises ``ValueError`` unless each check has a weight of at least 0, and one of them more.
    """
    if checks.keys() != weights.keys() or min(weights.values(), default=0) < 0 or not any(weights.values()):
        raise ValueError(f"the weights {dict(weights)} do not fit the checks {', '.join(checks)}")
    result = all_of(checks, rollout=rollout)
    if not _cut_off(rollout):
        total = sum(weights[name] * check.score for name, check in checks.items())
        result.score = total / sum(weights.values())
    return result


def _cut_off(rollout: Any) -> list[str]:
    reason = getattr(rollout, "stop_reason", None)
    return [] if reason is None or reason in FINISHED else [f"the conversation was cut off: {reason}"]
