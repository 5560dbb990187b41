"""The reward of a ported bundle: each part by the benchmark's rules, and the score their product.

``reward.py`` of a ported bundle calls ``judge`` with the bundle's domain. The parts are metrics: ``data``
(DB), ``checks`` (ENV_ASSERTION), ``calls`` (ACTION), ``outputs`` (COMMUNICATE), ``criteria`` (NL_ASSERTION).
"""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.text import call_line, filled, text_of
from reward_kit.agent.rewards.checks import FINISHED, check_of, checks_hold, missing_outputs
from reward_kit.agent.rewards.criteria import NO_JUDGE, ask_judge, judge_name
from reward_kit.agent.tau.tau2.state import STATE
from reward_kit.models import EvaluateResult, MetricResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reward_kit.agent.tau.tau2.domain import Domain

MAX_ERRORS, MAX_STEPS = 10, 200
"""Limits of the benchmark: failed calls of both sides; messages of all sides, results of calls together."""


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
    trajectory = list(_trajectory(messages, rollout))
    if (limit := _limit_reached(trajectory, rollout, len(initial_messages))) is not None:
        return EvaluateResult(score=0.0, reason=limit)
    nothing = MetricResult(score=1.0, reason="There are no gold actions and no checks")
    parts = {
        "data": nothing if actions is None and checks is None else _data(domain, db, gold_db),
        "checks": checks_hold(checks or (), db),
    }
    compared = (metadata or {}).get("compare_args") or [None] * len(actions or ())
    parts["calls"] = calls_match(actions or (), compared, _calls(messages, rollout))
    said = [text_of(one.get("content")) for one in messages if one["role"] == "assistant"]
    missing = missing_outputs(outputs, [text for text in said if text.strip()], anywhere=True)
    parts["outputs"] = check_of([f"never said: {text!r}" for text in missing], "All outputs were said")
    if "criteria" in score_by:
        parts["criteria"] = _criteria(
            domain, criteria, trajectory, judge_name(judge_model, default_judge), rollout
        )
    counted = [parts[name] for name in score_by]
    faults = [part.reason for part in counted if part.score < 1.0]
    score = 1.0
    for part in counted:
        score *= part.score
    return EvaluateResult(score=score, reason="; ".join(faults) or "Everything is as required", metrics=parts)


# --- DB


def _data(domain: Domain, db: Any, gold_db: Any) -> MetricResult:
    lists = {one.kind for fields in domain.fields.values() for one in fields.values() if one.form == "list"}
    ours, gold = _changed(db), {} if gold_db is None else _changed(gold_db)
    faults: list[str] = []
    for kind, key in sorted({*ours, *gold}):
        if kind in lists:
            continue
        have, want = (_text(view, kind, key) for view in (db, gold_db or db))
        want = ours[kind, key] if gold_db is None else want
        if _canonical(have) != _canonical(want):
            faults += [f"{kind} {key!r} is not as after the gold actions"]
    for kind in sorted(lists & {kind for kind, _ in (*ours, *gold)}):
        if gold_db is None or _list(db, kind) != _list(gold_db, kind):
            faults += [f"{kind} are not as after the gold actions"]
    return check_of(faults, "The data equal those after the gold actions")


def _changed(db: Any) -> dict[tuple[str, str], str | None]:
    """The objects that differ from the row's start, with their text there."""
    found: dict[tuple[str, str], str | None] = {}
    for one in db.changes():
        if one.table != STATE and one.key is not None:
            found[str(one.key["kind"]), str(one.key["id"])] = (one.before or {}).get("json")
    return found


def _text(db: Any, kind: str, key: str) -> str | None:
    text: str | None = db.execute("SELECT json FROM objects WHERE kind = ? AND id = ?", [kind, key]).scalar()
    return text


def _list(db: Any, kind: str) -> list[str | None]:
    rows = db.execute("SELECT json FROM objects WHERE kind = ? ORDER BY rowid", [kind]).scalars()
    return [_canonical(text) for text in rows]


def _canonical(text: str | None) -> str | None:
    return None if text is None else json.dumps(json.loads(text), sort_keys=True)


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


def _calls(messages: Sequence[dict[str, Any]], rollout: Any) -> list[tuple[str, Any]]:
    """The calls of both sides: those of the opening, and those that were made."""
    made = [(call.name, call.arguments) for call in getattr(rollout, "tool_calls", ())]
    opening = []
    of_user = (getattr(rollout, "user_messages", None) or {}).values()
    for message in chain(messages, *of_user):
        for call in message.get("tool_calls") or ():
            function = call["function"]
            try:
                opening.append((function["name"], json.loads(function["arguments"])))
            except ValueError:
                continue
    return [*opening, *made]


# --- NL_ASSERTION, and limits


def _trajectory(messages: Sequence[dict[str, Any]], rollout: Any) -> Iterator[tuple[str, Any]]:
    """Role and content of the messages of both sides, in their order."""
    of_user = getattr(rollout, "user_messages", None) or {}
    for position, message in enumerate([*messages, None]):
        for own in of_user.get(position, ()):
            yield ("user" if own["role"] == "assistant" else own["role"]), own.get("content")
        if message is not None and message["role"] != "system":
            yield message["role"], message.get("content")


def _limit_reached(trajectory: Sequence[tuple[str, Any]], rollout: Any, opening: int) -> str | None:
    """The limit at which the benchmark would have ended the conversation, with reward 0."""
    errors = sum(call.status != "ok" for call in getattr(rollout, "tool_calls", ()))
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
