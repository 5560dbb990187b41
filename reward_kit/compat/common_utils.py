"""``load_jsonl``, at its import path of the earlier releases."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)


def load_jsonl(file_path: str | Path) -> list[Any]:
    """Read a JSONL file, one value per line.

    Never raises: lines that are not JSON are logged and skipped, blank ones skipped; an unreadable file is
    logged and returns ``[]``.
    """
    try:
        return list(json_lines(file_path))
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read: %s", file_path, error)
        return []


def json_lines(path: str | Path) -> Iterator[Any]:
    """Read the values one by one, and log lines that are not JSON; raises ``OSError`` or ``ValueError``."""
    with Path(path).open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield from [json.loads(line)] if line.strip() else []
            except json.JSONDecodeError as error:
                logger.warning("%s:%d: not JSON: %s", path, number, error)
