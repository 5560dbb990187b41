"""Evaluations as results files; those of tau2-bench pass its loader and the check of its submissions."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.base.history import INTERRUPTED, NOT_RUN, parse_arguments
from reward_kit.agent.base.text import text_of
from reward_kit.agent.base.types import Usage
from reward_kit.agent.bundles.bundle import read_bundle
from reward_kit.agent.tau import MAX_ERRORS, PARTS, SIDES
from reward_kit.agent.tau.results.file import task_numbers
from reward_kit.agent.tau.results.tau2 import id_of
from reward_kit.agent.tau.results.tau_bench import results_parts
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.base.types import Side
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.store.results import EvaluationResult

logger = logging.getLogger(__name__)

ENDS = {
    "user_stop": "user_stop",
    "terminal_tool": "agent_stop",
    "agent_done": "agent_stop",
    "budget": "max_steps",
}
"""Stop reasons that are called otherwise there."""
TASKS = "theirs/tasks.json"
"""The file of a ported bundle with the benchmark's own tasks."""
_POLICY = re.compile(r"<policy>\n(.*)\n</policy>", re.DOTALL)
_ROLES: dict[Side, str] = {side: role for role, side in SIDES.items()}
_NAMES = {ours: theirs for theirs, ours in PARTS.items()}


def results_file(result: EvaluationResult, benchmark: Literal["tau-bench", "tau2"]) -> Iterator[bytes]:
    """The evaluation as a results file of a benchmark, in pieces; reads the rows of its bundle."""
    configuration = result.configuration
    with read_bundle(configuration["dataset"], configuration.get("task_dir")) as read:
        if benchmark == "tau-bench":
            return results_parts(result, task_numbers(read.rows))
        kept = read.folder / TASKS  # the benchmark's own, in a ported bundle
        tasks = json.loads(kept.read_bytes()) if kept.is_file() else []
        own = {str(one["id"]): one for one in tasks}
        return tau2_parts(result, read.folder.name.removeprefix("tau2_"), own)


def tau2_parts(
    result: EvaluationResult, domain: str, tasks: Mapping[str, dict[str, Any]] | None = None
) -> Iterator[bytes]:
    """Yield the file of an evaluation in pieces, with one trajectory in memory at a time.

    ``tasks`` are the benchmark's own, by id; others are made from the fields of their row.
    """
    known = {row.row_id: fields for row, fields in result.row_fields()}
    ids = {row_id: id_of(row_id, fields.get("metadata") or {}) for row_id, fields in known.items()}
    own = tasks or {}
    head = {
        "timestamp": _time(min((one.started for one in result.outcomes), default=0.0)),
        "info": _info(result, domain, next(iter(known.values()), {})),
        "tasks": [own.get(ids[row_id]) or _task(ids[row_id], fields) for row_id, fields in known.items()],
    }
    yield json.dumps(head, default=str).encode()[:-1] + b', "simulations": ['
    before = b"\n"
    for outcome in sorted(result.outcomes, key=lambda outcome: outcome.index):
        try:
            with result.record(outcome) as trace:
                simulation = _simulation(trace, ids[outcome.row_id])
        except StorageError as error:
            logger.warning("warning: a rollout is left out: %s", error)
            continue
        yield before + json.dumps(simulation, default=str).encode()
        before = b",\n"
    yield b"\n]}\n"


