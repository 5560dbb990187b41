"""An evaluation: many rollouts, from a configuration to results on disk."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import readable_json
from reward_kit.agent.base.files import write_text
from reward_kit.agent.base.redaction import redact
from reward_kit.agent.base.versions import versions
from reward_kit.agent.bundles.bundle import read_bundle
from reward_kit.agent.evaluation.in_process import InProcess
from reward_kit.agent.evaluation.job_runner import JobRunner
from reward_kit.agent.evaluation.open_evaluation import OpenEvaluation
from reward_kit.agent.evaluation.options import EvaluationOptions, config_of
from reward_kit.agent.evaluation.progress import NoProgress, Progress, Tally, note
from reward_kit.agent.evaluation.protocol import planned_tasks
from reward_kit.agent.evaluation.rounds import Rounds
from reward_kit.agent.evaluation.signals import run_from_code, signals_handled, until_stopped
from reward_kit.agent.models.cache import cached_models
from reward_kit.agent.players.names import name_of
from reward_kit.agent.store import kept_gold
from reward_kit.agent.store.layout import RunsFolder
from reward_kit.agent.store.resume import make_run
from reward_kit.agent.store.writer import Saver
from reward_kit.errors import RewardKitError, StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from typing_extensions import Unpack

    from reward_kit.agent.after.explainer import Explainer
    from reward_kit.agent.base.types import Model, Role
    from reward_kit.agent.bundles.bundle import BundleRows
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.evaluation.fork_server import ForkServer
    from reward_kit.agent.evaluation.protocol import Description, Executor
    from reward_kit.agent.players.agents import Agent
    from reward_kit.agent.players.users import User
    from reward_kit.agent.rows.task_row import TaskRow
    from reward_kit.agent.store.results import EvaluationResult, Status


logger = logging.getLogger(__name__)

_NOT_COUNTED = {"agreement", "explanations", "compared_with", "decision"}
"""Results that do not follow from the stored rollouts."""


async def evaluate_async(
    dataset: EvaluationConfig | str | Path | None = None,
    *,
    agent: str | Agent | Callable[..., Any] | None = None,
    user: str | User | Callable[..., Any] | None = None,
    progress: Progress | bool | None = None,
    models: Mapping[Role, Model | Callable[..., Any]] | None = None,
    **options: Unpack[EvaluationOptions],
) -> EvaluationResult:
    """Run an evaluation, or continue one, and return its results.

    ``dataset`` is a path with ``options`` beside it, named as on the command line, or an
    ``EvaluationConfig``. ``agent`` and ``user`` replace those that the options name: each is a name, a class
    or a factory that makes one for each rollout, a function of a rollout, or an object that plays them all.
    ``models`` replace the models that the options name: a policy in training, for instance, or a function
    (see ``FunctionModel``). ``progress=True`` shows the progress like the command line, also in a notebook;
    an object shows it in its own way.
    Raises ``UsageError``, ``BundleError``, ``ModelSetupError`` and ``StorageError`` for what the caller has
    to fix. Finished rollouts are kept then, and when this is cancelled; the same ``eval_id`` continues.
    """
    config = config_of(dataset, options)
    if progress is True:
        from reward_kit.agent.evaluation.terminal_progress import default_progress

        progress = default_progress()
    shown = progress or None
    return await Evaluation(config, agent=agent, user=user, progress=shown, models=models).run()


def evaluate(
    dataset: EvaluationConfig | str | Path | None = None,
    *,
    agent: str | Agent | Callable[..., Any] | None = None,
    user: str | User | Callable[..., Any] | None = None,
    progress: Progress | bool | None = None,
    models: Mapping[Role, Model | Callable[..., Any]] | None = None,
    **options: Unpack[EvaluationOptions],
) -> EvaluationResult:
    """Run an evaluation from plain code, also in a notebook; see ``evaluate_async``.

    ``evaluate("my_task/task.jsonl", agent="gold", n_rollouts=4)``
    """
    work = evaluate_async(dataset, agent=agent, user=user, progress=progress, models=models, **options)
    return run_from_code(work)


agent_eval = evaluate
"""An older name of ``evaluate``."""
run_evaluation = evaluate_async
"""An older name of ``evaluate_async``."""


def read_rows(config: EvaluationConfig) -> BundleRows:
    """Read the rows of the bundle that ``config`` names; raises ``UsageError`` if it names none."""
    if config.dataset is None and config.task_dir is None:
        raise UsageError(
            "no dataset is given", remedy="Name one with --dataset, or a bundle's folder with --task-dir."
        )
    return read_bundle(config.dataset, config.task_dir)


def new_name() -> str:
    """Make a name for an evaluation: the time and a random part."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


