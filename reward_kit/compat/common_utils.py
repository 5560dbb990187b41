"""``load_jsonl``, at its import path of the earlier releases."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


def load_jsonl(file_path: str | Path) -> list[Any]:
    """Read a JSONL file, one value per line.

    Never raises: lines that are not JSON, blank ones and comments included, are logged and skipped; an
    unreadable file is logged and returns ``[]``.
    """
    values: list[Any] = []
    try:
        with Path(file_path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    values.append(json.loads(line))
                except json.JSONDecodeError as error:
                    logger.warning("%s:%d: not JSON: %s", file_path, number, error)
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read: %s", file_path, error)
        return []
    return values
