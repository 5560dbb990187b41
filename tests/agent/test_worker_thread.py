"""Blocking functions beside the loop."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from threading import get_ident

import pytest

from reward_kit.agent.worker_thread import Pace, _Call, in_thread

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE")


async def test_it_gives_what_the_function_returns_or_raises() -> None:
    assert await in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(lambda: next(iter(())))
    with pytest.raises(SystemExit):
        await in_thread(lambda: exec("raise SystemExit(3)"))


async def test_one_thread_serves_one_call_after_the_other() -> None:
    first = await in_thread(get_ident)
    assert first != get_ident()
    assert {await in_thread(get_ident) for _ in range(20)} == {first}


async def test_calls_that_hang_keep_nobody_waiting() -> None:
    release = threading.Event()
    hanging = [asyncio.ensure_future(in_thread(release.wait)) for _ in range(50)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(in_thread(lambda: "here"), 10) == "here"
    hanging[0].cancel()
    release.set()
    assert await asyncio.gather(*hanging[1:]) == [True] * 49


class _Beside:
    """A task that counts how often it gets its turn."""

    def __init__(self) -> None:
        self.turns = 0
        self._task = asyncio.ensure_future(self._count())

    async def _count(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)

    def end(self) -> int:
        self._task.cancel()
        return self.turns


async def test_quick_functions_leave_others_their_turn() -> None:
    beside, pace = _Beside(), Pace()
    for _ in range(50):
        await in_thread(lambda: None, pace=pace)
    assert beside.end() >= 50


async def test_a_quick_function_has_its_outcome_before_anything_else_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for limit in ("QUICK_SECONDS", "PATIENCE"):
        monkeypatch.setattr(f"reward_kit.agent.worker_thread.{limit}", 60.0)
    beside, pace = _Beside(), Pace()
    assert [await in_thread(lambda: 1, pace=pace, in_turn=False) for _ in range(20)] == [1] * 20
    assert beside.end() == 0


async def test_a_caller_that_was_cancelled_hears_of_it_however_quick_the_function_is() -> None:
    async def cancelled() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await in_thread(lambda: None, pace=Pace())

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(cancelled())


class _LetGoLate:
    """A lock that is let go, by ``let_go``, right after the ``attempt``-th attempt to take it has failed."""

    def __init__(self, attempt: int, let_go: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._attempts_left = attempt
        self._let_go = let_go

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking=False)
        self._attempts_left -= 1
        if self._attempts_left == 0:
            self._let_go()
        return taken

    def release(self) -> None:
        self._lock.release()


@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_function_that_ends_as_the_loop_ceases_to_stand_still_is_heard_of(
    monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    call = _Call(lambda: 7, Pace())
    tell = call.run()
    monkeypatch.setattr(call, "_running", _LetGoLate(attempt, tell))
    if call.is_over_soon():
        call.deliver()
    assert await asyncio.wait_for(call.future, 10) == 7


async def test_functions_about_as_quick_as_the_loop_is_patient_all_give_their_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = random.Random(4)
    for number in range(1000):
        monkeypatch.setattr("reward_kit.agent.worker_thread.PATIENCE", chance.uniform(0.0, 0.0001))
        spins = chance.randrange(3000)
        function = lambda n=number, s=spins: (n, sum(range(s)))[0]  # noqa: E731
        assert await asyncio.wait_for(in_thread(function, pace=Pace()), 20) == number


async def test_the_loop_goes_on_for_a_function_of_no_known_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reward_kit.agent.worker_thread.PATIENCE", 60.0)
    assert await in_thread(_asking(asyncio.get_running_loop())) == "answer"


async def test_the_loop_goes_on_for_a_function_of_a_slow_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace()
    await in_thread(lambda: time.sleep(0.02), pace=pace)
    monkeypatch.setattr("reward_kit.agent.worker_thread.PATIENCE", 60.0)
    assert await in_thread(_asking(asyncio.get_running_loop()), pace=pace) == "answer"


async def test_functions_that_hang_hold_the_loop_up_a_few_times_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pace, release = Pace(), threading.Event()
    await in_thread(lambda: None, pace=pace)
    monkeypatch.setattr("reward_kit.agent.worker_thread.PATIENCE", 0.02)
    hanging = [asyncio.ensure_future(in_thread(release.wait, pace=pace)) for _ in range(8)]
    await asyncio.sleep(0)
    monkeypatch.setattr("reward_kit.agent.worker_thread.PATIENCE", 60.0)
    try:
        assert await in_thread(_asking(asyncio.get_running_loop()), pace=pace) == "answer"
    finally:
        release.set()
    assert await asyncio.gather(*hanging) == [True] * 8


@pytest.mark.parametrize(
    ("seconds", "quick"),
    [
        ([], True),
        ([0.1], False),
        ([0.0001], True),
        ([0.0001, 0.1], True),
        ([0.0001, 0.1, 0.1, 0.1], False),
        ([0.1, 0.0001], True),
        ([0.0, 0.1, 0.1], True),
        ([0.0, 0.1, 0.1, 0.1, 0.1], False),
    ],
)
def test_a_kind_is_as_quick_as_its_quickest_of_late(seconds: list[float], quick: bool) -> None:
    pace = Pace()
    for one in seconds:
        pace.note(one)
    assert pace.is_quick == quick


def test_functions_beside_the_loop_that_were_kept_from_the_lock_do_not_stay_slow() -> None:
    pace = Pace()
    for _ in range(4):
        pace.note(0.1)
    for _ in range(100):  # as hundreds do that run at once
        pace.note(0.05, beside=True)
    tried = [pace.is_tried() for _ in range(4)]
    assert tried == [False, False, False, True]
    pace.note(0.0001)
    assert pace.is_quick
    assert pace.is_tried()


def test_the_loop_stands_still_ever_more_rarely_for_a_slow_kind() -> None:
    pace = Pace()
    at = []
    pace.note(0.1)
    for number in range(3000):
        if pace.is_tried():
            at.append(number)
            pace.note(0.1)
    spacings = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert spacings[:6] == [8, 16, 32, 64, 128, 256]
    assert set(spacings[6:]) == {256}


def test_a_quick_time_counts_wherever_it_was_measured() -> None:
    pace = Pace()
    pace.note(0.1)
    pace.note(0.0001, beside=True)
    assert pace.is_quick


def _asking(loop: asyncio.AbstractEventLoop) -> Callable[[], str]:
    """A function that fails where the loop stands still."""

    async def answer() -> str:
        return "answer"

    return lambda: asyncio.run_coroutine_threadsafe(answer(), loop).result(timeout=10)


async def test_the_callers_context_is_seen_and_stays_as_it_is() -> None:
    VARIABLE.set("outside")

    def change() -> str:
        seen = VARIABLE.get()
        VARIABLE.set("inside")
        return seen

    assert await in_thread(change) == "outside"
    assert VARIABLE.get() == "outside"


def test_threads_without_work_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reward_kit.agent.worker_thread.IDLE_SECONDS", 0.05)
    started = threading.Barrier(8)

    async def use_eight() -> set[int]:
        return set(
            await asyncio.gather(*(in_thread(lambda: (started.wait(20), get_ident())[1]) for _ in range(8)))
        )

    used = asyncio.run(use_eight())
    assert len(used) == 8
    deadline = time.monotonic() + 20
    while used & {thread.ident for thread in threading.enumerate()} and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not used & {thread.ident for thread in threading.enumerate()}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_makes_threads_of_its_own() -> None:
    asyncio.run(in_thread(lambda: None))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = asyncio.run(asyncio.wait_for(in_thread(lambda: 0), 20))
        finally:
            os._exit(code)
    deadline = time.monotonic() + 30
    done = status = 0
    while not done and time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)
    assert done
    assert os.waitstatus_to_exitcode(status) == 0
