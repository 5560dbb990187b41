"""deepeval metrics as reward functions, against a stand-in for the library, which is not installed here."""

import sys
import types

import pytest
from reward_kit.integrations.deepeval import adapt_metric

from reward_kit import MetricResult

MESSAGES = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


class Metric:
    score = reason = None

    def __init__(self, *wanted):
        self.evaluation_params = [types.SimpleNamespace(value=name) for name in wanted]

    def measure(self, case):
        self.case = vars(case)
        self.score, self.reason = 0.5, "so so"


@pytest.fixture
def deepeval(monkeypatch):
    module = types.ModuleType("deepeval.test_case")
    module.LLMTestCase = types.SimpleNamespace
    monkeypatch.setitem(sys.modules, "deepeval", types.ModuleType("deepeval"))
    monkeypatch.setitem(sys.modules, "deepeval.test_case", module)


def test_a_metric_measures_the_last_message(deepeval):
    metric = Metric()
    result = adapt_metric(metric)(messages=MESSAGES, ground_truth="a")
    assert metric.case == {"input": "q", "actual_output": "a", "expected_output": "a"}
    assert (result.score, result.reason) == (0.5, "so so")
    assert result.metrics == {"Metric": MetricResult(score=0.5, reason="so so")}


def test_a_metric_gets_what_it_asks_for(deepeval):
    metric = Metric("actual_output", "context")
    adapt_metric(metric)(messages=MESSAGES, ground_truth="a", context=["c"])
    assert metric.case == {"input": "q", "actual_output": "a", "context": ["c"]}


def test_without_the_library_it_says_what_to_install():
    with pytest.raises(ImportError, match="pip install deepeval"):
        adapt_metric(Metric())(messages=MESSAGES)
