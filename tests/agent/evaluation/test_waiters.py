"""A waiter gets an answer, whatever has ended the code that it waits for; and the run ends."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import Bundle
from virtual_time import simulate

from reward_kit.agent import load_rollout
from reward_kit.agent.base.worker_thread import Waiters, completed
from reward_kit.agent.evaluation import fork_server
from reward_kit.agent.evaluation.connection import Worker
from reward_kit.agent.evaluation.protocol import Report
from reward_kit.agent.store.writer import Store
from reward_kit.errors import StorageError

ROWS = [{"id": f"row-{number}", "n_rollouts": 2, "sim_user_prompt": None} for number in range(3)]
PLAYERS = '''
import asyncio
import builtins
from pathlib import Path


async def greets(rollout):
    await asyncio.sleep(0.01)
    return "Hello"


async def leaves_a_file(rollout):
    Path(f"begun_{rollout.id}").touch()
    return "Hello"


async def breaks(rollout):
    """Makes its process fail to answer, with the exception that the row names."""
    from reward_kit.agent.evaluation import worker

    await asyncio.sleep(0.05)
    if (name := rollout.metadata["raises"]) is not None:
        encoded = worker.encoded

        def raises(report):
            if report.id and report.at is None:
                raise getattr(builtins, name)("broken")
            return encoded(report)

        worker.encoded = raises
    return "Hello"
'''
unix = pytest.mark.skipif(sys.platform == "win32", reason="socket pairs are handed to processes")
OF_ONE = [ValueError, OverflowError, MemoryError, sqlite3.InterfaceError]
OF_ONE += [StopIteration, GeneratorExit, KeyboardInterrupt]
OF_ALL = [StorageError, SystemExit, asyncio.CancelledError]


def raising_for_row_1(monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]) -> None:
    """Let no group be stored that holds a rollout of ``row-1`` which was played."""
    add = Store.add

    def broken(store: Store, group: Any) -> None:
        with store.transaction():
            if any(one.outcome.row_id == "row-1" and one.outcome.scored for one in group):
                raise kind("it is odd")
            add(store, group)

    monkeypatch.setattr(Store, "add", broken)


@pytest.mark.parametrize("kind", OF_ONE, ids=lambda kind: kind.__name__)
def test_a_rollout_that_cannot_be_stored_costs_itself_alone(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    raising_for_row_1(monkeypatch, kind)
    result = bundle.play("greets")
    lost = [one for one in result.outcomes if not one.scored]
    assert [(one.row_id, one.stop_reason) for one in lost] == [("row-1", "infrastructure_error")] * 2
    assert len(result.outcomes) == 6
    for one in lost:
        assert "the rollout cannot be stored: " in (one.stop_detail or "")
        assert f"{kind.__name__}: it is odd" in (one.stop_detail or "")
        assert load_rollout(result.folder / one.file).messages == []


@pytest.mark.parametrize("kind", OF_ALL, ids=lambda kind: kind.__name__)
def test_a_store_that_fails_for_all_ends_the_run(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    raising_for_row_1(monkeypatch, kind)
    with pytest.raises(kind):
        bundle.play("greets")


@pytest.mark.parametrize(("at_once", "begun"), [(1, 1), (2, 4)])
def test_further_rollouts_begin_while_one_is_stored_unless_one_at_a_time_is_played(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, at_once: int, begun: int
) -> None:
    add, found = Store.add, []

    def waiting(store: Store, group: Any) -> None:
        if not found:
            for _ in range(100):
                found[:] = Path().glob("begun_*")
                if len(found) >= 4:
                    break
                time.sleep(0.01)
        add(store, group)

    monkeypatch.setattr(Store, "add", waiting)
    result = bundle.play("leaves_a_file", max_concurrency=at_once)
    assert (len(found), len(result.outcomes)) == (begun, 6)


@unix
def test_a_worker_that_cannot_answer_costs_the_rollout_that_it_plays(bundle: Bundle) -> None:
    kinds = ["KeyboardInterrupt", "SystemExit", "ValueError", None]
    bundle.rows(*({**ROWS[0], "id": str(kind), "metadata": {"raises": kind}} for kind in kinds))
    result = bundle.play("breaks", workers=2, n_rollouts=1)
    found = {one.row_id: one.stop_detail for one in result.outcomes}
    exits = "its process ended with exit code 1 in its reward, twice"
    assert found == {str(kind): exits if kind else None for kind in kinds}


@unix
@pytest.mark.parametrize(
    "kind", [RuntimeError, KeyboardInterrupt, GeneratorExit], ids=lambda kind: kind.__name__
)
def test_a_message_of_a_worker_that_cannot_be_taken_in_ends_the_run(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    receive = Worker.receive

    def broken(worker: Worker, report: Report) -> None:
        if report.played is not None:
            raise kind
        receive(worker, report)

    monkeypatch.setattr(Worker, "receive", broken)
    with pytest.raises(kind if kind is not GeneratorExit else RuntimeError):
        bundle.play("greets", workers=1)


@unix
def test_the_end_of_a_worker_that_cannot_be_taken_in_ends_the_run(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        size = fork_server._END.size

        def unpack(self, data: bytes) -> None:
            raise RuntimeError("an end of nobody")

    monkeypatch.setattr(fork_server, "_END", Broken())
    assert len(bundle.play("greets", workers=1).outcomes) == 6  # their ends come last


@unix
def test_a_watch_over_workers_that_fails_ends_the_run(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(worker: Worker) -> int:
        raise RuntimeError("no memory is known")

    monkeypatch.setattr("reward_kit.agent.evaluation.connection.WorkerProcess.memory", property(broken))
    monkeypatch.setattr("reward_kit.agent.evaluation.workers.LOOK_EVERY", 0.01)
    with pytest.raises(RuntimeError, match="no memory is known"):
        bundle.play("greets", workers=1, worker_memory=5000)


def test_waiters_are_answered_once_and_later_ones_get_the_fault_as_well() -> None:
    async def main() -> list[Any]:
        waiters: Waiters[int, str] = Waiters()
        first, second, third = (waiters.wait(number) for number in range(3))
        second.cancel()
        for number in (0, 0, 1, 7):
            waiters.answer(number, "answered")
        with waiters:
            raise ValueError("over")
        late = waiters.wait(4)
        return await asyncio.gather(first, second, third, late, return_exceptions=True)

    first, second, *others = asyncio.run(main())
    assert (first, type(second)) == ("answered", asyncio.CancelledError)
    assert [str(error) for error in others] == ["over", "over"]
    with pytest.raises(KeyboardInterrupt), Waiters[int, int]():
        raise KeyboardInterrupt


def test_work_that_never_ends_is_named_and_left_some_time_after_the_cancellation(caplog: Any) -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(completed(loop.create_future(), "row-1: storing it"))
        await asyncio.sleep(100)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(1)
        await asyncio.wait({task})
        assert task.cancelled()
        return loop.time() - 1000

    with caplog.at_level(logging.WARNING):
        assert simulate(main()) == 130.0
    assert "row-1: storing it did not end within 30 s" in caplog.text
