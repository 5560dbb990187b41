"""Blocking functions beside the event loop."""

import asyncio
import contextvars
import os
import queue
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from reward_kit.agent.base import worker_thread
from reward_kit.agent.base.worker_thread import in_thread, run_sync

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE")


async def test_the_outcome_of_the_function_is_returned_or_raised() -> None:
    assert await in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(lambda: next(iter(())))
    with pytest.raises(SystemExit):
        await in_thread(lambda: exec("raise SystemExit(3)"))


def test_code_that_a_sync_call_runs_may_make_one() -> None:
    async def inner() -> str:
        return await in_thread(lambda: run_sync(asyncio.sleep(0, "inner")))

    async def outer() -> list[str]:
        return [run_sync(inner()), await in_thread(lambda: run_sync(inner()))]

    assert run_sync(asyncio.wait_for(outer(), 10)) == ["inner", "inner"]


def test_sync_calls_that_begin_at_once_share_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_thread, "_loops", {})
    interval, begin = sys.getswitchinterval(), threading.Barrier(8)

    async def running() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def asked(_: int) -> asyncio.AbstractEventLoop:
        begin.wait()
        return run_sync(running())

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            assert len(set(threads.map(asked, range(8)))) == 1
    finally:
        sys.setswitchinterval(interval)


def test_an_exit_reaches_who_waits_and_later_calls_run() -> None:
    async def leaves() -> None:
        sys.exit(3)

    with pytest.raises(SystemExit, match="3"):
        run_sync(leaves())
    assert run_sync(asyncio.sleep(0, "later")) == "later"


def test_a_sync_call_in_a_thread_of_another_has_its_event_loop() -> None:
    async def running() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def outer() -> list[asyncio.AbstractEventLoop]:
        return [await running(), await in_thread(lambda: run_sync(running())), run_sync(running())]

    own, of_thread, held_up = run_sync(outer())
    assert own is of_thread
    assert own is not held_up


def test_ctrl_c_cancels_what_a_sync_call_waits_for() -> None:
    ends: queue.Queue[str] = queue.Queue()

    async def slow() -> None:
        try:
            await asyncio.sleep(5)
            ends.put("done")
        finally:
            ends.put("cancelled")

    main = threading.main_thread().ident or 0
    threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run_sync(slow())
    assert ends.get(timeout=4) == "cancelled"


async def test_calls_that_hang_do_not_delay_others() -> None:
    release = threading.Event()
    hanging = [asyncio.ensure_future(in_thread(release.wait)) for _ in range(50)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(in_thread(lambda: "here"), 10) == "here"
    hanging[0].cancel()
    release.set()
    assert await asyncio.gather(*hanging[1:]) == [True] * 49


async def test_a_call_is_made_though_a_thread_could_not_be_started_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, faults = threading.Thread.start, [RuntimeError("can't start new thread")]

    def start_later(thread: threading.Thread) -> None:
        if faults:
            raise faults.pop()
        start(thread)

    monkeypatch.setattr(worker_thread, "_threads", worker_thread._Threads())  # none of which is idle
    monkeypatch.setattr(threading.Thread, "start", start_later)
    assert await asyncio.wait_for(in_thread(lambda: 7), 10) == 7
    assert faults == []


async def test_the_callers_context_is_seen_and_not_changed() -> None:
    VARIABLE.set("outside")

    def change() -> str:
        seen = VARIABLE.get()
        VARIABLE.set("inside")
        return seen

    assert await in_thread(change) == "outside"
    assert VARIABLE.get() == "outside"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks there")
def test_a_forked_child_has_a_loop_of_its_own() -> None:
    code = """
import os, signal
from reward_kit.agent.base.worker_thread import run_sync
async def answer(): return 5
assert run_sync(answer()) == 5
if (child := os.fork()) == 0:
    signal.alarm(20)
    os._exit(run_sync(answer()))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "5\n", done.stderr
