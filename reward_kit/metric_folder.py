"""A folder whose ``main.py`` has a function ``evaluate``: its files, the function, what the function says."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import sys
from typing import TYPE_CHECKING, Any

from reward_kit.errors import RewardKitError
from reward_kit.models import EvaluateResult, RewardOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from reward_kit.preview_samples import Sample


def python_files(folder: Path) -> dict[str, str]:
    """The text of the folder's Python files by name; ``ValueError`` where it is no metric folder."""
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
    """``evaluate`` of the folder's ``main.py``; its other modules can be imported for as long as this lasts.

    Raises ``RewardKitError`` where importing fails.
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
    """What ``evaluate`` says of the sample, whose fields are its keyword arguments; what it raises goes on.

    Raises ``ValueError`` where it returns what is no result.
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
