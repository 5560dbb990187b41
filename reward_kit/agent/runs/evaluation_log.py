"""The append-only log of an evaluation: what is in it has happened, what is not has not."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.completion import LATEST, MOST_STEPS, check_number
from reward_kit.agent.outcome import RolloutOutcome
from reward_kit.agent.runs.atomic_file import json_bytes, storage_error, sync_folder
from reward_kit.agent.runs.broken_off import KIND as BROKEN_OFF
from reward_kit.agent.runs.broken_off import BrokenOff
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.runs.evaluation_lock import EvaluationLock

FORMAT = "reward-kit.log/1"


@dataclass(slots=True)
class LoggedEvaluation:
    """What a log holds: its headers (the first, then one per resumption) and the outcomes in the order they
    came.

    ``judged`` are the times at which rollouts were judged again that had been played in an earlier run.
    ``broken_off_parts`` are what its lines say of attempts that were broken off, by the id of the line.
    ``whole`` is the number of bytes up to the end of the last whole line.
    """

    headers: list[dict[str, Any]] = field(default_factory=list)
    outcomes: list[RolloutOutcome] = field(default_factory=list)
    judged: list[float] = field(default_factory=list)
    broken_off_parts: dict[str, BrokenOff] = field(default_factory=dict)
    whole: int = 0

    @property
    def broken_off(self) -> BrokenOff:
        """What was used by attempts that were broken off, in all of its runs."""
        total = BrokenOff()
        for part in self.broken_off_parts.values():
            total.add(part)
        return total

    @property
    def seconds(self) -> float:
        """How long its runs took together: each from its header to the end of its last rollout."""
        begun = [float(header["created"]) for header in self.headers]
        over = [(one.started, one.started + one.seconds) for one in self.outcomes]
        over += [(judged, judged) for judged in self.judged]
        total = 0.0
        for start, end in itertools.pairwise([*begun, math.inf]):
            total += max((ended for began, ended in over if start <= began < end), default=start) - start
        return total


class EvaluationLog:
    """Appends lines that are on the disk when ``append`` returns. Used by several threads at once.

    A crash can tear only what is written last, so only the end of the log. The line of a rollout is given to
    it when its trajectory is on the disk, and the names of that file and of its folder. Threads that append
    at the same time share one wait.
    """

    def __init__(self, path: Path, *, keep: int = 0, lock: EvaluationLock | None = None) -> None:
        """Open the log at ``path`` and cut it after ``keep`` bytes: a torn last line goes.

        ``lock`` is what keeps other processes from writing it.
        """
        self.path = path
        self._lock = lock
        self._write_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._written = 0
        self._synced = 0
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
        for fault in self.append_each([line]):
            if fault is not None:
                raise fault

    def append_each(self, lines: Sequence[Mapping[str, Any]]) -> list[StorageError | None]:
        """Add lines with one wait for the disk; for each of them what ``append`` would raise, or None.

        Where not all can be written (the disk is full), the first may be.
        """
        texts = [json_bytes(line) + b"\n" for line in lines]
        whole = 0
        fault: StorageError | None = None
        try:
            whole, error = self._append(texts)
            if error is not None:
                fault = storage_error(error, self.path)
                fault.__cause__ = error
        except OSError as error:
            fault = storage_error(error, self.path)
            fault.__cause__ = error
        except StorageError as error:
            fault = error
        return [None if number < whole else fault for number in range(len(texts))]

    def _append(self, texts: Sequence[bytes]) -> tuple[int, OSError | None]:
        """How many lines are on the disk, and why not more are; raises what leaves that unknown."""
        with self._write_lock:
            whole, error = self._write(texts)
            self._written += whole
            mine = self._written
        with self._sync_lock:
            if whole and self._synced < mine:  # else another thread has waited for our lines as well
                self._sync()
        return whole, error

    def _write(self, texts: Sequence[bytes]) -> tuple[int, OSError | None]:
        """Write lines with one call to the system; what comes of a line that does not fit is cut off."""
        data = memoryview(b"".join(texts))
        written = 0
        fault = None
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError as error:
            fault = error
        ends = [end for end in itertools.accumulate(map(len, texts)) if end <= written]
        self._size += ends[-1] if ends else 0
        if fault is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
        return len(ends), fault

    def _sync(self) -> None:
        if self._lost is not None:  # the system reports lost data once; after that it says that all is well
            raise self._lost
        reached, size = self._written, self._size
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            self._lost = error
            raise
        file = os.fstat(self._descriptor)
        if file.st_nlink == 0 or file.st_size < size:
            raise StorageError(
                f"was {'cut short' if file.st_nlink else 'deleted'} while the evaluation runs",
                place=str(self.path),
                remedy="What finishes from now on would be lost. Restore the file, or begin anew.",
            )
        if self._lock is not None:
            self._lock.keep()
        self._synced = reached

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
        except StorageError as error:
            error.place = f"{path}:{number}"
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines):
                break  # torn: the process died while it wrote
            raise StorageError(
                f"is no line of an evaluation's log: {error!r}",
                place=f"{path}:{number}",
                remedy="The log is damaged. Restore it or remove this line: its rollout is then run again.",
            ) from error
        logged.whole += len(raw)
    # a line that was copied is no second attempt: each has a trajectory of its own
    logged.outcomes = list({outcome.file: outcome for outcome in logged.outcomes}.values())
    return logged


def _other_format(name: Any) -> Exception:
    if not str(name).startswith(FORMAT.partition("/")[0]):
        return ValueError(name)
    return StorageError(
        f"was written by another version of reward-kit (format {name}, this one reads {FORMAT})",
        remedy="Use that version, or another --eval-id.",
    )


def _take(logged: LoggedEvaluation, line: Any) -> None:
    if not isinstance(line, dict):
        raise TypeError("not an object")
    if line["kind"] == "rollout":
        if not logged.headers:
            raise ValueError("no line before it says what was evaluated")
        logged.outcomes.append(_outcome(line))
        if "judged" in line:
            logged.judged.append(line["judged"])
    elif line["kind"] == BROKEN_OFF:
        for usage in _of_kinds(line, _BROKEN_OFF)["usage"].values():
            _of_kinds(usage, dict.fromkeys(usage, _NUMBER))
        logged.broken_off_parts[line["id"]] = BrokenOff.from_json(line)
    elif line["kind"] in ("evaluation", "resumed"):
        if line["format"] != FORMAT:
            raise _other_format(line["format"])
        check_number("created", line.get("created", 0), LATEST)
        logged.headers.append(_of_kinds(line, {name: _HEADER[name] for name in _HEADER if name in line}))
        configuration = line.get("configuration", {})
        for name in ("model_args", "user_model_args"):
            _of_kinds(configuration.get(name, {}), {})
        _of_kinds(configuration, {name: _TEXT for name in ("dataset", "task_dir") if name in configuration})
        for row in line.get("rows", {}).values():
            _of_kinds(row, _ROW)


def _outcome(line: dict[str, Any]) -> RolloutOutcome:
    if any(not isinstance(kind, str) for kind in line.get("user_faults") or ()):
        raise TypeError(f"user_faults is {line['user_faults']!r:.40}")
    _of_kinds(line, {name: _LATER[name] for name in _LATER if name in line})
    metrics, faults = line.get("metrics") or {}, line.get("tool_faults") or {}
    _of_kinds(metrics, dict.fromkeys(metrics, _NUMBER))
    for name in _of_kinds(faults, dict.fromkeys(faults, dict)):
        _of_kinds(faults[name], _TOOL_FAULT)
    outcome = RolloutOutcome.from_json(_of_kinds(line, _ROLLOUT))
    for usage in line["usage"].values():
        _of_kinds(usage, dict.fromkeys(usage, _NUMBER))
    _check_numbers(outcome)
    return outcome


_NUMBER = (int, float)
_LARGEST = sys.float_info.max
_TEXT = (str, type(None))
_HEADER: Mapping[str, Any] = {
    "configuration": dict,
    "rows": dict,
    "code": dict,
    "versions": dict,
    "created": _NUMBER,
}
_BROKEN_OFF: Mapping[str, Any] = {"id": str, "rollouts": int, "usage": dict}
_TOOL_FAULT: Mapping[str, Any] = {"calls": int, "first": str}
_ROW: Mapping[str, Any] = {"n_rollouts": int, "row": str, "seed": str, "tools": str}
_ROLLOUT: Mapping[str, Any] = {
    **dict.fromkeys(("id", "row_id", "stop_reason", "file"), str),
    **dict.fromkeys(("stop_detail", "error", "failure", "failure_detail"), _TEXT),
    **dict.fromkeys(("index", "attempt", "seed", "steps", "turns", "final"), int),
    **dict.fromkeys(("started", "seconds", "model_seconds"), _NUMBER),
    "reward": (*_NUMBER, type(None)),
    "turn_of_success": (int, type(None)),
    "usage": dict,
    "user_faults": (list, type(None)),
    "tool_faults": (dict, type(None)),
}
_LATER: Mapping[str, Any] = {
    "waited_seconds": _NUMBER,
    "timed_calls": (int, type(None)),
    "metrics": (dict, type(None)),
    "judged": _NUMBER,
}


def _check_numbers(outcome: RolloutOutcome) -> None:
    """Raise ``TypeError`` for what no rollout has, so that reports need not end with it."""
    check_number("started", outcome.started, LATEST)
    for name in ("index", "attempt", "steps", "turns", "turn_of_success"):
        if not 0 <= (getattr(outcome, name) or 0) <= MOST_STEPS:
            raise TypeError(f"{name} is {getattr(outcome, name)!r:.40}")


def _of_kinds(plain: Any, kinds: Mapping[str, Any]) -> Any:
    """``plain``, if it is an object whose fields are of these kinds; else raises ``TypeError``."""
    if not isinstance(plain, dict):
        raise TypeError("not an object")
    for name, kind in kinds.items():
        value = plain.get(name)
        is_number = isinstance(value, int | float)
        if not isinstance(value, kind) or (is_number and not -_LARGEST <= value <= _LARGEST):
            raise TypeError(f"{name} is {plain.get(name)!r:.40}")
    return plain
