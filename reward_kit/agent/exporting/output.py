"""Rows of an export as lines of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.agent.runs.atomic_file import json_bytes
from reward_kit.agent.runs.output_file import TO_OUTPUT, write_output

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


def write_lines(lines: Iterable[Any], path: Path | None) -> int:
    """Write a line of JSON for each value (to the standard output where there is no ``path``); how many.

    Raises ``StorageError`` where the file cannot be written: what stood there before then still stands there.
    """
    number = 0

    def encoded() -> Iterator[bytes]:
        nonlocal number
        for number, line in enumerate(lines, start=1):  # noqa: B007 - the last one is what is returned
            yield _encoded(line) + b"\n"

    write_output(encoded(), TO_OUTPUT if path is None else path)
    return number


def _encoded(line: Any) -> bytes:
    """JSON that every reader takes: without NaN and infinity, which a policy's log probabilities may hold."""
    from pydantic_core import to_json

    try:
        return to_json(line, inf_nan_mode="null")
    except ValueError:  # half of a surrogate pair, or nested deeper than the encoder goes
        return json_bytes(line)
