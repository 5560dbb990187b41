"""The process that brings files to the disk: it does as the thread does, and nothing is lost with it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reward_kit.agent.runs import group_commit
from reward_kit.agent.runs.evaluation_log import EvaluationLog
from reward_kit.agent.runs.file_process import MOST_BYTES, FileProcess
from reward_kit.agent.runs.group_commit import WORTH_A_PROCESS, Finished, GroupCommit
from reward_kit.agent.runs.parcels import NewFile, Parcel, RowFolder, save_parcels
from reward_kit.errors import StorageError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="files are saved by a thread there")
PATIENCE = 60.0


@pytest.fixture
def process() -> Iterator[FileProcess]:
    process = FileProcess()
    yield process
    process.close()


def begun(process: FileProcess) -> FileProcess:
    """``process``, once it does what it is asked."""
    end = time.monotonic() + PATIENCE
    while process.save([]) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    return process


def parcels_in(root: Path) -> list[Parcel]:
    """A rollout in a folder that is to be made, one with awkward content, and one that cannot be saved."""
    root.mkdir()
    (root / "base").write_bytes(b"base")
    new = root / "new \n ä"
    return [
        Parcel([NewFile(new / "one.db", (b"a", memoryview(b"b"))), NewFile(new / "one.json", (b"{}",))]),
        Parcel([NewFile(root / "two", (b"\n\0\xff",)), NewFile(root / "log", (b"",), durable=False)]),
        Parcel([NewFile(root / "three", (b"x",)), NewFile(root / "gone" / "three", (b"y",))]),
    ]


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_it_saves_and_fails_as_the_thread_does(tmp_path: Path, process: FileProcess) -> None:
    found = []
    for name, save in (("thread", save_parcels), ("process", begun(process).save)):
        first, *others = parcels_in(tmp_path / name)
        folder = RowFolder(first.files[0].path.parent, tmp_path / name / "base")
        faults = save([Parcel(first.files, folder), *others])
        assert faults is not None
        told = [str(fault).replace(name, "") for fault in faults]
        found.append((told, [type(fault) for fault in faults], tree(tmp_path / name)))
    assert found[0] == found[1]
    assert found[1][1] == [type(None), type(None), StorageError]
    assert found[1][2] == {
        "base": b"base",
        "new \n ä/base.db": b"base",
        "new \n ä/one.db": b"ab",
        "new \n ä/one.json": b"{}",
        "two": b"\n\0\xff",
        "log": b"",
    }


def test_what_a_process_that_dies_did_not_save_is_left_to_the_caller(
    tmp_path: Path, process: FileProcess
) -> None:
    begun(process)
    running = process._process
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    parcel = Parcel([NewFile(tmp_path / "file", (b"x",))])
    assert process.save([parcel]) is None
    assert process.save([parcel]) is None, "there is no second one"


def test_much_content_is_not_sent(tmp_path: Path, process: FileProcess) -> None:
    large = Parcel([NewFile(tmp_path / "file", (bytes(MOST_BYTES + 1),))])
    assert begun(process).save([large]) is None
    assert process.save([Parcel([NewFile(tmp_path / "file", (b"x",))])]) == [None]


def test_it_ends_when_it_is_closed_and_with_the_process_that_started_it(tmp_path: Path) -> None:
    process = begun(FileProcess())
    running = process._process
    assert running is not None
    process.close()
    assert running.poll() == 0

    program = (
        "import os, signal, time\n"
        "from reward_kit.agent.runs.file_process import FileProcess\n"
        "process = FileProcess()\n"
        "while process.save([]) is None: time.sleep(0.01)\n"
        "print(process._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert killed.returncode == -signal.SIGKILL
    end = time.monotonic() + PATIENCE
    while is_running(int(killed.stdout)):
        assert time.monotonic() < end
        time.sleep(0.01)


HOLDS = """
import os, signal, sys, time
from reward_kit.agent.runs.file_process import FileProcess
process = FileProcess()
while process.save([]) is None: time.sleep(0.01)
child = os.fork()
if not child:
    time.sleep(600)
print(process._process.pid, child, flush=True)
begun = time.monotonic()
if sys.argv[1] == "closed":
    process.close()
    print(time.monotonic() - begun, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_it_ends_at_once_though_a_process_that_a_tool_has_forked_lives_on(end: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS, end], stdout=subprocess.PIPE, text=True) as ran:
        assert ran.stdout is not None
        ours, child = map(int, ran.stdout.readline().split())
        try:
            if end == "closed":
                assert float(ran.stdout.readline()) < 5
            ran.wait(PATIENCE)
            until = time.monotonic() + PATIENCE
            while is_running(ours):
                assert time.monotonic() < until
                time.sleep(0.01)
            assert is_running(child)
        finally:
            os.kill(child, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_modules_beside_it_do_not_come_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    begun(FileProcess()).close()


async def test_rollouts_that_wait_in_numbers_are_saved_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evals").mkdir()
    by_thread: list[int] = []

    def save_here(parcels: list[Parcel]) -> list[StorageError | None]:
        by_thread.append(len(parcels))
        return save_parcels(parcels)

    monkeypatch.setattr(group_commit, "save_parcels", save_here)
    log = EvaluationLog(tmp_path / "evals" / "e.jsonl")
    saved = 0
    with ThreadPoolExecutor(1) as files:
        saver = GroupCommit(log, files)
        end = time.monotonic() + PATIENCE
        while sum(by_thread) == saved:  # until the process has begun
            assert time.monotonic() < end
            waiting = [
                saver.save(
                    lambda number=number: Finished(  # type: ignore[misc]
                        {"file": f"{number}"},
                        lambda: None,
                        Parcel([NewFile(tmp_path / f"{number}", (b"x",))]),
                    )
                )
                for number in range(saved, saved + 4 * WORTH_A_PROCESS)
            ]
            saved += len(waiting)
            await asyncio.gather(*waiting)
        saver.close()
    log.close()
    assert len(log.path.read_bytes().splitlines()) == saved
    assert all((tmp_path / f"{number}").read_bytes() == b"x" for number in range(saved))
