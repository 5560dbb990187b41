"""Importing a bundle's own code, and telling what went wrong in it without a traceback."""

from __future__ import annotations

from pathlib import Path

from reward_kit.agent.faults import fault_line


def code_fault(error: BaseException) -> str:
    """The line of the bundle's code and the error: ``tools.py:3: KeyError: 'seat'``."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}: {type(error).__name__}: {error.msg}"
    if isinstance(error, SystemExit):
        return f"{fault_line(error)} (code that is imported must not exit)"
    return fault_line(error)
