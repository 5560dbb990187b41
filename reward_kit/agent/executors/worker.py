"""One of several processes that share an evaluation's rollouts. Run by ``worker_processes``.

It speaks JSON lines; what begins otherwise means nothing. On stdin: first the setup (``config``, ``path``:
where modules are looked for, ``eval_id``, ``root``: the runs folder, ``jobs``: pairs of row id and rollout,
``budget``: whether there is one), later perhaps ``hold``: begin no more. The end of stdin ends the process.
On stdout: ``begun`` (a job), ``outcome`` (a line for the log), ``broken_off`` (what attempts have used that
came to no end, also after the end of stdin), ``unpriced`` (a model of no known price), ``note``, ``fault``
(no process can go on), ``broke`` (this one cannot: a rollout may be the cause), ``waiting`` (calls wait for a
provider: that is not the rollouts' time), and ``over`` when all is done.

With a budget there is ``spending`` (US dollars and tokens of a call) on stdout, and each ``begun`` is
answered with ``begin`` on stdin, after a ``hold`` if it may not. With ``rpm`` or ``tpm`` there are lines for
model calls in both directions, see ``providers.leave``.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import json
import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from reward_kit.agent.own_pipes import keep_from_children
from reward_kit.agent.runs.atomic_file import OUT_OF_FILES
from reward_kit.agent.runs.broken_off import KIND as BROKEN_OFF
from reward_kit.agent.tally import NoProgress, Tally
from reward_kit.errors import RewardKitError
from reward_kit.process_end import end_in_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.providers import Gates
    from reward_kit.agent.providers.leave import Leave
    from reward_kit.agent.schedule import Job

GRACE = 10.0
"""Seconds to end in good order once nobody listens any more."""
LOOK_EVERY = 1.0
"""Seconds between looks whether model calls wait."""


class Lines:
    """What is told to the process that started this one; used by several threads."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def tell(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line)
        with self._lock, suppress(OSError):  # nobody listens any more: the end of stdin says so as well
            self._stream.write(f"\n{text}\n")  # what a tool has put there before it is a line of its own
            self._stream.flush()

    async def begin(self, row_id: str, index: int) -> None:
        """Say that a rollout begins, if it may."""
        self.tell({"begun": [row_id, index]})

    def tell_spending(self, spent: float, tokens: int) -> None:
        """Say what a call has used of a budget, which is that of all processes."""
        self.tell({"spending": [spent, tokens]})

    def tell_unpriced(self, model: str) -> None:
        """Say that a model has no known price; whether that matters is known to the other process."""
        self.tell({"unpriced": model})

    def append(self, line: Mapping[str, Any]) -> None:
        """Stand in for the evaluation's log, which the other process writes."""
        self.tell({"broken_off" if line["kind"] == BROKEN_OFF else "outcome": dict(line)})

    def append_each(self, lines: Sequence[Mapping[str, Any]]) -> list[Exception | None]:
        """``append`` all; for each None or what was raised."""
        return [self._appended(line) for line in lines]

    def _appended(self, line: Mapping[str, Any]) -> Exception | None:
        try:
            self.append(line)
        except (RewardKitError, OSError) as error:
            return error
        return None


class AskingLines(Lines):
    """Lines of a process that has a budget: each rollout waits until that it begins was heard.

    What calls have used was told before; who hears of it knows whether another may begin.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._unheard: deque[asyncio.Future[None]] = deque()

    async def begin(self, row_id: str, index: int) -> None:
        """Say that a rollout begins, and wait until that was heard."""
        heard = asyncio.get_running_loop().create_future()
        self._unheard.append(heard)
        await super().begin(row_id, index)
        await heard

    def heard(self) -> None:
        """The first of those that wait was heard."""
        first = self._unheard.popleft()
        if not first.done():
            first.set_result(None)


class Telling(NoProgress):
    """Progress that is shown elsewhere."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def noted(self, text: str) -> None:
        self._lines.tell({"note": text})


async def work(setup: Mapping[str, Any], lines: Lines, tally: Tally, leave: Leave) -> None:
    """Play the jobs of ``setup``; model calls that are limited need ``leave``."""
    from reward_kit.agent.bundle import TaskBundle
    from reward_kit.agent.bundles.loose_ends import tell_of_task, threads_told_in_one_line
    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.executors.in_process import InProcess
    from reward_kit.agent.garbage import rare_collections
    from reward_kit.agent.model_cache import cached_models
    from reward_kit.agent.participants import find_participants
    from reward_kit.agent.schedule import Job
    from reward_kit.agent.storage import RunsFolder

    class TellingInProcess(InProcess):
        async def play(self, job: Job) -> None:
            await lines.begin(job.task.row.id, job.index)
            if tally.may_start:
                await super().play(job)

    config = EvaluationConfig(**setup["config"])
    asyncio.get_running_loop().set_exception_handler(tell_of_task)
    with (
        rare_collections(),
        threads_told_in_one_line(),
        TaskBundle.load(config.dataset, task_dir=config.task_dir) as bundle,
    ):
        by_id = {task.row.id: task for task in bundle.tasks}
        jobs = [Job(by_id[row_id], index) for row_id, index in setup["jobs"]]
        tasks = list({job.task.row.id: job.task for job in jobs}.values())
        participants = find_participants(config, tasks)
        progress = Telling(lines)
        tally.spending.tell_unpriced = lines.tell_unpriced
        tally.spending.tell = lines.tell_spending if setup["budget"] else None
        participants.gates.tell = progress.noted
        participants.gates.ask(leave)
        folder = RunsFolder(setup["root"])
        participants.models = cached_models(participants.models, config, folder.root, warn=progress.noted)
        executor = TellingInProcess(
            config=config,
            jobs=jobs,
            participants=participants,
            folder=folder,
            log=lines,
            tally=tally,
            progress=progress,
        )
        waiting = asyncio.ensure_future(_tell_waiting(participants.gates, lines))
        try:
            await executor.run()
        finally:
            waiting.cancel()
            await executor.close()