def _info(result: EvaluationResult, domain: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    used = result.configuration
    prompt = str(fields.get("system_prompt") or "")
    policy = _POLICY.search(prompt)
    temperature = used.get("temperature")
    return {
        "git_commit": f"reward-kit {version('reward-kit')}",
        "num_trials": max((len(row.outcomes) for row in result.rows), default=1),
        "max_steps": used.get("max_steps") or fields.get("max_steps") or 0,
        "max_errors": MAX_ERRORS,
        "user_info": {
            "implementation": str(used.get("user") or "llm"),
            "llm": used.get("sim_model"),
            "llm_args": dict(used.get("user_model_args") or {}),
        },
        "agent_info": {
            "implementation": str(used.get("agent")),
            "llm": result.asked_model,
            "llm_args": ({} if temperature is None else {"temperature": temperature})
            | dict(used.get("model_args") or {}),
        },
        "environment_info": {"domain_name": domain, "policy": policy.group(1) if policy else prompt},
        "seed": used.get("seed"),
    }


def _task(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A row as a task; checks by SQL, and for other values than true and false, are left out."""

    def called(one: Mapping[str, Any], side: str, named: str) -> dict[str, Any]:
        by = _ROLES[one.get("by", "agent")]
        return {side: by, named: one["name"], "arguments": one.get("arguments") or {}}

    actions = [
        {"action_id": f"{name}_{number}", **called(one, "requestor", "name")}
        for number, one in enumerate(fields.get("actions") or ())
    ]
    checks = [
        {**called(one, "env_type", "func_name"), "assert_value": one.get("is", True)}
        for one in fields.get("checks") or ()
        if isinstance(one, dict) and isinstance(one.get("is", True), bool)
    ]
    criteria = {
        "actions": actions,
        "env_assertions": checks or None,
        "communicate_info": fields.get("outputs") or None,
        "nl_assertions": fields.get("criteria"),
    }
    if fields.get("score_by"):
        criteria["reward_basis"] = [_NAMES[one] for one in fields["score_by"]]
    return {
        "id": name,
        "user_scenario": {"instructions": fields.get("sim_user_prompt") or ""},
        "ticket": fields.get("ticket"),
        "evaluation_criteria": criteria,
    }


def _simulation(trace: Trace, name: str) -> dict[str, Any]:
    reason = str(trace.stop_reason)
    return {
        "id": trace.id,
        "task_id": name,
        "timestamp": _time(trace.started + trace.seconds),
        "start_time": _time(trace.started),
        "end_time": _time(trace.started + trace.seconds),
        "duration": trace.seconds,
        "termination_reason": ENDS.get(reason, reason),
        "agent_cost": trace.usage.get("agent", Usage()).known_cost,
        "user_cost": trace.usage.get("user", Usage()).known_cost,
        "reward_info": None if reason == "infrastructure_error" else _grade(trace),
        "messages": [{**one, "turn_idx": turn} for turn, one in enumerate(_messages(trace))],
        "trial": trace.index,
        "seed": trace.seed,
        "mode": "half_duplex",
    }


def _grade(trace: Trace) -> dict[str, Any]:
    """The reward and its parts; 0 for a rollout without one, which counts as failed there."""
    scores = trace.metric_scores or {}
    parts = {_NAMES[name]: score for name, score in scores.items() if name in _NAMES}
    data = scores.get("data")
    return {
        "reward": trace.reward or 0.0,
        "db_check": None if data is None else {"db_match": data == 1, "db_reward": data},
        "reward_basis": list(parts) or None,
        "reward_breakdown": parts or None,
        "info": {"note": trace.error or trace.stop_detail or str(trace.stop_reason)},
    }


def _messages(trace: Trace) -> Iterator[dict[str, Any]]:
    """The messages of both sides in one list, without the system prompt and calls that were not run.

    Results follow each message with calls, in the order of its calls.
    """
    calls = {(call.by, call.id): call for call in trace.tool_calls}
    said = [(side, message) for _, side, message in trace.both_sides()]
    for place, (side, message) in enumerate(said):
        asked = (message["role"] == "assistant" and message.get("tool_calls")) or ()
        later = (one for by, one in said[place + 1 :] if by == side and one["role"] == "tool")
        results = {one["tool_call_id"]: one["content"] for one in islice(later, len(asked))}
        made, answers = [], []
        for call in asked:
            known = calls.get((side, call["id"]))
            content = results.get(call["id"], NOT_RUN)
            arguments = known.arguments if known else parse_arguments(call["function"]["arguments"])
            if content in (NOT_RUN, INTERRUPTED) or not isinstance(arguments, dict):
                continue  # it never reached the tool
            name = known.name if known else call["function"]["name"]
            requestor = _ROLES[side]
            made.append({"id": call["id"], "name": name, "arguments": arguments, "requestor": requestor})
            answer = {"role": "tool", "id": call["id"], "content": content, "requestor": requestor}
            answers.append({**answer, "error": known is not None and known.status != "ok"})
        if made:
            yield {"role": _ROLES[side], "content": message.get("content"), "tool_calls": made}
            yield from answers
        elif side == "agent" and not asked and message["role"] in ("user", "assistant"):
            yield {"role": message["role"], "content": text_of(message.get("content"))}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
