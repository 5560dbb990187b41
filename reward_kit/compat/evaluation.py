"""Preview an evaluator on a few samples, in this process.

An evaluator is a folder with a ``main.py`` that has a function ``evaluate(messages, ground_truth=None,
**kwargs)``. Samples come from a JSONL file or from a Hugging Face data set. One whose ``evaluate`` raises or
returns something other than a result is reported as failed, without a score.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import itertools
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from reward_kit.errors import RewardKitError
from reward_kit.models import EvaluateResult, RewardOutput
from reward_kit.reward_function import awaited

from .common_utils import json_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Evaluator", "EvaluatorPreviewResult", "SampleResult", "create_evaluation", "preview_evaluation"]

Sample = dict[str, Any]
"""``messages``, optionally ``ground_truth``, and further keyword arguments of the reward."""


@dataclass
class SampleResult:
    """Scores of one sample.

    ``score`` is the mean of the metrics' scores, or ``None`` if a metric failed; ``error`` then says why.
    ``per_metric_evals`` maps a metric's name to ``{"score", "reason"}``.
    """

    index: int
    success: bool
    score: float | None
    per_metric_evals: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass
class EvaluatorPreviewResult:
    """Results of all samples; ``total_runtime_ms`` is the time spent in the metrics."""

    results: list[SampleResult] = field(default_factory=list)
    total_runtime_ms: int = 0

    @property
    def total_samples(self) -> int:
        """Number of samples, failed ones included."""
        return len(self.results)

    def __str__(self) -> str:
        text = (
            "Evaluation Preview Results\n------------------------\n"
            f"Total Samples: {self.total_samples}\nTotal Runtime: {self.total_runtime_ms} ms\n\n"
            "Individual Results:\n------------------"
        )
        for result in self.results:
            text += f"\nSample {result.index + 1}:\n  Success: {result.success}\n  Score: {result.score}\n"
            text += "".join(f"  {name}: {value}\n" for name, value in result.per_metric_evals.items())
            text += f"  Error: {result.error}\n" if result.error else ""
        return text.rstrip()

    def display(self) -> None:
        """Print the results."""
        sys.stdout.write(f"{self}\n")


class Evaluator:
    """The metric folders of one evaluator.

    With ``multi_metrics`` one folder's ``evaluate`` gives all metrics, as the ``metrics`` of its result.
    ``code_files`` holds the text of the loaded files, by ``metric/file.py`` (``file.py`` for a
    multi-metrics folder).
    """

    def __init__(self, multi_metrics: bool = False) -> None:
        self.multi_metrics = multi_metrics
        self.metric_folders: dict[str, Path] = {}
        self.code_files: dict[str, str] = {}

    def load_metric_folder(self, metric_name: str, folder_path: str | Path) -> dict[str, str]:
        """Add a metric and return its source files by name. Raises ``ValueError`` for an invalid folder."""
        files = _python_files(Path(folder_path))
        self.metric_folders[metric_name] = Path(folder_path)
        prefix = f"{metric_name}/" if metric_name else ""
        self.code_files.update({f"{prefix}{name}": text for name, text in files.items()})
        return files

    def load_metric_folders(self, pairs: list[str]) -> None:
        """Add the metrics of ``["name=folder", ...]``; raises as ``load_metric_folder``."""
        for place, pair in enumerate(pairs):
            name, equals, path = pair.partition("=")
            if not equals:
                raise ValueError(f"Invalid metric-folder format: {pair}. Expected name=path.")
            if any(one.startswith(f"{name}=") for one in pairs[:place]):
                raise ValueError(f"Two metric folders have the name {name!r}. Give each a name of its own.")
            self.load_metric_folder(name, path)

    def load_multi_metrics_folder(self, folder_path: str | Path) -> dict[str, str]:
        """Use one folder for all metrics; arguments and errors as in ``load_metric_folder``."""
        self.metric_folders, self.code_files = {}, {}
        return self.load_metric_folder("", folder_path)

    def preview(self, sample_file: str | Path, max_samples: int = 5) -> EvaluatorPreviewResult:
        """Score the first samples of a JSONL file. Raises ``ValueError`` without samples or metrics."""
        return self.preview_samples(read_samples(sample_file, None, max_samples))

    def preview_samples(self, samples: list[Sample]) -> EvaluatorPreviewResult:
        """Score these samples. Raises ``RewardKitError`` if a metric's ``main.py`` cannot be imported."""
        if not self.metric_folders:
            raise ValueError("No code files loaded. Load metric folder(s) first.")
        started = time.perf_counter()
        results = [SampleResult(index=index, success=True, score=None) for index in range(len(samples))]
        for name, folder in self.metric_folders.items():
            with _evaluate_function(folder) as evaluate:
                for sample, result in zip(samples, results, strict=True):
                    self._judge(name, evaluate, sample, result)
        for result in results:
            scores = [metric["score"] for metric in result.per_metric_evals.values()]
            if result.success and result.score is None:
                result.score = sum(scores) / len(scores)
        return EvaluatorPreviewResult(results, total_runtime_ms=round((time.perf_counter() - started) * 1000))

    def _judge(self, name: str, evaluate: Callable[..., Any], sample: Sample, result: SampleResult) -> None:
        try:
            judged = _judge_sample(evaluate, sample)
        except Exception as error:  # noqa: BLE001 - the metric is foreign code: its error is the sample's result
            result.success, result.score = False, None
            fault = f"{name + ': ' if name else ''}{type(error).__name__}: {error}"
            result.error = f"{result.error}; {fault}" if result.error else fault
            return
        metrics = judged.metrics if self.multi_metrics else {name: judged}
        result.score = judged.score if self.multi_metrics else None
        for key, metric in metrics.items():
            result.per_metric_evals[key] = {"score": metric.score, "reason": metric.reason}


