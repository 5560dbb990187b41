"""The pipes of a process end with it, whoever else holds them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import pytest

from reward_kit.agent.executors.process_pipes import GRACE, start_process

pytestmark = pytest.mark.skipif(os.name != "posix", reason="elsewhere children inherit no pipes")

LEAVES_A_CHILD = """
import subprocess, sys
child = subprocess.Popen(["sleep", "600"], stdin=sys.stdin, stdout=sys.stdout)
print(child.pid, flush=True)
"""


async def test_its_output_ends_though_a_child_of_its_own_holds_it() -> None:
    begun = time.monotonic()
    process = await start_process(sys.executable, "-c", LEAVES_A_CHILD)
    assert process.stdout is not None
    said = await asyncio.wait_for(process.stdout.read(), 60)
    child = int(said)
    try:
        assert await asyncio.wait_for(process.wait(), 60) == 0
        assert time.monotonic() - begun < GRACE + 30
        os.kill(child, 0)  # it still runs
    finally:
        os.kill(child, signal.SIGKILL)


async def test_all_that_it_said_is_read_though_it_has_ended() -> None:
    process = await start_process(sys.executable, "-c", "print('x' * 10**6)")
    assert process.stdout is not None
    assert len(await process.stdout.read()) == 10**6 + 1
    assert await process.wait() == 0
