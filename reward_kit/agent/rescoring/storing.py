"""Storing rescored rollouts as a new evaluation beside the old one."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from reward_kit.agent.base.files import write_file
from reward_kit.agent.base.strict_json import readable_json
from reward_kit.agent.records.evaluation_file import rollout_at
from reward_kit.agent.records.loading import load_rollout
from reward_kit.agent.records.outcome import PlayedRollout
from reward_kit.agent.scoring.record_keeping import outcome_of
from reward_kit.agent.storage.fingerprints import code_of, planned
from reward_kit.agent.storage.resume import make_run
from reward_kit.agent.storage.store import Store
from reward_kit.agent.storage.stored_evaluation import has_runs, read_evaluation
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.rescoring.rescore import Rejudged, Rescoring
    from reward_kit.agent.storage.resume import Run
    from reward_kit.agent.storage.stored_evaluation import StoredEvaluation


def store_rescoring(done: Rescoring, tasks: Sequence[Task]) -> Rescoring:
    """Store ``done`` under the name that its configuration has.

    The new trajectories share the databases of the old ones. Raises ``UsageError`` if there is an evaluation
    of that name.
    """
    config, stored = done.config, done.stored
    assert config.eval_id is not None
    path = stored.path.with_stem(config.eval_id)
    counts = {row.row_id: row.planned for row in stored.rows if row.outcomes}
    known = [task for task in tasks if task.row.id in counts]
    code: dict[str, str] = {}
    for folder in {task.folder for task in known}:
        code.update(code_of(folder, config))
    source = {"rescored_from": str(stored.path)}
    run = _as_played(make_run(config, planned(known), counts, code), stored)
    # in one transaction: a part of it would be resumed as if models had to play the rest
    with Store(path) as store, store.transaction():
        check_unused(path)
        store.begin_run(replace(run, configuration={**run.configuration, **source}))
        for rollout in done.rollouts:
            store.add([_rescored(rollout, stored, config.eval_id)])
        store.end_run("complete", f"judged again from {stored.path}", done.seconds)
    result = replace(read_evaluation(path), configuration={**config.to_json(), **source})
    write_file(result.results_path, readable_json(result.to_json()))
    return replace(done, written=result)


def check_unused(path: Path) -> None:
    """Raise ``UsageError`` if a run of the evaluation at ``path`` has begun."""
    if path.exists() and has_runs(path):
        raise UsageError(
            f"there is an evaluation {path.stem} already",
            place=str(path.parent),
            remedy="Choose another --eval-id.",
        )


def _as_played(run: Run, stored: StoredEvaluation) -> Run:
    """``run`` with the tools, agent and user of the time when the rollouts were played."""
    rows = []
    for row in run.rows:
        before = stored.fingerprints.get(row.row_id, {})
        kept = {name: before[name] for name in ("tools", "parallel_tool_calls") if name in before}
        rows.append(replace(row, fingerprints={**row.fingerprints, **kept}))
    return replace(run, code={**stored.code, **run.code}, toolsets=stored.toolsets, rows=rows)


def _rescored(rollout: Rejudged, stored: StoredEvaluation, eval_id: str) -> PlayedRollout:
    """The rollout with its new reward and a new id."""
    address = stored.path / rollout.before.id
    kept, record = rollout_at(address), load_rollout(address)
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
