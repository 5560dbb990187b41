"""Branches: rollouts that are restored at a step of a stored one, then played on with their own seeds.

    config = branch_config("first book.1#2@4", {"model": "openai/gpt-4o"})

They are the rollouts of an evaluation like any other, whose configuration names their origin.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.config import DEFAULTS, OPTIONS, RESULTS_FILE, EvaluationConfig
from reward_kit.agent.players.names import uses_model
from reward_kit.agent.players.wrappers import OwnFactory
from reward_kit.agent.rollout.episode import Episode
from reward_kit.agent.rollout.replaying import check_user, name_of
from reward_kit.agent.store.fingerprints import BESIDE
from reward_kit.agent.store.layout import origin_of, read_evaluation
from reward_kit.agent.store.loading import load_rollout
from reward_kit.agent.store.resume import bundle_differences, listed, make_run, resumed_options
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reward_kit.agent.bundles.bundle import BundleRows
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database import Database
    from reward_kit.agent.players.participants import Participants
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.store.fingerprints import CodeFacts
    from reward_kit.agent.store.layout import RunsFolder

ROLLOUTS = 16
"""Branches unless another number is asked for."""
_ADDRESS = re.compile(r"(?P<rollout>.+?)\s*@(?P<step>\d{1,9})")
_OF_MODEL = {
    "model": ("provider", "model_args", "temperature"),
    "sim_model": ("user_provider", "user_model_args"),
}
"""Options that belong to the model of the origin, and not to another one."""


def branch_config(name: str, given: Mapping[str, Any], *, tool_result: str | None = None) -> EvaluationConfig:
    """The configuration of branches of the rollout ``EVAL ROW#N@STEP``: its evaluation's, and ``given``.

    Without ``@STEP`` they continue from the step before the first wrong call. Raises ``UsageError`` for a
    rollout or a step that is not there, ``StorageError`` for one that cannot be read.
    """
    address = _ADDRESS.fullmatch(name.strip())
    output_dir = str(given.get("output_dir") or DEFAULTS["output_dir"])
    trace = load_rollout(address["rollout"] if address else name, output_dir)
    if trace.stored is None:
        fault = "was exported from its evaluation, which its branches need"
        raise UsageError(fault, place=name, remedy='Name it "EVALUATION ROW#1".')
    step = _step_of(trace, None if address is None else int(address["step"]))
    file = trace.stored.file.absolute()
    runs = file.parent.parent
    output_dir = output_dir if Path(output_dir).absolute() == runs else str(runs)
    options = resumed_options({**given, "resume": file.stem, "output_dir": output_dir})
    for option, belonging in _OF_MODEL.items():
        if option in given:
            options |= {one: given.get(one, DEFAULTS[one]) for one in belonging}
    agent = str(options.get("agent"))
    replays = agent.startswith(RESULTS_FILE)
    if "agent" not in given and (replays or ("model" in given and not uses_model(agent))):
        options["agent"] = None  # the one that asks a model
    if "user" in given:
        options["no_sim_user"] = False
    options |= {one: given.get(one, DEFAULTS[one]) for one in OPTIONS if OPTIONS[one].scope == "whole"}
    origin: dict[str, Any] = {"evaluation": file.stem, "rollout": trace.id, "step": step}
    if tool_result is not None:
        origin["tool_result"] = tool_result
    options |= {"resume": None, "eval_id": given.get("eval_id"), "task_ids": (trace.row_id,)}
    number = given.get("n_rollouts")
    options |= {"n_rollouts": ROLLOUTS if number is None else number, "branch_of": origin}
    return EvaluationConfig(**options)


def _step_of(trace: Trace, asked: int | None) -> int:
    if asked is None:
        wrong = (trace.failure or {}).get("step")
        if not isinstance(wrong, int):
            fault = "no step is named, and no call of it is known to be wrong"
            remedy = f"Name one of its steps, 0 to {trace.steps}: ROW#{trace.index + 1}@STEP."
            raise UsageError(fault, place=name_of(trace), remedy=remedy)
        return max(0, min(wrong - 1, trace.steps))
    if asked > trace.steps:
        fault = f"there is no step {asked}"
        raise UsageError(fault, place=name_of(trace), remedy=f"It has steps 0 to {trace.steps}.")
    return asked


class Branching:
    """The origin of the branches of an evaluation; raises ``StorageError`` if it cannot be read."""

    def __init__(self, config: EvaluationConfig, rows: BundleRows, folder: RunsFolder) -> None:
        origin = origin_of(config.branch_of)
        assert origin is not None, "branches have one"
        self._config, self._rows, self._origin = config, rows, origin
        self._file = origin.file(folder.evals)
        self._trace = load_rollout(self._file / origin.rollout)

    async def check(self, code: CodeFacts, task: Task, base: Database, participants: Participants) -> None:
        """Raise an error unless the rollout can be restored, and agent and user can continue from there.

        ``UsageError`` if the bundle has changed, for a step at which the rollout is over, and for an agent
        or user that cannot; ``BundleError`` for a tool that is not repeatable.
        """
        run = make_run(self._config, self._rows, code)
        inside = {name: one for name, one in run.code.items() if "/" in name and not name.startswith(BESIDE)}
        run = replace(run, code=inside)  # a changed agent is one to try
        changed = list(bundle_differences(run, read_evaluation(self._file)))
        place = name_of(self._trace)
        if changed:
            fault = listed("cannot be branched, because the bundle has changed since:", changed)
            raise UsageError(fault, place=place, remedy="\nUndo the changes, or play the row again.")
        agent = _made(participants.make_agent)
        if getattr(agent, "sees_answers", False) or participants.agent_spec == "fastworkflow":
            fault = "plays from the beginning, and cannot continue from a step"
            remedy = "Name another one: --model NAME, or --agent NAME."
            raise UsageError(f"the agent {participants.agent_spec} {fault}", remedy=remedy)
        check_user(_made(participants.make_user[participants.user_specs[task.row.id]]))
        with await self.begin(task, index=0, base=base, seed=0, user=None) as episode:
            if episode.stop_reason is not None:
                fault = f"the rollout is over at step {self._origin.step} ({episode.stop_reason})"
                raise UsageError(fault, place=place, remedy="Name an earlier step.")

    async def begin(self, task: Task, **options: Any) -> Episode:
        """A branch at its first step."""
        _, _, step, tool_result = self._origin
        return await Episode.from_trace(self._trace, step, bundle=task, tool_result=tool_result, **options)


def _made(make: Any) -> Any:
    return make.trial() if isinstance(make, OwnFactory) else make()
