"""An evaluation: many rollouts, from options to results on disk."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.files import as_storage_error
from reward_kit.agent.base.redaction import redact
from reward_kit.agent.base.versions import versions
from reward_kit.agent.base.worker_thread import sync_twin
from reward_kit.agent.bundles.bundle import read_bundle
from reward_kit.agent.evaluation.branching import branch_config
from reward_kit.agent.evaluation.in_process import InProcess
from reward_kit.agent.evaluation.job_runner import JobRunner
from reward_kit.agent.evaluation.options import EvaluationOptions, config_of, resolve
from reward_kit.agent.evaluation.plan import Rounds, make_plan
from reward_kit.agent.evaluation.progress import Display, default_progress
from reward_kit.agent.evaluation.row_states import clear_gold
from reward_kit.agent.evaluation.signals import run_from_code, signals_handled
from reward_kit.agent.models.cache import FOLDER, AnswerStore
from reward_kit.agent.models.function import checked_models
from reward_kit.agent.players.participants import large_library
from reward_kit.agent.store.layout import read_evaluation
from reward_kit.agent.store.resume import make_run
from reward_kit.agent.store.writer import Saver, Store
from reward_kit.errors import RewardKitError, StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from typing_extensions import Unpack

    from reward_kit.agent.after.explainer import Explainer
    from reward_kit.agent.base.types import Model, Role
    from reward_kit.agent.bundles.bundle import BundleRows
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.evaluation.fork_server import ForkServer
    from reward_kit.agent.evaluation.plan import Plan
    from reward_kit.agent.evaluation.protocol import Executor
    from reward_kit.agent.store.results import EvaluationResult, Status


async def evaluate_async(
    dataset: EvaluationConfig | str | Path | None = None, **options: Unpack[EvaluationOptions]
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
    given: dict[str, Any] = {**options}
    progress, models = given.pop("progress", None), given.pop("models", None)
    players: dict[Role, Any] = {"agent": given.pop("agent", None), "user": given.pop("user", None)}
    if progress is True:
        progress = default_progress()
    players = {role: one for role, one in players.items() if one is not None}
    return await run(config_of(dataset, given), Display(progress or None), players=players, models=models)


evaluate = sync_twin(evaluate_async, run_from_code)


async def branch_async(
    name: str, *, tool_result: str | None = None, **options: Unpack[EvaluationOptions]
) -> EvaluationResult:
    """Play on from a step of a stored rollout, ``n_rollouts`` times (default: 16); return the results.

    ``name`` is like "EVAL ROW#1@4": after the fourth step of the agent; without ``@STEP``, before the first
    wrong call. ``tool_result`` is what the agent sees instead of the result of that step's tool call. All
    else is as it was in the evaluation of the rollout, or as the arguments say, which are those of
    ``evaluate_async``. Raises the same errors, and ``BundleError`` for a tool that is not repeatable.
    """
    beside: Any = {one: options.get(one) for one in ("agent", "user", "progress", "models")}
    named = {one: given for one, given in options.items() if one not in beside or isinstance(given, str)}
    named |= {} if beside["user"] is None else {"no_sim_user": False}
    return await evaluate_async(branch_config(name, named, tool_result=tool_result), **beside)


branch = sync_twin(branch_async, run_from_code)
agent_eval = evaluate
"""An older name of ``evaluate``."""
run_evaluation = evaluate_async
"""An older name of ``evaluate_async``."""


async def run(
    config: EvaluationConfig,
    display: Display,
    *,
    players: Mapping[Role, Any] | None = None,
    models: Mapping[Role, Model | Callable[..., Any]] | None = None,
    server: ForkServer | None = None,
    last_words: Callable[[], str] | None = None,
) -> EvaluationResult:
    """Run an evaluation to its end, write its results and return them.

    ``players`` and ``models`` take the place of those that ``config`` names. ``server`` forks the workers, if
    there are any, and is closed. With ``last_words``, SIGINT and SIGTERM end the evaluation in order (status
    ``interrupted``) while rollouts run; a second one prints ``last_words()`` and ends the process at once.
    """
    # absolute: a tool that changes to another folder does not take the results with it
    root = Path(config.output_dir).absolute()
    given_models = checked_models(models) if models is not None else {}
    players = players or {}
    rounds = Rounds(config, root) if config.against is not None else None
    if config.dataset is None and config.task_dir is None:
        remedy = "Name one with --dataset, or a bundle's folder with --task-dir."
        raise UsageError("no dataset is given", remedy=remedy)
    async with AsyncExitStack() as opened:
        if server is None and (config.workers or config.ray is not None):
            from reward_kit.agent.evaluation.fork_server import ForkServer

            server = ForkServer(large_library(config))  # it starts while rows are read
        if server is not None:
            opened.callback(server.close)
        rows = opened.enter_context(read_bundle(config.dataset, config.task_dir, mode=config.mode))
        for warning in rows.warnings:
            display.warn(warning)
        against = rounds.against if rounds is not None else None
        config = resolve(config, rows.rows, players=players, models=given_models, against=against)
        explainer = None
        if config.explain is not None:
            from reward_kit.agent.after.explainer import make_explainer

            explainer = make_explainer(config)
        objects = {role: one for role, one in players.items() if not isinstance(one, str)}
        executor = _executor(config, rows, root, display, objects, given_models, server)
        opened.push_async_callback(executor.close)
        description = await executor.describe()
        for warning in description.warnings:
            display.warn(warning)
        this = make_run(config, rows, description.code)
        if rounds is not None:
            rounds.check(this, display.warn)
        store = opened.enter_context(Store(executor.folder.evaluation(this.eval_id)))
        if config.debug:
            opened.enter_context(_debug_log(store.path.with_suffix(".log"), config))
        plan = make_plan(config, this, executor.folder, store)
        plan.tally.interactive = description.interactive
        if plan.warning is not None:
            display.warn(plan.warning)
        runner = JobRunner(config, description, executor, Saver(store), plan.tally, display)
        stop = asyncio.Event()
        if last_words is not None:
            opened.enter_context(signals_handled(stop, last_words))
        return await _played(plan, runner, store, rounds, explainer, stop)


def _executor(
    config: EvaluationConfig,
    rows: BundleRows,
    root: Path,
    display: Display,
    players: Mapping[Role, Any],
    models: Mapping[Role, Model],
    server: ForkServer | None,
) -> Executor:
    """The executor that ``config`` asks for; ``players`` and ``models`` are objects."""
    if config.clear_cache:
        clear_gold(root, display.warn)
        AnswerStore(root / FOLDER, warn=display.warn).clear()
    if config.branch_of and config.ray is not None:
        raise UsageError("branches cannot be played on a Ray cluster", remedy="Omit --ray.")
    if server is None:
        return InProcess(config, rows, root, display.note, models=models, players=players)
    if models or players or config.results_file or "human" in (config.agent, config.user):
        raise UsageError(
            f"{'--workers' if config.ray is None else '--ray'} cannot be combined with a person at the "
            "terminal, with models, agents or users given from Python, or with --from-tau-bench",
            remedy="Name an agent or user of your own: module:factory." if players else None,
        )
    from reward_kit.agent.evaluation.workers import Workers

    cluster = None
    if config.ray is not None:
        from reward_kit.agent.evaluation.ray_cluster import RayCluster

        cluster = RayCluster(config, rows, root, display.note)
    return Workers(config, rows, root, display.note, server, cluster)


async def _played(
    plan: Plan,
    runner: JobRunner,
    store: Store,
    rounds: Rounds | None,
    explainer: Explainer | None,
    stop: asyncio.Event,
) -> EvaluationResult:
    """Play the plan until it is over or ``stop`` is set, and write the results, whatever happens."""
    config, display, tally = runner.config, runner.display, plan.tally

    async def work() -> None:
        if rounds is not None and config.until_decided:
            await rounds.run(plan, runner, store)
        else:
            await runner.run(plan.jobs)
            await runner.judge_again(plan.unjudged)
        if explainer is not None:
            outcomes = read_evaluation(store.path, running=True).outcomes
            await explainer.explain(outcomes, store, spent=tally.usage.paid)

    status: Status
    reason: str | None
    status, reason = "stopped", None
    display.start(tally)
    try:
        if await _until_stopped(work(), stop):
            status, reason = "interrupted", "by a signal"
        elif tally.done < tally.planned and tally.used_up is not None:
            status, reason = "budget", tally.used_up
        else:
            status = "complete"
    except asyncio.CancelledError:
        status, reason = "interrupted", "cancelled"
        raise
    except RewardKitError as error:
        reason = str(error)
        raise
    finally:
        await runner.executor.close()
        if (fault := await runner.saver.close()) is not None:
            display.note(f"the usage of aborted rollouts is not stored: {fault}")
        seconds = plan.seconds_before + tally.seconds
        ended: dict[str, Any] = {"status": status, "reason": reason, "seconds": seconds}
        with suppress(*([StorageError] if ended["status"] == "stopped" else [])):  # the first error is raised
            stored = replace(read_evaluation(store.path, running=True), versions=versions(), **ended)
            result = _result(stored, runner, rounds, explainer)
            store.end_run(status, reason, tally.seconds, result.stored_results())
            result.write()
        display.progress.closed(tally)
        for name in sorted(store.hidden):
            display.warn(f"the value of {name} is hidden in stored texts")
    return result


async def _until_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Run ``work``; once ``stop`` is set, cancel it, wait for its end and return True."""
    task = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if task.cancelled() and stop.is_set():
        return True
    task.result()
    return False


