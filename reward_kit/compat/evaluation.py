"""Preview an evaluator on a few samples, in this process.

An evaluator is a folder with a ``main.py`` that has a function ``evaluate(messages, ground_truth=None,
**kwargs)``. A sample whose ``evaluate`` raises or returns something other than a result is reported as
failed, without a score.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from reward_kit.errors import RewardKitError

from .evaluation_inputs import (
    Sample,
    evaluate_function,
    judge_sample,
    python_files,
    read_samples,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Evaluator", "EvaluatorPreviewResult", "SampleResult", "create_evaluation", "preview_evaluation"]


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
        files = python_files(Path(folder_path))
        self.metric_folders[metric_name] = Path(folder_path)
        prefix = f"{metric_name}/" if metric_name else ""
        self.code_files.update({f"{prefix}{name}": text for name, text in files.items()})
        return files

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
            with evaluate_function(folder) as evaluate:
                for sample, result in zip(samples, results, strict=True):
                    self._judge(name, evaluate, sample, result)
        for result in results:
            scores = [metric["score"] for metric in result.per_metric_evals.values()]
            if result.success and result.score is None:
                result.score = sum(scores) / len(scores)
        return EvaluatorPreviewResult(results, total_runtime_ms=round((time.perf_counter() - started) * 1000))

    def _judge(self, name: str, evaluate: Callable[..., Any], sample: Sample, result: SampleResult) -> None:
        try:
            judged = judge_sample(evaluate, sample)
        except Exception as error:  # noqa: BLE001 - the metric is foreign code: its error is the sample's result
            result.success, result.score = False, None
            result.error = f"{name + ': ' if name else ''}{type(error).__name__}: {error}"
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
            for pair in metric_folders:
                name, equals, path = pair.partition("=")
                if not equals:
                    raise ValueError(f"Invalid metric-folder format: {pair}. Expected name=path.")
                evaluator.load_metric_folder(name, path)
        samples = read_samples(
            sample_file,
            huggingface_dataset,
            max_samples,
            split=huggingface_split,
            prompt_key=huggingface_prompt_key,
            response_key=huggingface_response_key,
            key_map=huggingface_message_key_map,
        )
        return evaluator.preview_samples(samples)


def create_evaluation(*args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG001 - the published signature
    """Raise ``RewardKitError``: the Fireworks platform's own tools deploy evaluators."""
    raise RewardKitError(
        "deploying an evaluator to the Fireworks platform is not part of this package",
        remedy="To serve a reward yourself: python -m reward_kit.generic_server package.module.function",
    )
