"""Braintrust scorers and reward functions, each as the other."""

import types

import pytest

from reward_kit import EvaluateResult, Message, reward_fn_to_scorer, reward_function, scorer_to_reward_fn

MESSAGES = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]


def seen_by_scorer(messages=MESSAGES, ground_truth=None, **options):
    seen = []
    scorer_to_reward_fn(lambda *values: seen.extend(values) or 1.0, **options)(messages, ground_truth)
    return seen


def test_the_scorer_sees_first_and_last_message_and_the_truth():
    assert seen_by_scorer() == ["2+2", "4", None]
    assert seen_by_scorer(ground_truth=[{"role": "assistant", "content": "four"}]) == ["2+2", "4", "four"]


def test_both_mappings_can_be_replaced():
    truth = [Message(role="assistant", content="four")]
    mappings = {"messages_to_input": len, "ground_truth_to_expected": len}
    assert seen_by_scorer(ground_truth=truth, **mappings) == [2, "4", 1]


@pytest.mark.parametrize("score", [0.25, types.SimpleNamespace(score=0.25)])
def test_a_score_is_a_number_or_has_one(score):
    assert scorer_to_reward_fn(lambda *_: score)(messages=MESSAGES) == EvaluateResult(score=0.25)


def test_a_reward_function_scores_a_dialogue():
    @reward_function
    def exact(messages, ground_truth=None, **kwargs):
        assert [message.role for message in messages] == ["user", "assistant"]
        return {"score": float(bool(ground_truth) and messages[-1].content == ground_truth[-1].content)}

    scorer = reward_fn_to_scorer(exact)
    assert scorer("2+2", 4, 4) == scorer(input="2+2", output="4", expected="4") == 1.0
    assert scorer("2+2", "5", "4") == scorer("2+2", "5", None) == 0.0