class Evaluation:
    """One run of an evaluation.

    ``result`` holds the results so far, also after an error; ``tally`` the numbers while it runs;
    ``rows`` all rows of the dataset. ``warn`` gets oddities of the bundle before anything runs. ``server``
    forks the workers, if there are any.
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
        server: ForkServer | None = None,
    ) -> None:
        given: dict[Role, Any] = {"agent": agent, "user": user}
        names: dict[str, Any] = {role: name_of(one) for role, one in given.items() if one is not None}
        names["eval_id"] = config.eval_id or new_name()
        self.config = replace(config, **names)
        self.result: EvaluationResult | None = None
        self.tally: Tally | None = None
        self.rows: Sequence[TaskRow] = ()
        self._players = {role: one for role, one in given.items() if not isinstance(one, str | None)}
        self._models = models or {}
        self._progress = progress or NoProgress()
        self._warn = warn
        self._server = server
        self._unpriced: set[str] = set()
        self._rounds: Rounds | None = None

    async def run(self, *, last_words: Callable[[], str] | None = None) -> EvaluationResult:
        """Run to the end and write the results.

        With ``last_words``, SIGINT and SIGTERM end it in order (status ``interrupted``) while rollouts run; a
        second one prints ``last_words()`` and ends the process at once, with exit code 130.
        """
        # absolute: a tool that changes to another folder does not take the results with it
        root = Path(self.config.output_dir).absolute()
        if self.config.against is not None:
            self._rounds = Rounds(self.config, root)
            self.config = replace(self.config, against=self._rounds.against)
        with read_rows(self.config) as rows:
            for warning in rows.warnings:
                self._warn(warning)
            self.rows = rows.rows
            explainer = None
            if self.config.explain is not None:
                from reward_kit.agent.after.explainer import make_explainer

                explainer = make_explainer(self.config)
            executor = self._executor(rows, root)
            try:
                description = await executor.describe()
                self.config = replace(self.config, **description.options)
                for warning in description.warnings:
                    self._warn(warning)
                if description.interactive and not isinstance(executor, InProcess):
                    raise UsageError(
                        "a person at the terminal cannot play in another process", remedy="Omit --workers."
                    )
                tasks = planned_tasks(rows, description)
                if self._rounds is not None:
                    planned = {task.row.id: task.row.n_rollouts for task in tasks}
                    self._rounds.check(make_run(self.config, tasks, planned, description.code), self._warn)
                with (
                    OpenEvaluation(RunsFolder(root), self.config, tasks, description) as opened,
                    _debug_log(opened.store.path.with_suffix(".log"), self.config),
                ):
                    if opened.warning is not None:
                        self._warn(opened.warning)
                    stop = asyncio.Event()
                    handled = nullcontext() if last_words is None else signals_handled(stop, last_words)
                    with handled:
                        return await self._run(opened, executor, description, explainer, stop)
            finally:
                await executor.close()

    def _executor(self, rows: BundleRows, root: Path) -> Executor:
        config = self.config
        assert config.eval_id is not None
        if config.clear_cache:
            kept_gold.clear(root)
        if not config.workers and config.ray is None:
            given = {"models": self._models, "players": self._players}
            return InProcess(config, rows, root, self.note, eval_id=config.eval_id, **given)
        is_here = self._models or self._players or config.from_tau_bench
        if is_here or "human" in (config.agent, config.user):
            raise UsageError(
                f"{'--workers' if config.ray is None else '--ray'} cannot be combined with a person at the "
                "terminal, with models, agents or users given from Python, or with --from-tau-bench",
                remedy="Name an agent or user of your own: module:factory." if self._players else None,
            )
        if config.clear_cache:
            cached_models({}, config, root, warn=self._warn)
        from reward_kit.agent.evaluation.workers import Workers

        cluster = None
        if config.ray is not None:
            from reward_kit.agent.evaluation.ray_cluster import RayCluster

            cluster = RayCluster(config, rows, root, self.note)
        return Workers(
            config, rows, root, self.note, eval_id=config.eval_id, cluster=cluster, server=self._server
        )

    async def _run(
        self,
        opened: OpenEvaluation,
        executor: Executor,
        description: Description,
        explainer: Explainer | None,
        stop: asyncio.Event,
    ) -> EvaluationResult:
        tally = self.tally = opened.tally()
        tally.interactive = description.interactive
        saver = Saver(opened.store)
        jobs = JobRunner(
            self.config, description, executor, saver, tally, self._progress, self._warn_of_unpriced
        )
        status: Status = "stopped"
        reason: str | None = None

        async def work() -> None:
            if self._rounds is not None and self.config.until_decided:
                await self._rounds.run(opened, jobs, tally, partial(note, self._progress))
            else:
                await jobs.run(opened.jobs)
                await jobs.judge_again(opened.unjudged)
            if explainer is not None:
                await explainer.explain(opened.read().outcomes, opened.store, spent=tally.usage.paid)

        self._progress.started(tally)
        try:
            interrupted = await until_stopped(work(), stop)
            status, reason = _end(tally, interrupted=interrupted)
        except asyncio.CancelledError:
            status, reason = "interrupted", "cancelled"
            raise
        except RewardKitError as error:
            reason = str(error)
            raise
        finally:
            await executor.close()
            fault = await saver.close()
            if fault is not None:
                self.note(f"the usage of aborted rollouts is not stored: {fault}")
            ended = {"status": status, "reason": reason, "seconds": opened.seconds_before + tally.seconds}
            with suppress(*([StorageError] if status == "stopped" else [])):  # the first error is raised
                result = self.result = self._result(opened, executor, explainer, ended)
                plain = result.members()
                alone = {name: plain[name] for name in plain.keys() & _NOT_COUNTED}
                opened.store.end_run(status, reason, tally.seconds, alone)
                write_text(result.results_path, readable_json(plain))
            self._progress.closed(tally)
            for name in sorted(opened.store.hidden):
                self._warn(f"the value of {name} is hidden in stored texts")
        return result

    def _result(
        self,
        opened: OpenEvaluation,
        executor: Executor,
        explainer: Explainer | None,
        ended: Mapping[str, Any],
    ) -> EvaluationResult:
        """The results as stored, with what only this run knows."""
        stored = replace(opened.read(), configuration=self.config.to_json(), versions=versions(), **ended)
        outcomes = stored.outcomes
        recorded = executor.recorded if isinstance(executor, InProcess) else None
        agent = self.config.agent or ""
        compared = None
        if agent.startswith("replay:"):
            from reward_kit.agent.comparison.replay import compare_replay
            from reward_kit.agent.store.recording import Recordings

            recordings = Recordings.load(Path(agent.removeprefix("replay:")))
            compared = compare_replay(outcomes, opened.folder.root, recordings)
        return replace(
            stored,
            decision=self._rounds.decide(stored) if self._rounds is not None else None,
            agreement=recorded.agreement(outcomes, opened.folder.root) if recorded is not None else None,
            explanations=explainer.result if explainer is not None else None,
            compared_with=compared,
        )

    def note(self, text: str) -> None:
        """Show a message with the progress; as a warning without one, or before anything runs."""
        if self.tally is None or type(self._progress) is NoProgress:
            self._warn(text)
        else:
            note(self._progress, text)

    def _warn_of_unpriced(self, model: str) -> None:
        """Warn once of a model that ``--max-cost`` does not see."""
        if self.config.max_cost is not None and model not in self._unpriced:
            self._unpriced.add(model)
            self.note(
                f"--max-cost does not see the calls of {model}: no price is known under this name. Use "
                "--max-tokens, or set it: --model-arg (--user-model-arg) input_cost_per_token=USD and "
                "output_cost_per_token=USD"
            )


@contextmanager
def _debug_log(path: Path, config: EvaluationConfig) -> Iterator[None]:
    """With ``--debug``, log to a file what the package notes: where an agent, tool or reward raised, say."""
    if not config.debug:
        yield
        return
    logger = logging.getLogger("reward_kit")
    level = logger.level
    handler = logging.FileHandler(path, encoding="utf-8", errors="replace")
    handler.setFormatter(_RedactingFormatter(config))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()


class _RedactingFormatter(logging.Formatter):
    """Keeps keys out of the log: tracebacks hold what providers answered, and some repeat the key."""

    def __init__(self, config: EvaluationConfig) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._secrets = config.secrets()

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record), self._secrets)


def _end(tally: Tally, *, interrupted: bool) -> tuple[Status, str | None]:
    if interrupted:
        return "interrupted", "by a signal"
    if tally.done < tally.planned and tally.used_up is not None:
        return "budget", tally.used_up
    return "complete", None
