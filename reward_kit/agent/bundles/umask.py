"""The umask of the process as it was before a bundle's code ran in it: results get their rights by it.

The system tells it only in exchange for another. Whoever gives it the one that it should have changes nothing
for files that other threads make just then, and learns whether it had it.
"""

from __future__ import annotations

import re
from os import umask  # as it is now: tools may break it
from pathlib import Path

_STATUS = Path("/proc/self/status")
_OWNER_ALONE = 0o077
_expected: int | None = None


def note_umask() -> None:
    """What it is now it should be from now on."""
    global _expected
    _expected = _present()


def put_back_umask() -> bool:
    """Whether it was another than it should be, and is put back."""
    return _expected is not None and umask(_expected) != _expected


def _present() -> int:
    try:
        told = re.search(r"^Umask:\s*([0-7]+)$", _STATUS.read_text(), re.MULTILINE)
    except OSError:  # only Linux has it
        told = None
    if told is not None:
        return int(told[1], 8)
    present = umask(_OWNER_ALONE)  # for a moment, in which a file gets too few rights rather than too many
    umask(present)
    return present
