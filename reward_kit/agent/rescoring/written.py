"""Writing down what judging an evaluation again came to: a new evaluation beside the old one."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from reward_kit.agent.averages import averages_of
from reward_kit.agent.record_keeping import outcome_of
from reward_kit.agent.results import EvaluationResult, passes_of, usage_of
from reward_kit.agent.runs.atomic_file import readable_json, sync_folder, write_file
from reward_kit.agent.runs.evaluation_lock import EvaluationLock
from reward_kit.agent.runs.evaluation_log import EvaluationLog
from reward_kit.agent.runs.resume import make_header
from reward_kit.agent.runs.rollout_record import RolloutRecord, load_rollout
from reward_kit.agent.runs.stored_evaluation import load_evaluation
from reward_kit.agent.storage import RunsFolder
from reward_kit.agent.versions import versions
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.rescoring.rejudged import Rejudged, Rescoring
    from reward_kit.agent.runs.resume import Header
    from reward_kit.agent.runs.stored_evaluation import StoredEvaluation


def write_evaluation(done: Rescoring, tasks: Sequence[Task]) -> EvaluationResult:
    """Write log, trajectories and results of ``done`` under the name that its configuration has.

    The trajectories are new files that name the databases of the old ones. Raises ``UsageError`` where there
    is an evaluation of that name.
    """
    config = done.config
    assert config.eval_id is not None
    folder = RunsFolder(done.log.parent.parent)
    path = folder.evals / f"{config.eval_id}.jsonl"
    judged = {rollout.now.row_id for rollout in done.rollouts}
    known = [task for task in tasks if task.row.id in judged]
    header = make_header(config, known, {row_id: done.planned.get(row_id, 1) for row_id in judged})
    _keep_what_played(header, load_evaluation(done.log))
    with ExitStack() as opened:
        opened.callback(EvaluationLock(path.with_suffix(".lock")).release)
        if path.exists():
            raise UsageError(
                f"there is an evaluation {config.eval_id} already",
                place=str(folder.evals),
                remedy="Choose another --eval-id.",
            )
        # under another name until it is whole: a part would be continued as if models had to play the rest
        part = path.with_name(f".{path.name}.tmp")
        try:
            log = EvaluationLog(part)
            opened.callback(log.close)
            log.append({**header.to_json("evaluation"), "rescored_from": str(done.log)})
            rollouts = []
            for rollout in done.rollouts:
                outcome = _written(rollout, folder, config.eval_id)
                log.append({"kind": "rollout", **outcome.to_json()})
                rollouts.append(replace(rollout, now=outcome))
            result = _result(replace(done, rollouts=tuple(rollouts)), folder)
            write_file(result.results_path, readable_json(result.to_json()))
            log.close()  # Windows renames no open file
            part.replace(path)
            sync_folder(path.parent)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    return result


def _keep_what_played(header: Header, played: StoredEvaluation) -> None:
    """The rollouts had the tools, and were played by the agent and user, of then."""
    header.code = {**played.code, **header.code}
    header.toolsets = dict(played.toolsets)
    for row_id, row in header.rows.items():
        before = played.fingerprints.get(row_id, {})
        row |= {name: before[name] for name in ("tools", "parallel_tool_calls") if name in before}


def _written(rollout: Rejudged, folder: RunsFolder, eval_id: str) -> RolloutOutcome:
    """Write the trajectory with the new reward; one that cannot be read any more is left as it is."""
    try:
        record: RolloutRecord = load_rollout(folder.root / rollout.before.file)
    except StorageError:
        return rollout.now
    record.id = uuid.uuid4().hex
    record.eval_id = eval_id
    if rollout.fields is not None:
        record.fields = rollout.fields
    record.reward, record.result, record.error = rollout.now.reward, rollout.result, rollout.now.error
    if rollout.now.failure is None:
        record.failure = None
    elif record.failure is None:
        record.failure = {"kind": rollout.now.failure, "detail": rollout.now.failure_detail}
    row_folder = folder.root / record.row_id
    path = folder.write_record(record, row_folder)
    file = f"{row_folder.name}/{path.name}"
    return outcome_of(record, file=file, final=True, tool_faults=rollout.before.tool_faults)


def _result(done: Rescoring, folder: RunsFolder) -> EvaluationResult:
    rows = done.rows()
    config = done.config
    assert config.eval_id is not None
    return EvaluationResult(
        eval_id=config.eval_id,
        status="complete",
        reason=f"judged again from {done.log}",
        configuration={**config.to_json(), "rescored_from": str(done.log)},
        versions=versions(),
        rows=rows,
        passes=passes_of(rows, seed=config.seed),
        averages=averages_of(rows, seed=config.seed),
        usage=usage_of([rollout.now for rollout in done.rollouts]),
        seconds=done.seconds,
        folder=folder.root,
    )
