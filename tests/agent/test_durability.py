"""In which order things reach the disk: nothing is said to be over that a power cut could take back."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, flight_bundle

from reward_kit.agent import agent_eval
from reward_kit.agent.runs.evaluation_log import FORMAT, EvaluationLog
from reward_kit.errors import StorageError

DESCRIPTORS = Path("/proc/self/fd")
needs_names = pytest.mark.skipif(not DESCRIPTORS.exists(), reason="tells files by /proc/self/fd")
HEADER = {"kind": "evaluation", "format": FORMAT}


class Watched:
    """What is synced (by name) and renamed (to which name), in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, str]] = []
        self._fsync, self._replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", self._seen_fsync)
        monkeypatch.setattr(os, "replace", self._seen_replace)

    def _seen_fsync(self, descriptor: int) -> None:
        name = (DESCRIPTORS / str(descriptor)).readlink().name
        self._fsync(descriptor)
        self.events.append(("sync", name))

    def _seen_replace(self, source: Any, target: Any, **more: Any) -> None:
        self._replace(source, target, **more)
        self.events.append(("rename", Path(target).name))

    def first(self, wanted: Callable[[str, str], bool], after: int = -1) -> int:
        """The place of the first such event after ``after``."""
        return next(place for place, event in enumerate(self.events) if place > after and wanted(*event))


@needs_names
def test_a_rollout_is_over_when_its_files_their_names_and_its_line_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = flight_bundle(tmp_path)
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 1})
    monkeypatch.chdir(tmp_path)
    watched = Watched(monkeypatch)
    told: list[int] = []

    class Told:
        def started(self, tally: Any) -> None: ...

        def ended(self, outcome: Any, tally: Any) -> None:
            told.append(len(watched.events))

        def closed(self, tally: Any) -> None: ...

    result = agent_eval(bundle.dataset, agent="gold", eval_id="mine", progress=Told())
    (outcome,) = result.outcomes
    stem = f"roll_{outcome.id}"
    database = watched.first(lambda what, name: what == "sync" and name.startswith(f".{stem}.db"))
    content = watched.first(lambda what, name: what == "sync" and name.startswith(f".{stem}.json"))
    renamed = watched.first(lambda what, name: (what, name) == ("rename", f"{stem}.json"))
    names = watched.first(lambda what, name: (what, name) == ("sync", "a"), after=renamed)
    row = watched.first(lambda what, name: (what, name) == ("sync", "runs"))
    line = watched.first(lambda what, name: (what, name) == ("sync", "mine.jsonl"), after=renamed)
    assert database < content < renamed < names < line
    assert row < line
    assert line < told[0]
    folders = {name for what, name in watched.events if what == "sync"}
    assert {"evals", "runs"} <= folders  # the names of the log and of the row's folder


def test_after_a_write_that_the_disk_lost_no_line_counts_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Systems report lost data at the first sync alone; the next one succeeds."""
    log = EvaluationLog(tmp_path / "e.jsonl")
    log.append(HEADER)
    real, left = os.fsync, [OSError(errno.EIO, "Input/output error")]

    def fails_once(descriptor: int) -> None:
        if left:
            raise left.pop()
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fails_once)
    for _ in range(2):
        with pytest.raises(StorageError, match="Input/output error"):
            log.append(HEADER)
    log.close()
