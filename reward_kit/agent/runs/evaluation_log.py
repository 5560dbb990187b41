"""The append-only log of an evaluation: what is in it has happened, what is not has not."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.outcome import RolloutOutcome
from reward_kit.agent.runs.atomic_file import json_bytes, storage_error, sync_folder, write_all
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = "reward-kit.log/1"


@dataclass(slots=True)
class LoggedEvaluation:
    """What a log holds: its headers (the first, then one per resumption) and the outcomes in the order they
    came.

    ``whole`` is the number of bytes up to the end of the last whole line.
    """

    headers: list[dict[str, Any]] = field(default_factory=list)
    outcomes: list[RolloutOutcome] = field(default_factory=list)
    whole: int = 0


class EvaluationLog:
    """Appends lines that are on the disk when ``append`` returns. Used by several threads at once.

    Each line is written by one call, so a crash can tear only the last one. The line of a rollout is written
    when its trajectory is; ``append`` also waits until the name of that file is on the disk. Threads that
    append at the same time share one wait.
    """

    def __init__(self, path: Path, *, keep: int = 0) -> None:
        """Open the log at ``path`` and cut it after ``keep`` bytes: a torn last line goes."""
        self.path = path
        self._write_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._written = 0
        self._synced = 0
        self._folders: set[Path] = set()
        self._lost: OSError | None = None
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.ftruncate(self._descriptor, keep)
            sync_folder(path.parent)
        except OSError as error:
            raise storage_error(error, path) from error
        self._size = keep

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line; raises ``StorageError`` and leaves the log as it was if it cannot be written."""
        data = json_bytes(line) + b"\n"
        try:
            with self._write_lock:
                self._write(data)
                self._written += 1
                mine = self._written
                if "file" in line:
                    self._folders.add((self.path.parent.parent / line["file"]).parent)
            with self._sync_lock:
                if self._synced < mine:  # else another thread has waited for our line as well
                    self._sync()
        except OSError as error:
            raise storage_error(error, self.path) from error

    def _sync(self) -> None:
        if self._lost is not None:  # the system reports lost data once; after that it says that all is well
            raise self._lost
        with self._write_lock:
            reached, folders, self._folders = self._written, self._folders, set()
        try:
            for folder in folders:
                with contextlib.suppress(FileNotFoundError):  # resuming looks whether the trajectory is there
                    sync_folder(folder)
            os.fsync(self._descriptor)
        except OSError as error:
            self._lost = error
            raise
        if os.fstat(self._descriptor).st_nlink == 0:
            raise StorageError(
                "was deleted while the evaluation runs",
                place=str(self.path),
                remedy="What finishes from now on would be lost. Restore the file, or begin anew.",
            )
        self._synced = reached

    def _write(self, data: bytes) -> None:
        try:
            write_all(self._descriptor, data)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Close the file; may be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_log(path: Path) -> LoggedEvaluation:
    """Read a log without a torn last line; ``StorageError`` for one that is broken elsewhere."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(path)) from error
    logged = LoggedEvaluation()
    lines = data.splitlines(keepends=True)
    for number, raw in enumerate(lines, start=1):
        try:
            _take(logged, json.loads(raw) if raw.endswith(b"\n") else None)
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break  # torn: the process died while it wrote
            raise StorageError(
                f"is no line of an evaluation's log: {error!r}",
                place=f"{path}:{number}",
                remedy="The log is damaged. Restore it or remove this line: its rollout is then run again.",
            ) from error
        logged.whole += len(raw)
    return logged


def _take(logged: LoggedEvaluation, line: Any) -> None:
    if not isinstance(line, dict):
        raise TypeError("not an object")
    if line["kind"] == "rollout":
        if not logged.headers:
            raise ValueError("no line before it says what was evaluated")
        logged.outcomes.append(RolloutOutcome.from_json(line))
    elif line["kind"] in ("evaluation", "resumed"):
        if line["format"] != FORMAT:
            raise ValueError(line["format"])
        logged.headers.append(line)