def preview_evaluation(
    metric_folders: list[str] | None = None,
    multi_metrics: bool = False,
    folder: str | None = None,
    python_code_to_evaluate: str | None = None,
    python_file_name_for_code: str = "main.py",
    criterion_name_for_code: str = "default_code_criterion",
    criterion_description_for_code: str = "Python code execution",  # noqa: ARG001 - accepted for compatibility
    sample_file: str | None = None,
    max_samples: int = 5,
    huggingface_dataset: str | None = None,
    huggingface_split: str = "train",
    huggingface_message_key_map: dict[str, str] | None = None,
    huggingface_response_key: str = "response",
    huggingface_prompt_key: str = "prompt",
    reward_function_mode: str = "pointwise",
    account_id: str | None = None,  # noqa: ARG001 - accepted for compatibility
    api_key: str | None = None,  # noqa: ARG001 - accepted for compatibility
) -> EvaluatorPreviewResult:
    """Score a few samples with metrics from ``["name=folder", ...]``, one ``folder``, or source text.

    Everything runs in this process; only a Hugging Face data set is downloaded. Raises ``ValueError`` if
    the arguments name no metrics or no samples, ``RewardKitError`` if a metric cannot be imported.
    """
    if reward_function_mode != "pointwise":
        raise ValueError("Only pointwise reward functions can be previewed")
    if python_code_to_evaluate and (metric_folders or folder):
        raise ValueError(
            "Cannot use python_code_to_evaluate with folder-based parameters (metric_folders, folder)."
        )
    evaluator = Evaluator(multi_metrics=multi_metrics)
    with tempfile.TemporaryDirectory() as code_folder:
        if python_code_to_evaluate:
            Path(code_folder, "main.py").write_text(python_code_to_evaluate, encoding="utf-8")
            evaluator.load_metric_folder(criterion_name_for_code or python_file_name_for_code, code_folder)
        elif multi_metrics:
            if not folder:
                raise ValueError("`folder` must be specified for multi_metrics mode.")
            evaluator.load_multi_metrics_folder(folder)
        else:
            if not metric_folders:
                raise ValueError("At least one metric_folder must be specified.")
            evaluator.load_metric_folders(metric_folders)
        columns = huggingface_split, huggingface_prompt_key, huggingface_response_key
        samples = read_samples(
            sample_file, huggingface_dataset, max_samples, *columns, key_map=huggingface_message_key_map
        )
        return evaluator.preview_samples(samples)


def create_evaluation(*args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG001 - the published signature
    """Raise ``RewardKitError``: the Fireworks platform's own tools deploy evaluators."""
    raise RewardKitError(
        "deploying an evaluator to the Fireworks platform is not part of this package",
        remedy="To serve a reward yourself: python -m reward_kit.generic_server package.module.function",
    )


# -- samples and metric folders


def read_samples(
    file: str | Path | None,
    dataset: str | None,
    max_samples: int,
    split: str = "train",
    prompt_key: str = "prompt",
    response_key: str = "response",
    key_map: Mapping[str, str] | None = None,
) -> list[Sample]:
    """Read the first samples of a Hugging Face ``dataset``, or else of a JSONL file.

    Rows of a data set that have a prompt and a response become user-assistant dialogues; ``key_map`` renames
    the other columns, which keep their names otherwise. Raises ``ValueError`` if there are no samples, and
    ``ImportError`` without the ``datasets`` package.
    """
    if not dataset:
        if not file:
            raise ValueError("Either sample_file or huggingface_dataset must be specified.")
        if not Path(file).exists():
            raise ValueError(f"Sample file does not exist: {file}")
        objects = (value for value in json_lines(file) if isinstance(value, dict))
        if not (samples := list(itertools.islice(objects, max_samples))):
            raise ValueError(f"No valid samples found in {file}")
        return samples
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        hint = "the 'datasets' package is needed to read data sets: pip install datasets"
        raise ImportError(hint) from error
    loaded = datasets.load_dataset(dataset, split=split, streaming=True)
    complete = (row for row in loaded if row.get(prompt_key) and row.get(response_key))
    samples = []
    for row in itertools.islice(complete, max_samples):
        said = {"user": row[prompt_key], "assistant": row[response_key]}
        names = {**{key: key for key in row if key not in (prompt_key, response_key)}, **(key_map or {})}
        others = {new: row[old] for old, new in names.items() if old in row}
        samples.append({**others, "messages": [{"role": who, "content": text} for who, text in said.items()]})
    if not samples:
        fault = f"No valid samples found in {dataset}: no row has {prompt_key!r} and {response_key!r}"
        raise ValueError(fault)
    return samples


def _python_files(folder: Path) -> dict[str, str]:
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
def _evaluate_function(folder: Path) -> Iterator[Callable[..., Any]]:
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


def _judge_sample(evaluate: Callable[..., Any], sample: Sample) -> EvaluateResult:
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
    result = awaited(result)
    if isinstance(result, RewardOutput):
        return result.to_evaluate_result()
    return result if isinstance(result, EvaluateResult) else EvaluateResult.model_validate(result)
