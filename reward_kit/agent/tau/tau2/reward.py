"""The reward of a ported bundle: each part by the benchmark's rules, and the score their product.

``reward.py`` of a ported bundle calls ``judge`` with the bundle's domain. The parts are metrics: ``data``
(DB), ``checks`` (ENV_ASSERTION), ``calls`` (ACTION), ``outputs`` (COMMUNICATE), ``criteria`` (NL_ASSERTION).
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.text import call_line, filled, text_of
from reward_kit.agent.rewards.checks import FINISHED, check_of, checks_hold, missing_outputs
from reward_kit.agent.rewards.criteria import NO_JUDGE, ask_judge, judge_name
from reward_kit.agent.tau import MAX_ERRORS
from reward_kit.agent.tau.tau2.state import STATE
from reward_kit.models import EvaluateResult, MetricResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from reward_kit.agent.base.types import ToolCall
    from reward_kit.agent.tau.tau2.domain import Domain

MAX_STEPS = 200
"""The benchmark's limit of messages of all sides; the results of a message's calls count as one."""


def judge(
    domain: Domain,
    default_judge: str,
    *,
    messages: Sequence[dict[str, Any]],
    db: Any,
    gold_db: Any = None,
    rollout: Any = None,
    score_by: Sequence[str] = (),
    actions: Sequence[Mapping[str, Any]] | None = None,
    checks: Sequence[Mapping[str, Any]] | None = None,
    outputs: Sequence[str] = (),
    criteria: Sequence[str] = (),
    judge_model: str | None = None,
    initial_messages: Sequence[dict[str, Any]] = (),
    metadata: Mapping[str, Any] | None = None,
    **_: Any,
) -> EvaluateResult:
    """Judge a rollout; 0.0 for one that did not come to its end.

    A row's ``score_by`` names the parts that count; the others are reported too, but for ``criteria``, which
    ``default_judge`` judges unless ``judge_model`` or the environment names another model.
    """
    reason = getattr(rollout, "stop_reason", None)
    if reason is not None and reason not in FINISHED:
        return EvaluateResult(score=0.0, reason=f"the conversation was cut off: {reason}")
    made = getattr(rollout, "tool_calls", [])  # a rollout hands out copies
    of_user = getattr(rollout, "user_messages", None) or {}
    trajectory = list(_trajectory(messages, of_user))
    if (limit := _limit_reached(trajectory, made, len(initial_messages))) is not None:
        return EvaluateResult(score=0.0, reason=limit)
    nothing = MetricResult(score=1.0, reason="There are no gold actions and no checks")
    parts = {
        "data": nothing if actions is None and checks is None else _data(domain, db, gold_db),
        "checks": checks_hold(checks or (), db),
    }
    compared = (metadata or {}).get("compare_args") or [None] * len(actions or ())
    opening = _opening_calls(chain(messages, *of_user.values()))
    calls = [*opening, *((call.name, call.arguments) for call in made)]
    parts["calls"] = calls_match(actions or (), compared, calls)
    said = [text_of(one.get("content")) for one in messages if one["role"] == "assistant"]
    missing = missing_outputs(outputs, [text for text in said if text.strip()], anywhere=True)
    parts["outputs"] = check_of([f"never said: {text!r}" for text in missing], "All outputs were said")
    if "criteria" in score_by:
        parts["criteria"] = _criteria(
            domain, criteria, trajectory, judge_name(judge_model, default_judge), rollout
        )
    counted = [parts[name] for name in score_by]
    faults = [part.reason for part in counted if part.score < 1.0]
    score = math.prod(part.score for part in counted)
    return EvaluateResult(score=score, reason="; ".join(faults) or "Everything is as required", metrics=parts)


# --- DB


def _data(domain: Domain, db: Any, gold_db: Any) -> MetricResult:
    lists = {one.kind for fields in domain.fields.values() for one in fields.values() if one.form == "list"}
    ours, gold = _changed(db), {} if gold_db is None else _changed(gold_db)
    faults: list[str] = []
    for kind, key in sorted({*ours, *gold}):
        if kind in lists:
            continue
        start, _ = ours.get((kind, key)) or gold[kind, key]
        _, have = ours.get((kind, key), (start, start))
        _, want = gold.get((kind, key), (start, start))
        if not _same(have, want):
            faults += [f"{kind} {key!r} is not as after the gold actions"]
    for kind in sorted(lists & {kind for kind, _ in (*ours, *gold)}):
        items, gold_items = _list(db, kind), None if gold_db is None else _list(gold_db, kind)
        if gold_items is None or len(items) != len(gold_items) or not all(map(_same, items, gold_items)):
            faults += [f"{kind} are not as after the gold actions"]
    return check_of(faults, "The data equal those after the gold actions")


def _changed(db: Any) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    """The objects that differ from the row's start, with their text there and now."""
    return {
        (one.key["kind"], one.key["id"]): ((one.before or {}).get("json"), (one.after or {}).get("json"))
        for one in db.changes()
        if one.table != STATE
    }


