"""Judgements on disk: ``evals/<name>.explanations.jsonl``, a line for each as soon as it is made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from reward_kit.agent.explain.explanation import Explanation
from reward_kit.agent.runs.evaluation_log import EvaluationLog
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = "reward-kit.explanation/1"


class ExplanationFile:
    """Reads what is there, and appends; ``kept`` are the judgements, in the order in which they were made.

    A torn last line (a power cut) is dropped; raises ``StorageError`` for a line that is broken elsewhere.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept: list[Explanation] = []
        self._log = EvaluationLog(path, keep=self._read() if path.exists() else 0)

    def append(self, explanation: Explanation) -> None:
        """On the disk when this returns."""
        self._log.append({"format": FORMAT, **explanation.to_json()})
        self.kept.append(explanation)

    def close(self) -> None:
        self._log.close()

    def _read(self) -> int:
        """Read whole lines; their length in bytes."""
        whole = 0
        try:
            lines = self.path.read_bytes().splitlines(keepends=True)
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror}", place=str(self.path)) from error
        for number, line in enumerate(lines, start=1):
            try:
                self.kept.append(Explanation.from_json(json.loads(line if line.endswith(b"\n") else b"")))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if number == len(lines):
                    break
                raise StorageError(
                    "is no line of a file of explanations",
                    place=f"{self.path}:{number}",
                    remedy="Remove the line: its rollout is then explained again.",
                ) from error
            whole += len(line)
        return whole
