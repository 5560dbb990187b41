"""Many rollouts: from a configuration to results on disk, whatever comes between."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.averages import averages_of
from reward_kit.agent.event_loop import run_from_code
from reward_kit.agent.executors.in_process import InProcess
from reward_kit.agent.explain import Explainer, make_explainer
from reward_kit.agent.garbage import rare_collections
from reward_kit.agent.given_options import config_of
from reward_kit.agent.interruption import signals_set, until_interrupted
from reward_kit.agent.model_cache import cached_models
from reward_kit.agent.own_models import call_timeouts
from reward_kit.agent.own_progress import own_progress
from reward_kit.agent.participants import Participants, check_asked_user, find_participants
from reward_kit.agent.plugins import name_of
from reward_kit.agent.redaction import redact
from reward_kit.agent.results import EvaluationResult, Status, passes_of, usage_of
from reward_kit.agent.runs.atomic_file import readable_json, write_file
from reward_kit.agent.runs.broken_off import BrokenOff
from reward_kit.agent.runs.comparison import compare_evaluation
from reward_kit.agent.runs.open_evaluation import OpenEvaluation
from reward_kit.agent.runs.resume import find_evaluation
from reward_kit.agent.schedule import chosen_tasks
from reward_kit.agent.storage import RunsFolder
from reward_kit.agent.tally import Progress, Tally, note, teller
from reward_kit.agent.tau_bench.recorded_run import RecordedRun, recorded_run
from reward_kit.agent.tau_bench.task_numbers import task_numbers
from reward_kit.agent.versions import versions
from reward_kit.errors import RewardKitError, StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from reward_kit.agent.agents import Agent
    from reward_kit.agent.bundle import TaskBundle
    from reward_kit.agent.completion import Model
    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.executors import Executor
    from reward_kit.agent.limits import Budget
    from reward_kit.agent.rollout import Role
    from reward_kit.agent.users import User


logger = logging.getLogger(__name__)


async def run_evaluation(
    config: EvaluationConfig | str | Path | None = None,
    *,
    agent: str | Agent | Callable[..., Any] | None = None,
    user: str | User | Callable[..., Any] | None = None,
    progress: Progress | None = None,
    models: Mapping[Role, Model | Callable[..., Any]] | None = None,
    **options: Any,
) -> EvaluationResult:
    """Run an evaluation, or continue one, and return its results.

    ``config`` is a configuration, or a dataset with ``options`` beside it: the fields of
    ``EvaluationConfig``, as on the command line. ``agent`` and ``user`` play in place of those that the
    configuration names: a name, a class or a factory that makes one for each rollout, a function of a
    rollout, or an object that plays all of them. ``models`` are asked in place of those that the
    configuration names: a policy in training, for instance. A function is one, too (see
    ``own_models.FunctionModel``).
    Raises ``UsageError``, ``BundleError``, ``ModelSetupError`` and ``StorageError`` for what a person must
    mend; rollouts that are over by then are kept, and the same ``eval_id`` continues. So does cancelling.
    """
    asked = config_of(config, options)
    return await Evaluation(asked, agent=agent, user=user, progress=progress, models=models).run()


def agent_eval(
    dataset: str | Path | EvaluationConfig | None = None,
    *,
    agent: str | Agent | Callable[..., Any] | None = None,
    user: str | User | Callable[..., Any] | None = None,
    progress: Progress | None = None,
    models: Mapping[Role, Model | Callable[..., Any]] | None = None,
    **options: Any,
) -> EvaluationResult:
    """Run an evaluation from plain code, a notebook included.

    ``agent_eval("my_task/task.jsonl", agent="gold", n_rollouts=4)``: arguments and errors are those of
    ``run_evaluation``.
    """
    config = config_of(dataset, options)
    return run_from_code(run_evaluation(config, agent=agent, user=user, progress=progress, models=models))


def open_bundle(config: EvaluationConfig) -> TaskBundle:
    """Load the bundle that ``config`` names; ``UsageError`` where it names none."""
    from reward_kit.agent.bundle import TaskBundle

    if config.dataset is None and config.task_dir is None:
        raise UsageError(
            "no dataset is given", remedy="Name one with --dataset, or a bundle's folder with --task-dir."
        )
    return TaskBundle.load(config.dataset, task_dir=config.task_dir)


class Evaluation:
    """One run of an evaluation; ``result`` holds what there is of it, also after an error.

    ``tally`` has the numbers while it runs, ``task_numbers`` what tau-bench calls the rows. ``warn`` is told
    what is odd in the bundle, before anything runs.
    """

    def __init__(
        self,
        config: EvaluationConfig,
        *,
        agent: str | Agent | Callable[..., Any] | None = None,
        user: str | User | Callable[..., Any] | None = None,
        progress: Progress | None = None,
        models: Mapping[Role, Model | Callable[..., Any]] | None = None,
        warn: Callable[[str], None] = logger.warning,
    ) -> None:
        given: dict[Role, Any] = {"agent": agent, "user": user}
        names: dict[str, Any] = {role: name_of(one) for role, one in given.items() if one is not None}
        # a copy: what the environment and the bundle decide is filled in below
        self.config = replace(config, **names)
        self._players = {role: one for role, one in given.items() if not isinstance(one, str | None)}
        self._models = models or {}
        self.result: EvaluationResult | None = None
        self.tally: Tally | None = None
        self.task_numbers: dict[str, int] = {}
        self._recorded: RecordedRun | None = None
        self._explainer: Explainer | None = None
        self._without_price: list[str] = []
        self._progress = own_progress(progress)
        self._warn = warn

    async def run(self, *, killed: Callable[[], str] | None = None) -> EvaluationResult:
        """Run to the end and write the results.

        With ``killed``, SIGINT and SIGTERM end it in good order (status ``interrupted``) while rollouts run;
        a second one ends the process at once, with exit code 130 and ``killed()`` as its last words.
        """
        config = self.config
        with rare_collections(), open_bundle(config) as bundle:
            for warning in bundle.warnings:
                self._warn(warning)
            tasks = chosen_tasks(bundle.tasks, config)
            self.task_numbers = task_numbers(bundle.tasks)
            self._recorded = recorded_run(config, bundle.tasks, tasks)
            if self._recorded is None:
                participants = find_participants(config, tasks, self._models, self._players)
                if config.max_cost is not None:
                    named = participants.models.values()
                    self._without_price = [model.name for model in named if _has_no_price(model)]
                check_asked_user(participants, config.user)
            else:
                tasks, participants = self._recorded.tasks, self._recorded.participants
                for warning in self._recorded.warnings:
                    self._warn(warning)
            self._check_executor(participants)
            self._explainer = make_explainer(config, participants.gates)
            # absolute: a tool that changes to another folder does not take the results with it
            folder = RunsFolder(Path(config.output_dir).absolute())
            participants.models = cached_models(participants.models, config, folder.root, warn=self._warn)
            for seed in {task.seed.key: task.seed for task in tasks}.values():
                folder.ensure_base(seed)
            config.eval_id = self._eval_id(folder)
            with OpenEvaluation(folder, config, tasks) as opened, _debug_log(opened, config):
                if opened.warning is not None:
                    self._warn(opened.warning)
                signalled = asyncio.Event()
                handling = nullcontext() if killed is None else signals_set(signalled, killed)
                with handling:
                    return await self._run(opened, participants, signalled)

    def _tell_unpriced(self, spending: Budget) -> None:
        """Tell of models that ``--max-cost`` does not see: now if that is known, else when they answer."""
        spending.tell_unpriced = lambda model: self._warn(_unpriced(model, "may not see"))
        for model in self._without_price:
            spending.unpriced(model)
        spending.tell_unpriced = lambda model: note(self._progress, _unpriced(model, "does not see"))

    def _eval_id(self, folder: RunsFolder) -> str:
        if self.config.eval_id:
            return self.config.eval_id
        if self.config.resume:
            return find_evaluation(folder.evals, self.config.resume).stem
        return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"

    async def _run(
        self, opened: OpenEvaluation, participants: Participants, signalled: asyncio.Event
    ) -> EvaluationResult:
        tally = self.tally = opened.tally()
        tally.interactive = participants.interactive
        if self.config.max_cost is not None:
            self._tell_unpriced(tally.spending)
        participants.gates.tell = teller(self._progress) or participants.gates.tell
        executor = self._executor(opened, participants, tally)
        status: Status = "stopped"
        reason: str | None = None

        async def work() -> None:
            await executor.run()
            if opened.unjudged:
                from reward_kit.agent.rescoring.on_resume import Rejudging

                await Rejudging(self.config, opened, participants, tally, self._progress).run()
            if self._explainer is not None:
                over = [one for row in opened.row_results(executor.outcomes) for one in row.outcomes]
                await self._explainer.explain(
                    over,
                    folder=opened.folder.root,
                    eval_id=tally.eval_id,
                    spent=tally.spending.spent,
                )

        try:
            interrupted = await until_interrupted(work(), signalled)
            status, reason = _end(tally, interrupted=interrupted)
        except asyncio.CancelledError:
            status, reason = "interrupted", "cancelled"
            raise
        except RewardKitError as error:
            reason = str(error)
            raise
        finally:
            await executor.close()
            self.result = self._result(opened, participants, executor, tally, status, reason)
            self._write(self.result, may_fail=status == "stopped")
            self._progress.closed(tally)
        return self.result

    def _check_executor(self, participants: Participants) -> None:
        """Raise ``UsageError`` for what other processes cannot play, before anything is written."""
        if not self._is_shared_out:
            return
        if participants.interactive or self._models or self._players or self._recorded is not None:
            raise UsageError(
                f"{'--workers' if self.config.ray is None else '--ray'} goes with no person at the "
                "terminal, no models, agents or users given from Python, and no --from-tau-bench",
                remedy="Name an agent or user of your own: module:factory." if self._players else None,
            )
        if self.config.ray is not None:
            from reward_kit.agent.executors.ray_cluster import check_ray

            check_ray(self.config, participants)

    @property
    def _is_shared_out(self) -> bool:
        return self.config.workers > 1 or self.config.ray is not None

    def _executor(self, opened: OpenEvaluation, participants: Participants, tally: Tally) -> Executor:
        if self._is_shared_out:
            if self.config.ray is not None:
                from reward_kit.agent.executors.ray_cluster import RayCluster

                return RayCluster(self.config, opened, participants, tally, self._progress)
            from reward_kit.agent.executors.worker_processes import WorkerProcesses

            return WorkerProcesses(self.config, opened, participants, tally, self._progress)
        return InProcess(
            config=self.config,
            jobs=opened.jobs,
            participants=participants,
            folder=opened.folder,
            log=opened.log,
            tally=tally,
            progress=self._progress,
            call_timeouts=call_timeouts(self._models, self.config.call_timeout),
        )

    def _result(
        self,
        opened: OpenEvaluation,
        participants: Participants,
        executor: Executor,
        tally: Tally,
        status: Status,
        reason: str | None,
    ) -> EvaluationResult:
        recordings = participants.recordings
        rows = opened.row_results(executor.outcomes)
        broken_off = BrokenOff()
        broken_off.add(opened.broken_off)
        broken_off.add(executor.broken_off)
        outcomes = [outcome for row in rows for outcome in row.outcomes]
        return EvaluationResult(
            eval_id=tally.eval_id,
            status=status,
            reason=reason,
            configuration=self.config.to_json(),
            versions=versions(),
            rows=rows,
            passes=passes_of(rows, seed=self.config.seed),
            averages=averages_of(rows, seed=self.config.seed),
            usage=usage_of([*opened.earlier, *executor.outcomes]),
            broken_off=broken_off,
            seconds=opened.seconds_before + tally.seconds,
            folder=opened.folder.root,
            agreement=self._recorded.agreement(outcomes) if self._recorded is not None else None,
            explanations=self._explainer.result if self._explainer is not None else None,
            compared_with=compare_evaluation(outcomes, opened.folder.root, recordings)
            if recordings
            else None,
        )

    def _write(self, result: EvaluationResult, *, may_fail: bool) -> None:
        """Write the results; an error that is on its way already (a full disk) is not hidden by another."""
        with suppress(*([StorageError] if may_fail else [])):
            write_file(result.results_path, readable_json(result.to_json()))


@contextmanager
def _debug_log(opened: OpenEvaluation, config: EvaluationConfig) -> Iterator[None]:
    """With ``--debug``, what the package notes (where an agent, tool or reward raised) goes to a file."""
    if not config.debug:
        yield
        return
    logger = logging.getLogger("reward_kit")
    level = logger.level
    handler = logging.FileHandler(opened.log.path.with_suffix(".log"), encoding="utf-8", errors="replace")
    handler.setFormatter(_WithoutSecrets(config))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()


class _WithoutSecrets(logging.Formatter):
    """Tracebacks hold what providers answered, and some of them repeat the key."""

    def __init__(self, config: EvaluationConfig) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._secrets = config.secrets()

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record), self._secrets)


def _unpriced(model: str, sees: str) -> str:
    return (
        f"--max-cost {sees} the calls of {model}: no price is known under this name. Use --max-tokens, or "
        "give it: --model-arg (--user-model-arg) input_cost_per_token=USD and output_cost_per_token=USD"
    )


def _has_no_price(model: Model) -> bool:
    """Whether this is known without a call; LiteLLM's prices depend on more than a model's name."""
    from reward_kit.agent.openai_http.model import OpenAIModel
    from reward_kit.agent.openai_http.prices import has_price

    return isinstance(model, OpenAIModel) and not has_price(model.identity()["model"])


def _end(tally: Tally, *, interrupted: bool) -> tuple[Status, str | None]:
    if interrupted:
        return "interrupted", "by a signal"
    if tally.done < tally.planned and tally.used_up is not None:
        return "budget", tally.used_up
    return "complete", None
