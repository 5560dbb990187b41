"""Kept answers of models: a file for each, which appears whole or not at all.

A file each, rather than one database: a read of the warm file system takes 20 µs, processes on other machines
may share the folder, and whatever damages one file damages one answer.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from reward_kit.agent.completion import Completion, Usage
from reward_kit.agent.runs.atomic_file import temporary_beside, write_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = logging.getLogger(__name__)

FORMAT = "reward-kit.answer/1"
TRIES = 5
"""So often an answer is written while others clear the cache; then it is let go."""


class AnswerStore:
    """The answers in a folder (``answers`` below ``root``), by the key of their request.

    Used by several processes at once. Nothing here raises for what is on the disk: a damaged answer counts as
    missing and is written again, and where the folder itself cannot be used the models are simply asked;
    ``warn`` is told the first time.
    """

    def __init__(self, root: Path, *, warn: Callable[[str], None] = logger.warning) -> None:
        self.root = root
        self._answers = root / "answers"
        self._warn = warn
        self._warned = False

    def get(self, key: str) -> Completion | None:
        """The kept answer, marked as such in its usage; None where there is none."""
        path = self._path(key)
        try:
            with path.open("rb") as file:
                return _decoded(file.read(), key)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._unusable(error)
        except (ValueError, KeyError, TypeError):
            self._tell(f"{path}: this kept answer is damaged; the model is asked again")
        return None

    def add(self, key: str, completion: Completion) -> Completion:
        """Keep an answer; returns the one that is kept.

        That is another's where another process has answered the same call meanwhile: both then go on with the
        same words. Its usage stays what it was here, since this call has been paid for as well.
        """
        try:
            data = _encoded(completion, key)
        except (TypeError, ValueError):  # a field that JSON cannot hold would not come back as it was
            return completion
        try:
            kept = self._kept(key, data)
        except OSError as error:
            self._unusable(error)
            return completion
        if kept is None:
            return completion
        kept.usage, kept.seconds, kept.waited = completion.usage, completion.seconds, completion.waited
        return kept

    def clear(self) -> None:
        """Forget all answers. Processes that are writing some begin a new folder."""
        for gone in self.root.glob(".gone.*"):  # a process died while it cleared
            shutil.rmtree(gone, ignore_errors=True)
        gone = self.root / f".gone.{temporary_beside(self._answers).name}"
        try:
            self._answers.rename(gone)
        except FileNotFoundError:
            return
        except OSError as error:
            self._unusable(error)
            return
        shutil.rmtree(gone, ignore_errors=True)

    def _path(self, key: str) -> Path:
        return self._answers / key[:2] / f"{key}.json"

    def _kept(self, key: str, data: bytes) -> Completion | None:
        """Write the answer; another's that is there already is returned. Raises ``OSError``."""
        path = self._path(key)
        for _ in range(TRIES):
            try:
                if self._published(path, data):
                    return None
                kept = self.get(key)
                if kept is None:
                    self._published(path, data, replace=True)
            except FileNotFoundError:  # the folder has just been cleared
                continue
            return kept
        return None

    def _published(self, path: Path, data: bytes, *, replace: bool = False) -> bool:
        """Give the data its name; False where another's has it already. Raises ``OSError``."""
        temporary = temporary_beside(path)
        try:
            descriptor = _created(temporary)
            try:
                write_all(descriptor, data)
            finally:
                os.close(descriptor)
            if not replace:
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    return False
                except OSError:  # a file system without links: the last one wins
                    replace = True
            if replace:
                temporary.replace(path)
            return True
        finally:
            temporary.unlink(missing_ok=True)

    def _unusable(self, error: OSError) -> None:
        self._tell(
            f"{self.root}: answers of models cannot be kept there ({error.strerror or error}); "
            "the models are asked instead"
        )

    def _tell(self, fault: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(fault)


def _created(path: Path) -> int:
    """A new file to write; its folder is made if need be.

    Raises ``FileNotFoundError`` where another process clears the cache just then.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:  # it was there, and is gone by now
            if path.parent.exists() and not path.parent.is_dir():
                raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
        return os.open(path, flags, 0o666)


def _encoded(completion: Completion, key: str) -> bytes:
    """A checksum, then the answer; raises ``TypeError`` or ``ValueError`` for what is not JSON."""
    plain = {"format": FORMAT, "key": key, **asdict(completion)}
    del plain["waited"]  # whoever gets the kept answer has not waited
    body = json.dumps(plain).encode()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _decoded(data: bytes, key: str) -> Completion:
    """The answer; raises ``ValueError``, ``KeyError`` or ``TypeError`` unless it is whole and of this key."""
    checksum, _, body = data.partition(b"\n")
    if checksum != hashlib.sha256(body).hexdigest().encode():
        raise ValueError("the checksum is wrong")
    plain: dict[str, Any] = json.loads(body)
    if plain.pop("format") != FORMAT or plain.pop("key") != key:
        raise ValueError("this is no answer to that call")
    usage = Usage(**plain.pop("usage"))
    usage.reused_calls, usage.reused_cost = usage.calls, usage.cost
    usage.reused_tokens = usage.input_tokens + usage.output_tokens
    return Completion(usage=usage, **plain)
