"""OpenEvals evaluators as reward functions."""

import pytest

from reward_kit import MetricResult
from reward_kit.integrations import adapt

MESSAGES = [{"role": "user", "content": "q"}, {"role": "assistant", "content": {"a": 1}}]


@pytest.mark.parametrize("truth", [{"a": 1}, [{"role": "assistant", "content": {"a": 1}}]])
@pytest.mark.parametrize("several", [False, True])
def test_outputs_and_reference(truth, several):
    def exact(*, outputs, reference_outputs, **kwargs):
        assert kwargs == {"strict": True}
        answer = {"key": "exact", "score": outputs == reference_outputs, "comment": None}
        return [answer, {"key": "other", "score": 0}] if several else answer

    result = adapt(exact)(messages=MESSAGES, ground_truth=truth, strict=True)
    assert result.score == 1.0
    assert result.metrics == {"exact": MetricResult(score=1.0, reason="")}


def test_no_messages():
    assert adapt(lambda **kwargs: {"score": 1})(messages=[]).score == 0.0
