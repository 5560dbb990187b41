"""Temporary folders, and what becomes of those of killed processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from reward_kit.agent import temporary_folder as module
from reward_kit.agent.temporary_folder import remove_left_over, temporary_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is removed there")

FORKS = """
import sys, time
from reward_kit.agent.database import Database
with Database.seed(sys.argv[1], "CREATE TABLE t(x);", mode="file") as base:
    fork = base.fork()
    print(fork.path, flush=True)
    time.sleep(60)
"""


def start(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process with a fork of its own, and the file of the fork."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(place / "base.db")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(place)},
    )
    assert process.stdout is not None
    with process.stdout:
        return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_is_removed_and_what_others_use_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, left = start(tmp_path)
    running, used = start(tmp_path)
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.exists()
        own = temporary_folder("database")  # the first of this process here
        for _ in range(500):
            if not left.parent.exists():
                break
            time.sleep(0.01)
        assert not left.parent.exists()
        assert used.exists()
        assert own.exists()
    finally:
        running.terminate()
        running.wait()


def test_folders_of_another_machine_and_other_things_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, "_swept", {str(tmp_path)})  # not by a thread, meanwhile
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    own = temporary_folder("x")
    dead = own.with_name(own.name.replace(f"-{os.getpid()}-", f"-{ended.pid}-"))
    dead.mkdir()
    others = [tmp_path / "reward-kit-model-ab12", tmp_path / f"{own.name.partition('-x-')[0]}-x-"]
    monkeypatch.setattr(module.platform, "node", lambda: "another")
    others.append(temporary_folder("x"))
    others.append(others[-1].with_name(others[-1].name.replace(f"-{os.getpid()}-", f"-{ended.pid}-")))
    for folder in others:
        folder.mkdir(exist_ok=True)
    monkeypatch.undo()
    remove_left_over(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([own, *others])