def _result(
    stored: EvaluationResult, runner: JobRunner, rounds: Rounds | None, explainer: Explainer | None
) -> EvaluationResult:
    agent, executor, compared = runner.config.agent or "", runner.executor, None
    recorded = executor.recorded if isinstance(executor, InProcess) else None
    if agent.startswith("replay:"):
        from reward_kit.agent.comparison.replay import compare_replay
        from reward_kit.agent.store.loading import Recordings

        try:
            compared = compare_replay(stored, Recordings.load(Path(agent.removeprefix("replay:"))))
        except RewardKitError as error:  # all rollouts are stored
            runner.display.warn(f"the recording was not compared: {error}")
    found = {
        "explanations": explainer.result if explainer is not None else None,
        "agreement": recorded.agreement(stored) if recorded is not None else None,
        "compared_with": compared,
        "decision": rounds.decide(stored) if rounds is not None else None,
    }
    results = {**stored.results, **{name: part for name, part in found.items() if part is not None}}
    return replace(stored, configuration=runner.config.to_json(), results=results)


@contextmanager
def _debug_log(path: Path, config: EvaluationConfig) -> Iterator[None]:
    """Log to a file what the package notes: where an agent, tool or reward raised, say."""
    logger = logging.getLogger("reward_kit")
    level = logger.level
    with as_storage_error(path):
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
