"""Faults of a worker stay its own: what they cost, and what they do not."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command import children_of, gone, start, wait_for
from flight_bundle import GOLD, TOOLS, Bundle

from reward_kit.agent import load_rollout
from reward_kit.agent.evaluation.worker import _ProcessState

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what the system offers there is used")

PLAYERS = '''
import asyncio
import ctypes
import os
import resource
import signal
import time
from pathlib import Path


def first(name):
    """True for the first that asks."""
    try:
        Path(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


async def kills_the_server(rollout):
    await asyncio.sleep(0.05)
    if rollout.index == 1 and first("server_killed"):
        os.kill(os.getppid(), signal.SIGKILL)
        await asyncio.sleep(60)
    return "Hello"


async def harms(rollout):
    """Harms its process as the row says; the others say where they are."""
    await asyncio.sleep(0.05)
    what = rollout.metadata["what"]
    if what == "folder":
        os.chdir("/")
    elif what in ("files", "size"):
        number = {"files": resource.RLIMIT_NOFILE, "size": resource.RLIMIT_FSIZE}[what]
        resource.setrlimit(number, (8, 8))
        held = [os.dup(2) for _ in range(100)] if what == "files" else None
    return os.getcwd()


async def dies_among_others(rollout):
    """All begin at once; one ends its process. When they are played again, they wait for each other."""
    folder = Path("again" if Path("died").exists() else "once")
    folder.mkdir(exist_ok=True)
    (folder / f"{rollout.index}_{os.getpid()}").touch()
    if folder.name == "once":
        while len(list(folder.iterdir())) < 6:
            await asyncio.sleep(0.01)
        if rollout.index == 0 and first("died"):
            os._exit(3)
        await asyncio.sleep(60)
    for _ in range(3000):
        if len(list(folder.iterdir())) == 6:
            return "together"
        await asyncio.sleep(0.01)
    return "alone"


async def holds_the_interpreter(rollout):
    Path(f"began_{rollout.index}").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    if rollout.index == 0:
        Path("held").touch()
        ctypes.PyDLL(None).sleep(600)
    await asyncio.sleep(600)
'''


def test_a_killed_process_that_forks_is_started_again(bundle: Bundle) -> None:
    killed = 'import os, pathlib\nif not pathlib.Path("loaded").exists():\n'
    killed += (
        '    pathlib.Path("loaded").touch()\n    os.kill(os.getppid(), 9)\n    os.kill(os.getpid(), 9)\n'
    )
    bundle.write("tools.py", f"{killed}{TOOLS}")
    result = bundle.play("kills_the_server", workers=4)
    assert Path("loaded").exists()
    assert Path("server_killed").exists()
    assert [one.stop_reason for one in result.outcomes] == ["agent_done"] * 4


def test_what_a_rollout_changes_in_its_process_reaches_no_other(bundle: Bundle, caplog: Any) -> None:
    harms = ["folder", "none", "files", "none", "size", "none"]
    bundle.rows(
        *(
            {"id": f"{number}-{what}", "n_rollouts": 1, "metadata": {"what": what}, "actions": GOLD}
            for number, what in enumerate(harms)
        )
    )
    result = bundle.play("harms", workers=1, max_concurrency=1, keep_db="full")
    lost = [one.row_id for one in result.outcomes if not one.scored]
    assert set(lost) <= {"2-files", "4-size"}
    assert result.status == "complete"
    for one in result.outcomes:
        if one.row_id.endswith("none"):
            assert load_rollout(result.folder / one.file).messages[-1]["content"] == str(Path.cwd())
    assert "0-folder, rollout 0: the working directory of its process has changed" in caplog.text


def test_a_change_of_a_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KNOWN", "before")
    state = _ProcessState()
    monkeypatch.setenv("ADDED", "later")
    assert state.changed() is None
    monkeypatch.setenv("KNOWN", "after")
    assert state.changed() == "environment"
    monkeypatch.setattr(os, "environ", {})
    assert state.changed() == "environment"
    monkeypatch.undo()
    monkeypatch.setenv("KNOWN", "before")
    handler = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        assert state.changed() == "signal handlers"
    finally:
        signal.signal(signal.SIGALRM, handler)


def test_the_neighbours_of_a_crash_are_played_again_side_by_side(bundle: Bundle) -> None:
    bundle.rows({"id": "row", "n_rollouts": 6})
    result = bundle.play("dies_among_others", workers=1)
    assert [one.stop_reason for one in result.outcomes] == ["agent_done"] * 6
    processes = {path.name.partition("_")[2] for path in Path("again").iterdir()}
    assert len(processes) == 6


def test_a_worker_that_holds_the_interpreter_ends_with_a_command_that_is_killed(bundle: Bundle) -> None:
    options = (
        "--agent",
        bundle.player("holds_the_interpreter"),
        "--user",
        "none",
        "--workers",
        "1",
        "--quiet",
    )
    ran = start("agent-eval", "-d", bundle.dataset, *options)
    wait_for(lambda: len(list(Path().glob("began_*"))) == 4, ran)
    Path("go").touch()
    wait_for(Path("held").exists, ran)
    (server,) = children_of(ran.pid)
    (worker,) = children_of(server)
    time.sleep(0.1)  # it is asleep by then
    ran.kill()
    assert ran.wait(60) == -9
    wait_for(lambda: gone(server) and gone(worker))
