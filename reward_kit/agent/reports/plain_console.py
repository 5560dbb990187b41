"""Rich, as the reports and the progress use it."""

from __future__ import annotations

import errno
import os
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def plain_console(stream: IO[str]) -> Console:
    """A console that takes text as it is; ``BrokenPipeError`` where nobody reads on, as for any stream."""
    from rich.console import Console

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:  # rich would end the process with the code of a failed evaluation
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    return PlainConsole(file=stream, markup=False, highlight=False, emoji=False)
