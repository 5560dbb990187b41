"""The part of an evaluation that one actor of a Ray cluster plays. Driven by ``ray_cluster``.

Nothing here knows Ray. What the actor has to say waits until the driver takes it: the same lines as those of
``worker``, and with an outcome also the ``files`` of its rollout.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import tempfile
import threading
import zipfile
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from reward_kit.agent.executors.worker import Lines, work
from reward_kit.agent.faults import fault_line
from reward_kit.agent.providers.leave import Leave
from reward_kit.agent.runs.broken_off import KIND as BROKEN_OFF
from reward_kit.agent.tally import Tally
from reward_kit.agent.temporary_folder import temporary_folder
from reward_kit.agent.versions import versions
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.executors.ray_shipment import Shipment

WAIT = 1.0
"""Seconds that the driver is kept waiting while there is nothing to say."""
GRACE = 10.0
"""Seconds to end in good order."""
BATCH = 32 * 2**20
"""Bytes of files in one answer to the driver, unless those of one rollout are more."""


class TakenLines(Lines):
    """Lines that are kept until they are taken; used by several threads.

    ``root`` is the runs folder of this process, of which nothing stays: files go with the line of their
    rollout. ``bases`` are the names under which the driver's bases are known to be whole (``seeded_bases``).
    """

    def __init__(self, root: Path, bases: Sequence[str]) -> None:
        self._root = root
        self._bases = set(bases)
        self._same: set[str] = set()
        self._with_gold: set[Path] = set()
        self._change = threading.Condition()
        self._waiting: deque[dict[str, Any]] = deque()
        self._told = 0
        self._given = 0
        self._unheard: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._ended = False

    def tell(self, line: Mapping[str, Any]) -> None:
        with self._change:
            self._tell(line)

    def _tell(self, line: Mapping[str, Any]) -> None:
        self._waiting.append(dict(line))
        self._told += 1
        self._change.notify()

    async def begin(self, row_id: str, index: int) -> None:
        """Say that a rollout begins, and wait until that was heard: it may be the last thing this process
        does, and then it is known whose fault that was.
        """
        heard = asyncio.get_running_loop().create_future()
        with self._change:
            self._tell({"begun": [row_id, index]})
            self._unheard.append((self._told, heard))
        await heard

    def append(self, line: Mapping[str, Any]) -> None:
        if line["kind"] == BROKEN_OFF:  # it has no files
            super().append(line)
            return
        self._check_bases()
        record = self._root / line["file"]
        found = sorted(record.parent.glob(f"{record.stem}.*"))
        files = {self._name(path): path.read_bytes() for path in found}
        for path in found:
            path.unlink()
        if record.parent not in self._with_gold:
            self._with_gold.add(record.parent)
            files.update((self._name(path), path.read_bytes()) for path in record.parent.glob("gold.*"))
        self.tell({"outcome": dict(line), "files": files})

    def take(self) -> list[dict[str, Any]]:
        """What is new; taking more means that what was taken before has arrived."""
        with self._change:
            while self._unheard and self._unheard[0][0] <= self._given:
                heard = self._unheard.popleft()[1]
                with suppress(RuntimeError):  # the loop has ended
                    heard.get_loop().call_soon_threadsafe(_done, heard)
            self._change.wait_for(lambda: self._waiting or self._ended, WAIT)
            taken: list[dict[str, Any]] = []
            size = 0
            while self._waiting and size < BATCH:
                taken.append(self._waiting.popleft())
                size += sum(map(len, taken[-1].get("files", {}).values()))
            self._given += len(taken)
            return taken

    def rest(self) -> list[dict[str, Any]]:
        """What nobody has taken yet; no more will come, and ``take`` waits for nothing any more."""
        with self._change:
            self._ended = True
            self._change.notify_all()
            rest = list(self._waiting)
            self._waiting.clear()
            return rest

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _check_bases(self) -> None:
        """Deltas and gold states go with the driver's bases: those of this node must be the same."""
        for path in (self._root / ".bases").glob("*.seeded"):
            if path.name in self._same:
                continue
            if path.name not in self._bases:
                raise RewardKitError(
                    f"a node of the Ray cluster seeds another database than this machine (SQLite "
                    f"{versions()['sqlite']} there)",
                    remedy="Install the same versions everywhere, and let a seed.py draw no random numbers.",
                )
            self._same.add(path.name)


