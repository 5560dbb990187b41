"""Rollouts in this process: the executor that imports and plays, also inside of workers."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from reward_kit.agent.after.rescore import judge_record
from reward_kit.agent.base.encoding import DAMAGED
from reward_kit.agent.base.files import write_text
from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.redaction import without_password
from reward_kit.agent.base.types import Usage
from reward_kit.agent.base.worker_thread import completed
from reward_kit.agent.database import Changes
from reward_kit.agent.evaluation.branching import Branching
from reward_kit.agent.evaluation.options import chosen_tasks, seed_of
from reward_kit.agent.evaluation.protocol import Description, Executor
from reward_kit.agent.evaluation.row_states import KeptGold, RowStates
from reward_kit.agent.models.cache import cached_models
from reward_kit.agent.models.calls import Caller, call_timeouts, model_of_rollout
from reward_kit.agent.players.agents.replay import ReplayAgent, ReplayUser
from reward_kit.agent.players.names import NO_USER
from reward_kit.agent.players.participants import Participants, find_participants
from reward_kit.agent.rollout.episode import Episode
from reward_kit.agent.rollout.judge import plain_result
from reward_kit.agent.rollout.orchestrator import play_async
from reward_kit.agent.rollout.outcome import Played
from reward_kit.agent.rollout.replaying import draw_as_in
from reward_kit.agent.rollout.rollout import PLAYERS, Budget, RolloutLimits
from reward_kit.agent.rollout.trace import redacted_warning
from reward_kit.agent.scoring.failures.classify import classify_played
from reward_kit.agent.store.fingerprints import code_facts
from reward_kit.agent.store.layout import RunsFolder
from reward_kit.agent.store.loading import load_rollout
from reward_kit.errors import DatabaseError, RewardError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from reward_kit.agent.base.types import Model, ModelCall, Role
    from reward_kit.agent.bundles.bundle import BundleRows, TaskBundle
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.evaluation.protocol import Account, PlayRequest
    from reward_kit.agent.evaluation.row_states import RowState
    from reward_kit.agent.evaluation.telemetry import Telemetry
    from reward_kit.agent.rollout.gold import GoldReplay
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.tau.results.replay import RecordedRun

SMALL_BASE = 4 * 1024 * 1024
"""Bytes of a base up to which a delta is made at once; that of a larger one in a thread."""

SQLALCHEMY = "reward_kit.agent.database.sqlalchemy_api"
IMPORT_AFTER = 0.1
"""Seconds from the first rollout to the import that its reward needs: its model is asked by then."""


@dataclass(eq=False)
class InProcess(Executor):
    """An executor that plays in this process; ``config`` is resolved.

    ``models`` and ``players`` are objects that it has the names of. ``watch`` is called with each thing that
    a watched rollout begins: ``tool 'x'``. ``recorded`` are the results of tau-bench that are replayed.
    """

    config: EvaluationConfig
    rows: BundleRows
    root: Path
    note: Callable[[str], None]
    models: Mapping[Role, Model] = field(default_factory=dict)
    players: Mapping[Role, Any] = field(default_factory=dict)
    watch: Callable[[str], None] | None = None
    recorded: RecordedRun | None = None
    _bundle: TaskBundle | None = None
    _states: RowStates | None = None
    _branching: Branching | None = None
    _opening: asyncio.Task[None] | None = None
    _telemetry: Telemetry | None = None

    def load(self) -> None:
        """Import the bundle, the agent and the users; ``describe`` does it unless this has."""
        config = self.config
        bundle = self._bundle = self.rows.open(unanswered="human" in (config.agent, config.user))
        warnings = bundle.warnings[len(self.rows.warnings) :]
        if [name for name in os.environ if name.startswith("OTEL_")]:
            from reward_kit.agent.evaluation.telemetry import open_telemetry

            self._telemetry = open_telemetry(warnings.append)
        tasks = chosen_tasks(bundle.tasks, config)
        if config.results_file is None:
            participants = find_participants(config, tasks, self.models, self.players)
            warnings += [f"skipped: {error}" for error in participants.unplayable.values()]
            tasks = [task for task in tasks if task.row.id not in participants.unplayable]
            if not tasks:
                raise next(iter(participants.unplayable.values()))
            if participants.limiters.used:
                _import_in_a_thread("aiohttp")
        else:
            from reward_kit.agent.tau.results.replay import RecordedRun

            recorded = self.recorded = RecordedRun.load(config.results_file, bundle.tasks, tasks)
            tasks, participants = recorded.tasks, _recorded_participants(recorded, config)
            warnings += recorded.warnings
        self._warnings = warnings + participants.warnings
        self._participants = participants
        self._tasks = {task.row.id: task for task in tasks}

    async def describe(self) -> Description:
        """Load everything, seed the bases, and say what they are."""
        if self._bundle is None:
            self.load()
        config, tasks, participants = self.config, [*self._tasks.values()], self._participants
        self.folder = RunsFolder(self.root)
        for seed in {task.seed.key: task.seed for task in tasks}.values():
            self.folder.ensure_base(seed)
        notes = (getattr(model, "note", None) for model in participants.models.values())
        self._warnings += dict.fromkeys(filter(None, notes))
        participants.limiters.tell = self.note
        self.room = participants.limiters.room if participants.limiters.used else None
        if config.cache:
            participants.models = cached_models(participants.models, self.root, warn=self.note)
        limits = config.max_rollout_cost, config.max_rollout_tokens
        self._limits = RolloutLimits(
            max_steps=config.max_steps,
            budget=None if limits == (None, None) else Budget(*limits, "--max-rollout"),
            timeout=config.timeout,
            reward_retries=config.retries,
            parallel_tool_calls=config.parallel_tool_calls,
            guard_user=config.guard_user,
            call_timeouts=call_timeouts(self.models, config.call_timeout) if self.models else {},
        )
        code = code_facts(tasks, self.rows.folder, config)
        kept = KeptGold(self.root, self.rows.folder, code.modules, self.note)
        self._states = RowStates(self.folder, config, kept, self.note, planned=sum(code.rows.values()))
        if config.branch_of:
            self._branching = Branching(config, self.rows, self.folder)
            async with self._states.of(tasks[0], seed_of(config, tasks[0].row.id, 0)) as row:
                await self._branching.check(code, tasks[0], row.base, participants)
        return Description(
            code=code,
            users=participants.user_specs,
            models={role: model.name for role, model in participants.models.items()},
            interactive=participants.interactive,
            replays=participants.recordings is not None
            or (participants.agent_spec == "gold" and {*participants.user_specs.values()} == {NO_USER}),
            warnings=self._warnings,
        )

    async def play(self, request: PlayRequest, account: Account) -> Played:
        """Play one attempt, or judge a stored rollout again."""
        assert self._states is not None, "describe() comes first"
        if self._opening is None:
            self._opening = asyncio.create_task(self._participants.open())
            if self._participants.limiters.used:  # without a model nothing is waited for meanwhile
                asyncio.get_running_loop().call_later(IMPORT_AFTER, _import_in_a_thread, SQLALCHEMY)
        if not self._opening.done():
            await asyncio.shield(self._opening)
        self._opening.result()
        task = self._tasks[request.row_id]
        self._states.watch = self.watch if request.watched else None
        async with self._states.of(task, seed_of(self.config, request.row_id, 0)) as row:
            if request.judge_again is not None:
                return await self._judged_again(request.judge_again, row, account)
            seed = seed_of(self.config, request.row_id, request.index, request.attempt)
            if (recorded := self._participants.recordings) is not None:  # tools draw the same numbers
                recording = recorded.find_or_none(request.row_id, request.index)
                seed = seed if recording is None else recording.seed
            with await self._begun(task, request, row, seed, account) as episode:
                if recorded is not None and recording is not None and recording.forks:
                    draw_as_in(recording, episode)
                async with row.gold_for(episode.random_numbers or seed) as gold:
                    agent = self._participants.make_agent()
                    episode.gold_fault = gold.impossible if gold else None
                    await play_async(episode, agent, gold.database if gold else None)
                    if episode.refused is not None:
                        raise episode.refused
                    return await self._kept(episode, request, row, gold)

    async def _begun(
        self, task: Task, request: PlayRequest, row: RowState, seed: int, account: Account
    ) -> Episode:
        """The episode of an attempt, at the beginning of its row or at the step of its origin."""
        # of a single row, calls that fail say nothing about the row
        place = (request.row_id, request.index) if len(self._tasks) == 1 else request.row_id
        caller = Caller(place, request.index, request.attempt)
        if (watch := self.watch if request.watched else None) is not None:
            watch(PLAYERS)
        models = self._participants.models
        options: dict[str, Any] = {
            "index": request.index,
            "base": row.base,
            "user": self._participants.user(task),
            "models": {role: model_of_rollout(one, caller) for role, one in models.items()},
            "limits": replace(self._limits, on_usage=account.used, caller=caller, on_begin=watch),
            "seed": seed,
        }
        if self._branching is not None:
            return await self._branching.begin(task, **options)
        return Episode(task, **options)

    async def _kept(
        self, episode: Episode, request: PlayRequest, row: RowState, gold: GoldReplay | None
    ) -> Played:
        """Classify a finished rollout and keep its final state if asked for, even if cancelled meanwhile."""
        trace, task, participants = episode.trace, row.task, self._participants
        trace.attempt, trace.eval_id = request.attempt, self.config.eval_id or ""
        trace.agent = without_password(participants.agent_spec)
        trace.user = participants.user_specs[task.row.id]
        trace.models = participants.models_of(trace)
        trace.usage = {role: usage for role, usage in trace.usage.items() if usage.calls}
        file: str | None = None
        state: bytes | None = None
        gold_state: bytes | None = None
        with episode.database as database:
            classify_played(trace, task, Changes(database.changes), gold)
            if row.keep == "full":
                saving = asyncio.to_thread(self.folder.save_final, database, task, trace.id)
                file = await completed(saving, f"{request.row_id}: keeping a finished rollout")
            elif row.keep == "delta" and database.mode == "overlay" and database.base_size <= SMALL_BASE:
                state = database.delta()
            elif row.keep == "delta":
                making = asyncio.to_thread(database.delta)
                state = await completed(making, f"{request.row_id}: keeping a finished rollout")
            if row.keep is not None and gold is not None and not gold.shared:
                gold_state = gold.database.delta()
        if self.config.debug:
            await completed(self._show(trace, task), f"{request.row_id}: writing its log")
        if self._telemetry is not None:
            self._telemetry.record(trace)
        unsaved, row.unsaved = row.unsaved, None  # with the row's first rollout: it is stored once
        return Played(
            trace.outcome(base=task.seed.key, database=file),
            trace.encoded(),
            state,
            gold_state,
            row_gold=unsaved,
            user_failed=any(fault["decisive"] for fault in trace.user_faults or ()),
        )

    async def _judged_again(self, rollout: str, row: RowState, account: Account) -> Played:
        """Judge a paid rollout whose reward failed; raises ``DatabaseError`` if it is damaged."""
        try:
            trace = load_rollout(self.folder.evaluation(self.config.eval_id or "") / rollout)
            if trace.redacted:
                self.note(f"judged again: {redacted_warning([trace])}")
            await self._judge(trace, row.task, account)
            assert trace.stored is not None, "it was read from the evaluation"
            with ExitStack() as opened:
                final = trace.stored.open("final", "overlay", opened)
                assert final is not None, "only what was kept is judged again"
                async with row.gold_for(trace.seed) as gold:
                    classify_played(trace, row.task, final.changes(), gold)
        except (StorageError, DatabaseError, *DAMAGED) as error:
            raise DatabaseError(f"cannot be judged again: {fault_line(error)}", place=rollout) from error
        if self.config.debug:
            await self._show(trace, row.task)
        return Played(trace.outcome(base=row.task.seed.key, scored_at=time.time()), trace.encoded())

    async def _judge(self, trace: Trace, task: Task, account: Account) -> None:
        """Set the reward of the trace, or its error."""
        calls: list[ModelCall] = []
        trace.reward = trace.result = trace.error = None
        timeout, retries = self._limits.reward_timeout, self.config.retries
        try:
            result = await judge_record(
                trace, task.reward, task, rules=task.rules, timeout=timeout, retries=retries, calls=calls
            )
            trace.reward, trace.result = float(result.score), plain_result(result)
        except RewardError as error:
            trace.error = str(error)
        finally:
            for call in calls:
                account.used("judge", call.usage, call.model)
                trace.usage.setdefault("judge", Usage()).add(call.usage)
        trace.model_calls += calls

    async def _show(self, trace: Trace, task: Task) -> None:
        from reward_kit.agent.store.transcript import transcript

        folder = await asyncio.to_thread(self.folder.row_folder, task.row.id, task.seed)
        text = transcript(trace).encode(errors="replace")
        await asyncio.to_thread(write_text, folder / f"roll_{trace.id}.log", [text], durable=False)

    async def close(self) -> None:
        """Close the players, the bases and the bundle. May be called again."""
        if self._states is not None:
            states, self._states = self._states, None
            await states.close()
            await self._participants.close()
        if self._telemetry is not None:
            telemetry, self._telemetry = self._telemetry, None
            await asyncio.to_thread(telemetry.close, self.note)
        if self._bundle is not None:
            self._bundle.close()


def _import_in_a_thread(module: str) -> None:
    """Import a large module, which this thread will need, while it waits for the disk or the network."""
    if module not in sys.modules:
        threading.Thread(target=import_module, args=(module,)).start()


def _recorded_participants(run: RecordedRun, config: EvaluationConfig) -> Participants:
    """The agent and users of a results file of tau-bench; rows in whose trials no user speaks have none."""
    spec = str(config.agent)
    rows = [task.row.id for task in run.tasks]
    return Participants(
        agent_spec=spec,
        make_agent=lambda: ReplayAgent(run.recordings),
        user_specs={row_id: spec if run.recordings.with_user(row_id) else NO_USER for row_id in rows},
        make_user={spec: lambda: ReplayUser(run.recordings), NO_USER: lambda: None},
    )
