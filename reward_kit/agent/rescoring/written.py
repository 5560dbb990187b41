"""Storing rescored rollouts as a new evaluation beside the old one."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from reward_kit.agent.base.files import sync_folder, temporary_beside, write_file
from reward_kit.agent.base.strict_json import readable_json
from reward_kit.agent.base.versions import versions
from reward_kit.agent.records.evaluation_file import read_rollout, reading
from reward_kit.agent.records.loading import load_rollout
from reward_kit.agent.records.outcome import PlayedRollout
from reward_kit.agent.scoring.record_keeping import outcome_of
from reward_kit.agent.scoring.results import EvaluationResult
from reward_kit.agent.scoring.rows import usage_of
from reward_kit.agent.storage.fingerprints import code_of, planned
from reward_kit.agent.storage.resume import make_run
from reward_kit.agent.storage.store import Store
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.rescoring.rejudged import Rejudged, Rescoring
    from reward_kit.agent.storage.resume import Run
    from reward_kit.agent.storage.stored_evaluation import StoredEvaluation


def write_evaluation(done: Rescoring, stored: StoredEvaluation, tasks: Sequence[Task]) -> EvaluationResult:
    """Store ``done``, which comes from ``stored``, under the name that its configuration has.

    The new trajectories share the databases of the old ones. Raises ``UsageError`` where there is an
    evaluation of that name.
    """
    config = done.config
    assert config.eval_id is not None
    path = stored.path.with_stem(config.eval_id)
    judged = {rollout.now.row_id for rollout in done.rollouts}
    known = [task for task in tasks if task.row.id in judged]
    code: dict[str, str] = {}
    for folder in {task.folder for task in known}:
        code.update(code_of(folder, config))
    counts = {row_id: done.planned.get(row_id, 1) for row_id in judged}
    run = make_run(config, planned(known), counts, code)
    # under another name until it is whole: a part of it would be resumed as if models had to play the rest
    part = temporary_beside(path)
    try:
        with reading(stored.path) as old, Store(part) as store:
            store.begin_run(_as_played(run, stored, done))
            played = [_rescored(rollout, old, stored, config.eval_id) for rollout in done.rollouts]
            store.add(played)
            rollouts = zip(done.rollouts, played, strict=True)
            done = replace(done, rollouts=tuple(replace(one, now=new.outcome) for one, new in rollouts))
            result = _result(done, stored)
            store.end_run(result.status, result.reason, result.seconds)
        try:
            os.link(part, path)  # unlike a rename this replaces no other evaluation
        except FileExistsError:
            raise UsageError(
                f"there is an evaluation {config.eval_id} already",
                place=str(path.parent),
                remedy="Choose another --eval-id.",
            ) from None
        except OSError:  # the file system has no links
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)
    write_file(result.results_path, readable_json(result.to_json()))
    return result


def _as_played(run: Run, stored: StoredEvaluation, done: Rescoring) -> Run:
    """``run`` with the tools, agent and user of the time when the rollouts were played."""
    rows = []
    for row in run.rows:
        before = stored.fingerprints.get(row.row_id, {})
        kept = {name: before[name] for name in ("tools", "parallel_tool_calls") if name in before}
        rows.append(replace(row, fingerprints={**row.fingerprints, **kept}))
    return replace(
        run,
        code={**stored.code, **run.code},
        toolsets=stored.toolsets,
        rows=rows,
        configuration={**run.configuration, "rescored_from": str(done.log)},
    )


def _rescored(
    rollout: Rejudged, old: sqlite3.Connection, stored: StoredEvaluation, eval_id: str
) -> PlayedRollout:
    """The rollout with its new reward and a new id."""
    kept = read_rollout(old, rollout.before.id, stored.path)
    record = load_rollout(stored.path / rollout.before.id)
    record.id = uuid.uuid4().hex
    record.eval_id = eval_id
    if rollout.fields is not None:
        record.fields = rollout.fields
    record.reward, record.result, record.error = rollout.now.reward, rollout.result, rollout.now.error
    if rollout.now.failure is None:
        record.failure = None
    elif record.failure is None:
        record.failure = {"kind": rollout.now.failure, "detail": rollout.now.failure_detail}
    outcome = outcome_of(record, final=True, database=kept.file, tool_faults=rollout.before.tool_faults)
    return PlayedRollout(outcome, record.encoded(), kept.base, kept.state, kept.gold)


def _result(done: Rescoring, stored: StoredEvaluation) -> EvaluationResult:
    config = done.config
    assert config.eval_id is not None
    return EvaluationResult(
        eval_id=config.eval_id,
        status="complete",
        reason=f"judged again from {done.log}",
        configuration={**config.to_json(), "rescored_from": str(done.log)},
        versions=versions(),
        rows=done.rows(),
        usage=usage_of([rollout.now for rollout in done.rollouts]),
        seconds=done.seconds,
        folder=stored.folder,
    )
