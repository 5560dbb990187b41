"""Inputs of an evaluation preview: metric folders and samples.

A metric folder has a ``main.py`` with a function ``evaluate``; samples come from a JSONL file or from a
Hugging Face data set.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.errors import RewardKitError
from reward_kit.models import EvaluateResult, RewardOutput

from .common_utils import json_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Sample = dict[str, Any]
"""``messages``, optionally ``ground_truth``, and further keyword arguments of the reward."""


def read_samples(
    file: str | Path | None, dataset: str | None, max_samples: int, **columns: Any
) -> list[Sample]:
    """Read the first samples of a Hugging Face ``dataset`` with these ``columns``, or else of a JSONL file.

    Raises ``ValueError`` if there are none.
    """
    if dataset:
        return samples_from_hugging_face(dataset, max_samples, **columns)
    if not file:
        raise ValueError("Either sample_file or huggingface_dataset must be specified.")
    if not Path(file).exists():
        raise ValueError(f"Sample file does not exist: {file}")
    objects = (value for value in json_lines(file) if isinstance(value, dict))
    samples = list(itertools.islice(objects, max_samples))
    if not samples:
        raise ValueError(f"No valid samples found in {file}")
    return samples


def samples_from_hugging_face(
    name: str,
    max_samples: int,
    *,
    split: str = "train",
    prompt_key: str = "prompt",
    response_key: str = "response",
    key_map: Mapping[str, str] | None = None,
) -> list[Sample]:
    """Read the first rows that have a prompt and a response, as user-assistant dialogues.

    ``key_map`` renames columns; the other columns keep their names. Raises ``ImportError`` without the
    ``datasets`` package, ``ValueError`` if no row has both.
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


def python_files(folder: Path) -> dict[str, str]:
    """Read a metric folder's Python files by name. Raises ``ValueError`` for any other folder."""
    if not folder.exists():
        raise ValueError(f"Folder does not exist: {folder}")
    if not folder.is_dir():
        raise ValueError(f"Not a directory: {folder}")
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}
    if "main.py" not in files:
        bundle = " (a task bundle is tried with reward-kit agent-eval -d)" if "tools.py" in files else ""
        raise ValueError(f"main.py is required in {folder}{bundle}")
    if "evaluate" not in files["main.py"]:
        raise ValueError(f"main.py in {folder} must contain an evaluate function")
    return files


@contextlib.contextmanager
def evaluate_function(folder: Path) -> Iterator[Callable[..., Any]]:
    """Import ``evaluate`` from the folder's ``main.py``; its sibling modules are importable meanwhile.

    Raises ``RewardKitError`` if the import fails.
    """
    folder = folder.resolve()
    spec = importlib.util.spec_from_file_location(f"_preview_{folder.name}", folder / "main.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    known = set(sys.modules)
    sys.modules[spec.name] = module  # dataclasses look for their module there
    sys.path.insert(0, str(folder))
    try:
        try:
            spec.loader.exec_module(module)
            evaluate = module.evaluate
        except (Exception, SystemExit) as error:
            fault = f"cannot be imported: {type(error).__name__}: {error}"
            raise RewardKitError(fault, place=str(folder / "main.py")) from error
        yield evaluate
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
        # the next folder may have modules of the same names
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(f"{folder}/"):
                del sys.modules[name]


def judge_sample(evaluate: Callable[..., Any], sample: Sample) -> EvaluateResult:
    """Call ``evaluate`` with the sample's fields as keyword arguments; its exceptions propagate.

    Raises ``ValueError`` if it returns something other than a result.
    """
    parameters = inspect.signature(evaluate).parameters
    if len(parameters) == 1 and "entry" in parameters:  # the oldest form of an evaluator
        result = evaluate(sample)
    else:
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        result = evaluate(
            **{name: value for name, value in sample.items() if takes_any or name in parameters}
        )
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    if isinstance(result, RewardOutput):
        return result.to_evaluate_result()
    return result if isinstance(result, EvaluateResult) else EvaluateResult.model_validate(result)
