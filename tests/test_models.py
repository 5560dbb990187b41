"""Messages and results: what they accept, how they read, how they are written."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from reward_kit.models import EvaluateResult, Message, MetricResult, MetricRewardOutput, RewardOutput

CALL = {"id": "call_1", "type": "function", "function": {"name": "book", "arguments": '{"seat": 3}'}}


class TestMessage:
    def test_content_is_empty_where_it_is_not_given_and_none_where_it_is_none(self):
        assert Message(role="user").content == ""
        assert Message(role="assistant", content=None).content is None

    def test_role_is_required(self):
        with pytest.raises(ValidationError, match="Field required"):
            Message(content="hi")
        with pytest.raises(ValueError, match="Role is required"):
            Message.model_validate({"content": "hi"})

    def test_content_in_parts_is_refused(self):
        with pytest.raises(ValidationError):
            Message(role="user", content=[{"type": "text", "text": "hi"}])

    def test_tool_calls_read_as_objects_and_as_dicts(self):
        call = Message(role="assistant", content=None, tool_calls=[CALL]).tool_calls[0]
        assert (call.id, call.type, call.function.name) == ("call_1", "function", "book")
        assert call["function"]["arguments"] == '{"seat": 3}'

    def test_objects_of_other_libraries_are_taken(self):
        class Function(BaseModel):
            name: str
            arguments: str

        class Call(BaseModel):
            id: str
            type: str
            function: Function

        class Answer(BaseModel):
            role: str
            content: str | None
            tool_calls: list[Call]

        answer = Answer.model_validate({"role": "assistant", "content": None, "tool_calls": [CALL]})
        assert Message.model_validate(answer) == Message(role="assistant", content=None, tool_calls=[CALL])
        assert Message(role="assistant", tool_calls=answer.tool_calls).tool_calls[0].id == "call_1"

    def test_what_was_not_given_is_not_there_as_in_a_dict(self):
        message = Message(role="user", content="hi")
        assert message["content"] == message.get("content") == "hi"
        assert "tool_calls" not in message
        assert message.get("tool_calls", []) == []
        assert message["tool_calls"] is None
        assert "content" in Message(role="user")
        with pytest.raises(KeyError):
            message["mood"]


class TestMetricResult:
    def test_score_is_within_zero_and_one(self):
        for score in (-0.01, 1.01, math.nan):
            with pytest.raises(ValidationError):
                MetricResult(score=score, reason="")

    @pytest.mark.parametrize(("success", "valid"), [(True, True), (False, False), (None, True)])
    def test_success_is_the_older_name_of_is_score_valid(self, success, valid):
        metric = MetricResult(score=1.0, reason="", success=success)
        assert metric.is_score_valid is valid
        assert metric.success is valid
        assert metric["success"] is valid
        assert "success" not in set(metric.keys())


class TestEvaluateResult:
    result = EvaluateResult(score=7.5, metrics={"a": {"score": 1, "reason": "r"}}, reason="why")

    def test_only_the_score_is_required_and_it_is_unbounded(self):
        result = EvaluateResult(score=-3)
        assert (result.score, result.metrics, result.step_outputs) == (-3.0, {}, None)
        assert result.is_score_valid is True
        with pytest.raises(ValidationError):
            EvaluateResult()

    def test_a_metric_may_be_its_score(self):
        result = EvaluateResult(score=1, metrics={"kept": 0.5, "n": 1})
        assert result.metrics["kept"] == MetricResult(score=0.5, reason="")
        assert result.metrics["n"].score == 1.0
        for wrong in (True, 1.01, "0.5", None):
            with pytest.raises(ValidationError):
                EvaluateResult(score=1, metrics={"kept": wrong})

    def test_reads_like_a_dict_over_all_fields(self):
        names = ["score", "is_score_valid", "reason", "metrics", "step_outputs", "error"]
        assert list(self.result) == list(self.result.keys()) == names
        assert dict(self.result) == {name: getattr(self.result, name) for name in names}
        assert self.result.items() == list(zip(names, self.result.values(), strict=True))
        assert self.result["metrics"]["a"]["reason"] == "r"
        assert "score" in self.result
        assert "a" not in self.result
        assert self.result.get("a", 5) == 5
        with pytest.raises(KeyError):
            self.result["a"]


METRICS = st.builds(MetricRewardOutput, st.floats(allow_nan=False), st.none() | st.text(), st.booleans())


class TestRewardOutput:
    output = RewardOutput(
        score=1,
        reason="done",
        metrics={
            "task": {"score": 1.0, "reason": "Goal achieved"},
            "steps": 7,
            "style": MetricResult(score=0.5, reason="terse", is_score_valid=False),
            "old": MetricRewardOutput(score=0.25),
        },
    )

    def test_a_failed_metric_has_the_same_names_in_both_results(self):
        metrics = {"m": {"score": 0.5, "reason": "r", "success": False}}
        assert not RewardOutput(score=1, metrics=metrics).metrics["m"].is_score_valid
        assert RewardOutput(1, metrics).to_evaluate_result() == EvaluateResult(score=1, metrics=metrics)

    def test_to_dict_is_plain_json(self):
        assert self.output.to_dict() == {
            "score": 1.0,
            "reason": "done",
            "metrics": {
                "task": {"score": 1.0, "reason": "Goal achieved"},
                "steps": {"score": 7.0, "reason": None},
                "style": {"score": 0.5, "reason": "terse", "is_score_valid": False},
                "old": {"score": 0.25, "reason": None},
            },
        }

    @pytest.mark.parametrize("score", ["1.0", None, [1]])
    def test_a_score_that_is_no_number_is_refused(self, score):
        with pytest.raises(ValueError, match="a score must be a number"):
            RewardOutput(score=score)
        with pytest.raises(ValueError, match="metric 'm': a score must be a number"):
            RewardOutput(score=1, metrics={"m": {"score": score}})

    def test_becomes_an_evaluate_result_and_back(self):
        output = RewardOutput(score=0.5, reason="why", metrics={"m": {"score": 0.5, "reason": "r"}})
        result = output.to_evaluate_result()
        assert result == EvaluateResult(score=0.5, reason="why", metrics={"m": {"score": 0.5, "reason": "r"}})
        assert result.to_reward_output() == output

    @given(
        st.builds(
            RewardOutput,
            score=st.floats(allow_nan=False),
            reason=st.none() | st.text(),
            metrics=st.dictionaries(st.text(), METRICS),
        )
    )
    def test_json_round_trip(self, output):
        assert RewardOutput.from_json(output.to_json()) == output
        assert RewardOutput.from_dict(output.to_dict()) == output
