"""A process that brings files to the disk, so that the one that plays does not.

Each call to the file system hands Python's lock from the thread that saves to the one that plays and back,
which costs both more than the call. Here a batch of rollouts is two messages: what to save, and what came of
it. The process starts when saving falls behind or surely will, and ends with its standard input, or when told
so: a process that a tool has forked may hold the other end.

A message is a line of JSON; behind that of a batch follow the contents of its files. An empty line ends all.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from reward_kit.agent.own_pipes import keep_from_children
from reward_kit.agent.runs.parcels import NewFile, Parcel, RowFolder, save_parcels
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_BYTES = 8 << 20
"""A batch with more in it is copied by whoever has it rather than sent."""

WRITERS = 3
"""Threads of the process; what they do is waiting for the file system, and it serves several at once."""

GRACE = 10.0
"""Seconds in which the process ends once it has nothing more to do."""


class FileProcess:
    """Saves parcels as ``save_parcels`` does, in another process; used by one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = False
        self._usable = os.name == "posix"  # elsewhere nobody can look whether it has begun

    def save(self, parcels: Sequence[Parcel]) -> list[StorageError | None] | None:
        """What ``save_parcels`` returns; None where the caller has to save them: nothing is lost by that.

        So it is while the process begins, where there can be none, and after it has died.
        """
        contents = [b"".join(file.parts) for parcel in parcels for file in parcel.files]
        self.start()
        if sum(map(len, contents)) > MOST_BYTES or not self.has_begun():
            return None
        answer = self._answer(b"".join([_heading(parcels), *contents]))
        if not answer.endswith(b"\n"):
            self.close()
            return None
        return [None if fault is None else StorageError.from_json(fault) for fault in json.loads(answer)]

    def start(self) -> None:
        """Start the process, unless that was done or cannot be."""
        if self._usable and self._process is None:
            try:
                self._process = _start()
            except OSError:  # no memory, no more processes: it goes without
                self._usable = False

    def has_begun(self) -> bool:
        """Whether the process is there to be asked by now."""
        if self._process is not None and not self._begun:
            source, _ = _pipes(self._process)
            self._begun = bool(select.select([source], [], [], 0)[0]) and source.readline() == READY
        return self._begun

    def close(self) -> None:
        """End the process; there will be no other."""
        process, self._process = self._process, None
        self._usable = self._begun = False
        if process is None:
            return
        source, target = _pipes(process)
        source.close()
        with suppress(OSError):  # what it was told last, it did not hear
            target.write(LAST)
            target.flush()
        with suppress(OSError):
            target.close()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _answer(self, message: bytes) -> bytes:
        """What the process says to ``message``; nothing, if it has died."""
        assert self._process is not None, "it is ready"
        source, target = _pipes(self._process)
        try:
            target.write(message)
            target.flush()
            return source.readline()
        except OSError:
            return b""


READY = b"ready\n"
LAST = b"\n"
PROGRAM = (
    f"import os, sys; sys.path.append(sys.argv[1]); from {__name__} import main; main(); "
    "os._exit(0)  # the run waits for the end, and Python's takes 20 ms"
)


def _start() -> subprocess.Popen[bytes]:
    # isolated: modules of a bundle, or in the present folder, may have names of the standard library
    command = [sys.executable, "-I", "-c", PROGRAM, str(Path(__file__).parents[3])]
    process = subprocess.Popen(  # noqa: S603 - this module, run by this interpreter
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the process that plays, which then closes this one
    )
    for end in _pipes(process):
        keep_from_children(end.fileno())
    return process


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """Where it is heard, and where it is told."""
    assert process.stdout is not None, "it was started with pipes"
    assert process.stdin is not None, "it was started with pipes"
    return process.stdout, process.stdin


def _heading(parcels: Sequence[Parcel]) -> bytes:
    plain = [
        {
            "folder": None if parcel.folder is None else [str(parcel.folder.path), str(parcel.folder.base)],
            "files": [[str(file.path), sum(map(len, file.parts)), file.durable] for file in parcel.files],
        }
        for parcel in parcels
    ]
    return json.dumps(plain).encode() + b"\n"


def _received(heading: bytes, stream: IO[bytes]) -> list[Parcel]:
    """The parcels of a batch; ``EOFError`` where it breaks off."""
    return [_parcel(plain, stream) for plain in json.loads(heading)]


def _parcel(plain: dict[str, Any], stream: IO[bytes]) -> Parcel:
    files = []
    for path, size, durable in plain["files"]:
        content = stream.read(size)
        if len(content) < size:
            raise EOFError
        files.append(NewFile(Path(path), (content,), durable))
    folder = plain["folder"]
    return Parcel(files, None if folder is None else RowFolder(*map(Path, folder)))


def main() -> None:
    """Save what comes on standard input until it ends."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    target.write(READY)
    target.flush()
    with ThreadPoolExecutor(WRITERS) as writers:
        while heading := source.readline():
            if heading == LAST or not heading.endswith(b"\n"):
                return
            try:
                parcels = _received(heading, source)
            except EOFError:  # the process that plays died; what it told of in part is nobody's
                return
            share = len(parcels) // WRITERS + 1
            shares = [parcels[first : first + share] for first in range(0, len(parcels), share)]
            faults = [fault for saved in writers.map(save_parcels, shares) for fault in saved]
            plain = [None if fault is None else fault.to_json() for fault in faults]
            target.write(json.dumps(plain).encode() + b"\n")
            target.flush()