class RayWorker:
    """The actor: ``begin`` once, then ``take`` until the line ``over`` has come, then ``end``.

    ``hear`` is called while ``take`` waits, in another thread.
    """

    def __init__(self) -> None:
        self._folder = temporary_folder("ray")
        self._loop = asyncio.new_event_loop()
        self._lines: TakenLines | None = None
        self._playing: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._tally = Tally("", planned=0)
        self._leave: Leave | None = None

    def begin(self, setup: dict[str, Any], jobs: Sequence[tuple[str, int]], shipment: Shipment) -> None:
        """Play ``jobs``; ``setup`` has ``config``, ``eval_id``, ``budget``, ``environment``, ``bases`` and
        ``version``.

        This process is the actor's alone: its working directory and environment are the rollouts'.
        """
        root = self._folder / "runs"
        lines = self._lines = TakenLines(root, setup["bases"])
        if setup["version"] != versions()["reward-kit"]:
            here = f"{versions()['reward-kit']} on a node of the Ray cluster"
            fault = f"reward-kit is {setup['version']} on this machine and {here}"
            lines.tell({"fault": RewardKitError(fault, remedy="Install the same everywhere.").to_json()})
            return
        files = self._folder / "files"
        with zipfile.ZipFile(io.BytesIO(shipment.data)) as archive:
            archive.extractall(files)
        directory = files / shipment.directory
        directory.mkdir(parents=True, exist_ok=True)
        os.chdir(directory)
        os.environ.update(setup["environment"])
        config = {
            **setup["config"],
            "dataset": str(files / shipment.dataset),
            "task_dir": str(files / shipment.folder),
        }
        if shipment.few_shot_displays is not None:
            config["few_shot_displays"] = str(files / shipment.few_shot_displays)
        self._tally = Tally(setup["eval_id"], planned=len(jobs))
        played = {"config": config, "root": str(root), "jobs": jobs, "budget": setup["budget"]}
        self._leave = Leave(lines.tell)
        self._playing = self._loop.create_task(work(played, lines, self._tally, self._leave))
        self._thread = threading.Thread(target=self._play, name="rollouts", daemon=True)
        self._thread.start()

    def _play(self) -> None:
        """Run the loop to the end, in a thread of its own: the driver need not wait for what blocks it."""
        assert self._lines is not None
        assert self._playing is not None
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._playing)
        except RewardKitError as error:
            self._lines.tell({"fault": error.to_json()})
        except asyncio.CancelledError:
            return
        except BaseException as error:  # noqa: BLE001 - the last thing this thread does is to say why it ends
            self._lines.tell({"broke": fault_line(error)})
        else:
            self._lines.tell({"over": True})

    def take(self, *, may_start: bool) -> list[dict[str, Any]]:
        """What there is to say by now; waits a little for it. Not ``may_start``: begin no more rollouts."""
        assert self._lines is not None
        if not may_start:
            self._tally.max_cost = 0.0  # what runs is finished
        return self._lines.take()

    def hear(self, line: dict[str, Any]) -> None:
        """There is leave for a model call."""
        assert self._leave is not None
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._leave.heard, line)

    def end(self) -> list[dict[str, Any]]:
        """Give up what is still played, and leave nothing on the node; gives what nobody has taken yet."""
        if self._playing is not None and self._thread is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._playing.cancel)
            self._thread.join(GRACE)
        os.chdir(tempfile.gettempdir())
        shutil.rmtree(self._folder, ignore_errors=True)
        return [] if self._lines is None else self._lines.rest()


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
