"""What a server prints, as a person wants it quoted."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from reward_kit.agent.redaction import redact

if TYPE_CHECKING:
    from pathlib import Path

LAST_LINES, LAST_BYTES = 12, 16_384
SHORT = 300
"""Characters in the error of one call, of which there may be many."""

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class ServerLog:
    """The file ``path``, in a folder of its own, which stays once an error has named it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._named = False

    def lines(self) -> list[str]:
        """The last lines, without colours and keys, and of a progress bar only its last state."""
        with suppress(OSError), self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - LAST_BYTES))
            text = redact(_COLOURS.sub("", file.read().decode(errors="replace")))
            lines = (line.rstrip().rsplit("\r")[-1].strip() for line in text.split("\n"))
            return [line for line in lines if line][-LAST_LINES:]
        return []

    def quoted(self) -> str:
        """Its path and last lines, below one another."""
        self._named = True
        lines = "".join(f"\n  {line}" for line in self.lines())
        return f"The last lines of {self.path}:{lines}" if lines else f"It printed nothing ({self.path})."

    def end(self) -> str:
        """The end of the text and the path, in one short line."""
        self._named = True
        text = " | ".join(self.lines())
        return f"{'…' if len(text) > SHORT else ''}{text[-SHORT:]} (log: {self.path})"

    def clear_away(self) -> None:
        """Remove the folder, unless somebody was told of the log."""
        if not self._named:
            shutil.rmtree(self.path.parent, ignore_errors=True)