async def _tell_waiting(gates: Gates, lines: Lines) -> None:
    """Say so while calls wait: their rollouts may take far longer than their time, which is no fault."""
    while True:
        if gates.waiting:
            lines.tell({"waiting": True})
        await asyncio.sleep(LOOK_EVERY)


def main() -> int:
    """Read the setup, play, and tell how it ended; gives the exit code.

    Then exit functions have their time, as in a run of one process: some end processes, pools for instance.
    Where other code has broken what they stand on, the process ends at once.
    """
    from reward_kit.agent.bundles.ground import end_process
    from reward_kit.agent.executors.left_alone import end_when_left_alone
    from reward_kit.agent.faults import fault_line
    from reward_kit.agent.interruption import hear_no_ctrl_c
    from reward_kit.agent.providers.leave import Leave

    hear_no_ctrl_c()
    given = _standard_input_for_itself()
    end_when_left_alone(given.fileno(), GRACE + 2.0)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # tools may print; standard output belongs to the lines
    sys.stdout = sys.stderr
    for end in (given, out):
        keep_from_children(end.fileno())
    first = given.readline()
    if not first.endswith("\n"):  # the other process died meanwhile
        return 1
    setup = json.loads(first)
    lines = AskingLines(out) if setup["budget"] else Lines(out)
    sys.path[:] = setup["path"]
    tally = Tally(setup["eval_id"], planned=len(setup["jobs"]))
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_say_unless_broken)
    leave = Leave(lines.tell)
    task = loop.create_task(work(setup, lines, tally, leave))
    threading.Thread(target=_listen, args=(given, loop, task, tally, leave, lines), daemon=True).start()
    code = 1
    try:
        loop.run_until_complete(task)
    except RewardKitError as error:
        if _is_out_of_files(error):
            lines.tell({"broke": error.fault})
            end_process(1)
        lines.tell({"fault": error.to_json()})
    except asyncio.CancelledError:
        pass
    except BaseException as error:  # noqa: BLE001 - the last thing this process does is to say why it ends
        lines.tell({"broke": fault_line(error)})
        end_process(1)
    else:
        lines.tell({"over": True})
        code = 0
    end_in_time(code, lambda warning: lines.tell({"note": warning}))
    return code


def _standard_input_for_itself() -> TextIO:
    """Standard input under another number: a tool that reads finds nothing there, and does not wait."""
    given = os.fdopen(os.dup(0), encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return given


def _is_out_of_files(error: BaseException | None) -> bool:
    """Whether it is for want of this process's own descriptors: others may have some."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error is not None and error.errno in OUT_OF_FILES


def _say_unless_broken(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Nothing need be said of callbacks whose descriptors somebody has closed: the process ends for it."""
    if getattr(context.get("exception"), "errno", None) != errno.EBADF:
        loop.default_exception_handler(context)


def _listen(
    given: TextIO,
    loop: asyncio.AbstractEventLoop,
    task: asyncio.Task[None],
    tally: Tally,
    leave: Leave,
    lines: Lines,
) -> None:
    """Heed what comes on stdin; at its end cancel ``task``, and end the process if that does not help."""
    with suppress(OSError, ValueError):  # a tool has closed it, or another file has its number
        for text in given:
            line = json.loads(text)
            if "hold" in line:
                tally.max_cost = 0.0  # nothing more may begin; what runs is finished
            elif "begin" in line and isinstance(lines, AskingLines):
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(lines.heard)
            elif "leave" in line:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(leave.heard, line)
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(task.cancel)
    time.sleep(GRACE)
    os._exit(1)


def _run() -> NoReturn:
    """``main``, as all that this process is for."""
    from reward_kit.agent.bundles.ground import end_process

    code = 1

    def end() -> None:
        sys.stderr.flush()
        end_process(code)

    atexit.register(end)  # the first to be registered is the last: what else Python does takes 20 ms
    code = main()
    sys.exit(code)


if __name__ == "__main__":
    _run()
