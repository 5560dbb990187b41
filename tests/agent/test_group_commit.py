"""Rollouts that are saved together: who shares a wait for the disk, and whose fault is whose."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from reward_kit.agent.runs.atomic_file import Draft, write_parts
from reward_kit.agent.runs.evaluation_log import EvaluationLog
from reward_kit.agent.runs.group_commit import LARGEST_BATCH, Finished, GroupCommit
from reward_kit.agent.runs.parcels import NewFile, Parcel
from reward_kit.errors import StorageError

PATIENCE = 60.0


class HeldLog:
    """Keeps lines, and the first call waiting until ``go``; what is in the folder when they come is noted."""

    def __init__(self, folder: Path) -> None:
        self.batches: list[list[str]] = []
        self.there: list[set[str]] = []
        self.reached, self.go = threading.Event(), threading.Event()
        self.refused: dict[str, Exception] = {}
        self._folder = folder

    def append_each(self, lines: Sequence[Mapping[str, Any]]) -> list[Exception | None]:
        self.reached.set()
        assert self.go.wait(PATIENCE)
        self.batches.append([line["id"] for line in lines])
        self.there.append({path.name for path in self._folder.iterdir()})
        return [self.refused.get(line["id"]) for line in lines]


@pytest.fixture
def files() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def rollout(folder: Path, name: str) -> Callable[[], Finished[str]]:
    files = [NewFile(folder / f"{name}.{kind}", (kind.encode(), name.encode())) for kind in ("db", "json")]
    return lambda: Finished({"id": name}, lambda: f"saved {name}", Parcel(files))


async def wait(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, PATIENCE)


async def test_what_waits_while_others_are_saved_is_saved_together(
    tmp_path: Path, files: ThreadPoolExecutor
) -> None:
    log = HeldLog(tmp_path)
    saver = GroupCommit(log, files)
    first = saver.save(rollout(tmp_path, "first"))
    await wait(log.reached)
    others = [saver.save(rollout(tmp_path, f"other{number}")) for number in range(3)]
    log.go.set()
    assert await asyncio.gather(first, *others) == ["saved first", *(f"saved other{n}" for n in range(3))]
    assert log.batches == [["first"], ["other0", "other1", "other2"]]
    assert {"other0.db", "other0.json", "other2.db", "other2.json"} <= log.there[1]
    assert (tmp_path / "other2.json").read_bytes() == b"jsonother2"
    log.reached.clear()
    assert await asyncio.wait_for(saver.save(rollout(tmp_path, "alone")), PATIENCE) == "saved alone"


async def test_a_batch_holds_no_more_files_open_than_a_process_may(
    tmp_path: Path, files: ThreadPoolExecutor
) -> None:
    log = HeldLog(tmp_path)
    saver = GroupCommit(log, files)
    saving = [saver.save(rollout(tmp_path, f"{number}")) for number in range(3 * LARGEST_BATCH)]
    log.go.set()
    await asyncio.gather(*saving)
    assert max(map(len, log.batches)) == LARGEST_BATCH
    assert sum(map(len, log.batches)) == 3 * LARGEST_BATCH


async def test_of_a_crowd_only_two_batches_have_their_files_in_memory(
    tmp_path: Path, files: ThreadPoolExecutor
) -> None:
    log = HeldLog(tmp_path)
    saver = GroupCommit(log, files)
    told: list[int] = []

    def tell(number: int) -> Finished[str]:
        told.append(threading.get_ident())
        if number % 50 == 7:
            raise StorageError(f"no room for {number}")
        return rollout(tmp_path, f"{number}")()

    saving = [
        saver.save(lambda number=number: tell(number), is_quick=True) for number in range(5 * LARGEST_BATCH)
    ]
    await wait(log.reached)
    await asyncio.sleep(0.05)
    assert len(told) == 2 * LARGEST_BATCH
    assert set(told) == {threading.get_ident()}, "what is quick is not for another thread"
    log.go.set()
    found = await asyncio.gather(*saving, return_exceptions=True)
    assert [str(one) for one in found] == [
        f"no room for {number}" if number % 50 == 7 else f"saved {number}"
        for number in range(5 * LARGEST_BATCH)
    ]
    assert sorted(name for batch in log.batches for name in batch) == sorted(
        f"{number}" for number in range(5 * LARGEST_BATCH) if number % 50 != 7
    )
    assert await asyncio.wait_for(saver.save(rollout(tmp_path, "after")), PATIENCE) == "saved after"


async def three_at_once(
    tmp_path: Path, files: ThreadPoolExecutor, log: HeldLog, middle: Callable[[], Finished[str]]
) -> list[str | BaseException]:
    """What comes of three rollouts that are one batch."""
    saver = GroupCommit(log, files)
    first = saver.save(rollout(tmp_path, "first"))
    await wait(log.reached)
    batch = [saver.save(each) for each in (rollout(tmp_path, "a"), middle, rollout(tmp_path, "c"))]
    log.go.set()
    await first
    return await asyncio.gather(*batch, return_exceptions=True)


async def test_a_file_that_cannot_be_written_is_the_fault_of_its_rollout_alone(
    tmp_path: Path, files: ThreadPoolExecutor
) -> None:
    places = [NewFile(tmp_path / "b.db", (b"db",)), NewFile(tmp_path / "gone" / "b.json", (b"{}",))]
    log = HeldLog(tmp_path)
    found = await three_at_once(
        tmp_path, files, log, lambda: Finished({"id": "b"}, lambda: "never", Parcel(places))
    )
    assert (found[0], found[2]) == ("saved a", "saved c")
    assert isinstance(found[1], StorageError)
    assert str(tmp_path / "gone" / "b.json") in str(found[1])
    assert log.batches[1] == ["a", "c"]
    assert not [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
    assert not (tmp_path / "b.db").exists()


async def test_content_that_the_disk_lost_is_the_fault_of_its_rollout_alone(
    tmp_path: Path, files: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync
    lost = b"db" + b"b"

    def fsync(descriptor: int) -> None:
        if os.fstat(descriptor).st_size == len(lost) and content_of(descriptor, tmp_path) == lost:
            raise OSError(errno.EIO, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    log = HeldLog(tmp_path)
    found = await three_at_once(tmp_path, files, log, rollout(tmp_path, "b"))
    assert (found[0], found[2]) == ("saved a", "saved c")
    assert isinstance(found[1], StorageError)
    assert "Input/output error" in str(found[1])
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{kind}" for name in ("first", "a", "c") for kind in ("db", "json")
    }


def content_of(descriptor: int, folder: Path) -> bytes:
    """What a file that is open for writing holds."""
    wanted = os.fstat(descriptor).st_ino
    return next(path.read_bytes() for path in folder.iterdir() if path.stat().st_ino == wanted)


async def test_what_the_log_refuses_and_what_a_rollout_raises_touches_no_other(
    tmp_path: Path, files: ThreadPoolExecutor
) -> None:
    log = HeldLog(tmp_path)
    log.refused["b"] = StorageError("no room")
    found = await three_at_once(tmp_path, files, log, rollout(tmp_path, "b"))
    assert [str(one) for one in found] == ["saved a", "no room", "saved c"]

    def faulty() -> Finished[str]:
        raise StorageError("its folder is gone")

    found = await three_at_once(tmp_path, files, HeldLog(tmp_path), faulty)
    assert [str(one) for one in found] == ["saved a", "its folder is gone", "saved c"]


async def test_whatever_goes_wrong_in_a_batch_nobody_waits_for_ever(
    tmp_path: Path, files: ThreadPoolExecutor
) -> None:
    log = HeldLog(tmp_path)
    log.go.set()
    saver = GroupCommit(log, files)
    with pytest.raises(AttributeError, match="parcel"):
        await asyncio.wait_for(saver.save(lambda: "nothing to save"), PATIENCE)  # type: ignore[arg-type, return-value]
    assert await asyncio.wait_for(saver.save(rollout(tmp_path, "next")), PATIENCE) == "saved next"


async def test_a_rollout_that_nobody_waits_for_any_more_is_saved_all_the_same(
    tmp_path: Path, files: ThreadPoolExecutor
) -> None:
    log = HeldLog(tmp_path)
    saver = GroupCommit(log, files)
    left, other = saver.save(rollout(tmp_path, "left")), saver.save(rollout(tmp_path, "other"))
    left.cancel()
    log.go.set()
    assert await other == "saved other"
    assert {"left.db", "left.json"} <= {path.name for path in tmp_path.iterdir()}


async def test_rollouts_that_end_together_take_one_sync_of_the_log(
    tmp_path: Path, files: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evals").mkdir()
    (tmp_path / "row").mkdir()
    log = EvaluationLog(tmp_path / "evals" / "e.jsonl")
    log_file = log.path.stat().st_ino
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    begun, go = threading.Event(), threading.Event()

    def first() -> Finished[None]:
        begun.set()
        assert go.wait(PATIENCE)
        return Finished({"file": "row/first.json"}, lambda: None)

    saver = GroupCommit(log, files)
    saving = [saver.save(first)]
    await wait(begun)
    for number in range(10):
        line = {"file": f"row/{number}.json"}
        saving.append(saver.save(lambda line=line: Finished(line, lambda: None)))  # type: ignore[misc]
    go.set()
    await asyncio.gather(*saving)
    log.close()
    assert synced.count(log_file) == 2
    assert len(log.path.read_bytes().splitlines()) == 11


def test_a_draft_is_nowhere_until_it_is_published(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    draft = Draft(path, (b"af", memoryview(b"ter")))
    draft.start_sync()
    draft.sync()
    assert path.read_bytes() == b"before"
    draft.publish()
    draft.discard()
    assert path.read_bytes() == b"after"
    Draft(path, (b"never",)).discard()
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("size", [0, 1, 3 << 19])
def test_parts_are_written_in_their_order_whatever_their_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        write_parts(file.fileno(), (b"a" * size, memoryview(b"b" * size), b"c"))
    assert path.read_bytes() == b"a" * size + b"b" * size + b"c"
