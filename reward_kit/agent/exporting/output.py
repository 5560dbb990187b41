"""Writing an export: lines of JSON, or a file for each rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.files import TO_OUTPUT, as_storage_error, write_file, write_output
from reward_kit.agent.base.strict_json import json_bytes
from reward_kit.agent.records.evaluation_file import read_rollout, reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from reward_kit.agent.exporting.export import Export


def write_lines(lines: Iterable[Any], path: Path | None) -> int:
    """Write a line of JSON for each value (to the standard output if ``path`` is None); return their number.

    Raises ``StorageError`` where the file cannot be written; it then keeps its former content.
    """
    number = 0

    def encoded() -> Iterator[bytes]:
        nonlocal number
        for number, line in enumerate(lines, start=1):  # noqa: B007 - the last one is what is returned
            yield _encoded(line) + b"\n"

    write_output(encoded(), TO_OUTPUT if path is None else path)
    return number


def write_rollouts(found: Export, folder: Path) -> int:
    """Write each rollout to ``folder/roll_ID.json``, which ``load_rollout`` reads; return their number.

    The folder is made if need be. Raises ``StorageError`` where a file cannot be written.
    """
    path = found.evaluation.path
    with as_storage_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with reading(path) as connection:
        for outcome in found.outcomes:
            text = read_rollout(connection, outcome.id, path).trajectory
            write_file(folder / f"roll_{outcome.id}.json", f"{text}\n".encode(), durable=False)
    return len(found.outcomes)


def _encoded(line: Any) -> bytes:
    """JSON that every reader takes: without NaN and infinity, which a policy's log probabilities may hold."""
    from pydantic_core import to_json

    try:
        return to_json(line, inf_nan_mode="null")
    except ValueError:  # half of a surrogate pair, or nested deeper than the encoder goes
        return json_bytes(line)
