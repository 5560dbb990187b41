"""The samples that a preview judges: from a JSONL file, or from a Hugging Face data set."""

from __future__ import annotations

import importlib
import itertools
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

Sample = dict[str, Any]
"""``messages``, perhaps ``ground_truth``, and whatever else the reward takes as keyword arguments."""


def samples_from_jsonl(path: str | Path, max_samples: int) -> list[Sample]:
    """At most ``max_samples`` objects of a JSONL file; lines that are no JSON object are logged and left out.

    Raises ``ValueError`` where the file does not exist.
    """
    if not Path(path).exists():
        raise ValueError(f"Sample file does not exist: {path}")
    with Path(path).open(encoding="utf-8") as file:
        objects = (_object(line, f"{path}:{number}") for number, line in enumerate(file, 1) if line.strip())
        return list(itertools.islice((value for value in objects if value is not None), max_samples))


def samples_from_hugging_face(
    name: str,
    max_samples: int,
    *,
    split: str = "train",
    prompt_key: str = "prompt",
    response_key: str = "response",
    key_map: Mapping[str, str] | None = None,
) -> list[Sample]:
    """The first rows of a data set that have a prompt and a response, as dialogues of user and assistant.

    ``key_map`` renames columns; the other columns keep their names. Raises ``ImportError`` without the
    ``datasets`` package, ``ValueError`` where no row has both.
    """
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise ImportError(
            "the 'datasets' package is needed to read data sets: pip install datasets"
        ) from error
    samples: list[Sample] = []
    for row in datasets.load_dataset(name, split=split, streaming=True):
        if len(samples) == max_samples:
            break
        if not row.get(prompt_key) or not row.get(response_key):
            continue
        messages = [
            {"role": "user", "content": row[prompt_key]},
            {"role": "assistant", "content": row[response_key]},
        ]
        names = {**{key: key for key in row if key not in (prompt_key, response_key)}, **(key_map or {})}
        samples.append({**{new: row[old] for old, new in names.items() if old in row}, "messages": messages})
    if not samples:
        raise ValueError(f"No valid samples found in {name}: no row has {prompt_key!r} and {response_key!r}")
    return samples


def _object(line: str, place: str) -> Sample | None:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        logger.warning("%s: not JSON: %s", place, error)
        return None
    if isinstance(value, dict):
        return value
    logger.warning("%s: not a JSON object", place)
    return None
