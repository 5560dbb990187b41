"""Names of files that are being written."""

from __future__ import annotations

import itertools
import os
import secrets

_PROCESS = secrets.token_hex(4)
"""Tells processes of several machines or containers apart, which may have the same number."""
_counter = itertools.count()


def temporary_name(name: str) -> str:
    """A hidden name for a draft of the file ``name``, which no other writer uses at the same time."""
    return f".{name}.{os.getpid()}-{_PROCESS}-{next(_counter)}.tmp"