def _list(db: Any, kind: str) -> list[str]:
    return list(db.execute("SELECT json FROM objects WHERE kind = ? ORDER BY rowid", [kind]).scalars())


def _same(one: str | None, other: str | None) -> bool:
    """True for the same JSON, in any order of the keys."""
    if one == other or one is None or other is None:
        return one == other
    return json.dumps(json.loads(one), sort_keys=True) == json.dumps(json.loads(other), sort_keys=True)


# --- ACTION


def calls_match(
    actions: Sequence[Mapping[str, Any]],
    compared: Sequence[Sequence[str] | None],
    calls: Sequence[tuple[str, Any]],
) -> MetricResult:
    """1.0 if each gold action is like one of the calls.

    ``compared`` are the names of the arguments that count in each action; for None they are those of the
    call, so that a call with fewer arguments matches. An empty list matches any call of the tool.
    """
    faults = []
    for action, names in zip(actions, compared, strict=True):
        if not any(_matches(action, names, *call) for call in calls):
            faults.append(f"never called: {call_line(action['name'], action.get('arguments') or {})}")
    return check_of(faults, "All gold actions were called")


def _matches(action: Mapping[str, Any], names: Sequence[str] | None, tool: str, arguments: Any) -> bool:
    if action["name"] != tool or not isinstance(arguments, dict):
        return False
    counted = arguments.keys() if names is None else names
    gold = action.get("arguments") or {}
    ours, theirs = ({key: value for key, value in one.items() if key in counted} for one in (arguments, gold))
    return not counted or ours == theirs


def _opening_calls(messages: Iterable[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The calls that messages have, those of the opening among them."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call["function"]
            with suppress(ValueError):
                yield function["name"], json.loads(function["arguments"])


# --- NL_ASSERTION, and limits


def _trajectory(
    messages: Sequence[dict[str, Any]], of_user: Mapping[int, Sequence[dict[str, Any]]]
) -> Iterator[tuple[str, Any]]:
    """Role and content of the messages of both sides, in their order."""
    for position, message in enumerate([*messages, None]):
        for own in of_user.get(position, ()):
            yield ("user" if own["role"] == "assistant" else own["role"]), own.get("content")
        if message is not None and message["role"] != "system":
            yield message["role"], message.get("content")


def _limit_reached(
    trajectory: Sequence[tuple[str, Any]], calls: Sequence[ToolCall], opening: int
) -> str | None:
    """The limit at which the benchmark would have ended the conversation, with reward 0."""
    errors = sum(call.status != "ok" for call in calls)
    if errors >= MAX_ERRORS:
        return f"{errors} tool calls failed, and the limit is {MAX_ERRORS}"
    roles = [role for role, _ in trajectory]
    steps = sum(role != "tool" or roles[at - 1] != "tool" for at, role in enumerate(roles)) - opening
    return f"{steps} steps of all sides, and the limit is {MAX_STEPS}" if steps >= MAX_STEPS else None


def _criteria(
    domain: Domain,
    criteria: Sequence[str],
    trajectory: Sequence[tuple[str, Any]],
    name: str,
    rollout: Any,
) -> MetricResult:
    if not criteria:
        return MetricResult(score=1.0, reason="There are no sentences to judge")
    given: dict[str, bool] = getattr(rollout, "given_verdicts", None) or {}
    if given.keys() >= set(criteria):
        unmet = [f"not met: {text!r}" for text in criteria if not given[text]]
        return check_of(unmet, "All sentences are met, as recorded")
    if name == NO_JUDGE:
        return MetricResult(score=1.0, reason="The sentences were not judged: there is no judge")
    said = "\n".join(f"{role}: {content}" for role, content in trajectory)
    asked = filled(domain.text("judge_user.txt"), trajectory_str=said, nl_assertions=str(list(criteria)))
    messages = [
        {"role": "system", "content": domain.text("judge_system.txt")},
        {"role": "user", "content": asked},
    ]
    verdicts = ask_judge(name, messages, _verdicts, rollout=rollout, model_args={"temperature": 0.0})
    faults = [f"not met: {text!r} ({why})" for text, met, why in verdicts if not met]
    return check_of(faults, f"judge {name}: all sentences are met")


def _verdicts(text: str) -> list[tuple[str, bool, str]]:
    """The verdicts in an answer; none at all counts as met, as in the benchmark."""
    try:
        results = json.loads(text).get("results", [])
        return [(one["expectedOutcome"], one["metExpectation"], one["reasoning"]) for one in results]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the answer has no list of results: {fault_line(error)}") from error
