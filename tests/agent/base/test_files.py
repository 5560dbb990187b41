"""Files: whole or not at all, and temporary folders of processes that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reward_kit.agent.base.files import temporary_folder, write_output
from reward_kit.errors import StorageError


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_bytes(b"before")

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_output(broken(), path)
    assert path.read_bytes() == b"before"
    write_output([b"af", b"ter"], path)
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_is_written_and_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    write_output([b"a", b"b"], path)
    reader.join(20)
    assert read == [b"ab"]
    assert path.is_fifo()


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_output([b"a"], tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"a"


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere/out\.json: cannot be written: No such file"):
        write_output([b"a"], tmp_path / "nowhere" / "out.json")
    with pytest.raises(StorageError, match="Is a directory"):
        write_output([b"a"], tmp_path)


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


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is removed there")
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
