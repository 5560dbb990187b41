"""RewardFunction: local calls, the forms their results may take, and the TRL adapter."""

import asyncio
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import requests as real_requests

import reward_kit.reward_function
from reward_kit import EvaluateResult, MetricResult, RewardFunction, RewardOutput

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


@pytest.fixture
def rewards_module(monkeypatch):
    module = types.ModuleType("users_rewards")
    module.half = lambda messages, **kwargs: EvaluateResult(score=0.5)
    monkeypatch.setitem(sys.modules, "users_rewards", module)
    return module


class TestMaking:
    @pytest.mark.parametrize(
        ("arguments", "fault"),
        [
            ({}, "Either 'func' or 'func_path' must be provided for local mode"),
            ({"mode": "remote"}, "Either 'endpoint' or 'name' must be provided for remote mode"),
            ({"mode": "fireworks_hosted"}, "'model_id' must be provided for fireworks_hosted mode"),
            ({"mode": "modal"}, "Invalid mode: modal"),
            ({"func_path": "nodot"}, "Invalid func_path format: nodot"),
        ],
    )
    def test_wrong_arguments(self, arguments, fault):
        with pytest.raises(ValueError, match=fault):
            RewardFunction(**arguments)

    @pytest.mark.parametrize("path", ["users_rewards:half", "users_rewards.half"])
    def test_a_function_is_found_by_its_path(self, rewards_module, path):
        assert RewardFunction(func_path=path)(MESSAGES).score == 0.5

    @pytest.mark.parametrize("path", ["users_rewards:nothing", "no_such_module.half"])
    def test_a_path_that_leads_nowhere(self, rewards_module, path):
        with pytest.raises(ImportError, match=f"Failed to load function from path {path}"):
            RewardFunction(func_path=path)


class TestLocalCall:
    def arguments_of(self, function_parameters: str, *args, made_with=None, **kwargs):
        seen = {}
        namespace = {"seen": seen, "EvaluateResult": EvaluateResult}
        body = "    seen.update(locals())\n    return EvaluateResult(score=1)"
        exec(f"def f({function_parameters}):\n{body}", namespace)
        RewardFunction(func=namespace["f"], **(made_with or {}))(*args, **kwargs)
        return seen

    def test_the_ground_truth_is_all_but_the_last_message_unless_given(self):
        assert self.arguments_of("messages, ground_truth, **kwargs", MESSAGES)["ground_truth"] == MESSAGES[:1]
        assert self.arguments_of("messages, ground_truth, **kwargs", MESSAGES, "x")["ground_truth"] == "x"
        assert self.arguments_of("messages, ground_truth, **kwargs", MESSAGES, [])["ground_truth"] == []

    def test_original_messages_is_the_older_name_of_the_ground_truth(self):
        for parameters in ("messages, original_messages, **kwargs", "messages, original_messages"):
            assert self.arguments_of(parameters, MESSAGES, ["x"])["original_messages"] == ["x"]
            given = self.arguments_of(parameters, MESSAGES, original_messages=["x"])
            assert given["original_messages"] == ["x"]
        given = self.arguments_of("messages, ground_truth, **kwargs", MESSAGES, original_messages=["x"])
        assert given["ground_truth"] == given["kwargs"]["original_messages"] == ["x"]

    def test_a_reward_output_becomes_an_evaluate_result(self):
        output = RewardOutput(score=0.5, metrics={"m": {"score": 0.5, "reason": "r"}})
        result = RewardFunction(func=lambda messages, **kwargs: output)(MESSAGES)
        assert result.metrics == {"m": MetricResult(score=0.5, reason="r")}

    def test_older_forms_of_a_result(self):
        for returned in ((0.5, {"m": 0.25}), {"score": 0.5, "metrics": {"m": {"score": 0.25}}}):
            with pytest.warns(DeprecationWarning, match="EvaluateResult"):
                result = RewardFunction(func=lambda messages, it=returned, **kwargs: it)(MESSAGES)
            assert result.score == 0.5
            assert result.metrics == {"m": MetricResult(score=0.25, reason="m score")}

    async def test_async_rewards_may_wait_for_others_in_threads(self):
        meeting = threading.Barrier(2)

        async def inner(messages, **kwargs):
            meeting.wait(20)  # both at once, though they block
            return EvaluateResult(score=1)

        async def outer(messages, **kwargs):
            with ThreadPoolExecutor(2) as threads:
                found = threads.map(RewardFunction(func=inner), [messages] * 2)
                return EvaluateResult(score=sum(one.score for one in found) / 2)

        assert RewardFunction(func=outer)(MESSAGES).score == 1  # this thread runs a loop, too
        assert await asyncio.to_thread(RewardFunction(func=outer), MESSAGES) == EvaluateResult(score=1)

    def test_anything_else_is_refused(self):
        async def later(messages, **kwargs):
            return EvaluateResult(score=1)

        assert RewardFunction(func=later)(MESSAGES).score == 1
        for function in (lambda messages, **kwargs: 0.5, lambda messages, **kwargs: {"reward": 1}):
            with pytest.raises(TypeError, match="Invalid return type from reward function"):
                RewardFunction(func=function)(MESSAGES)

    def test_what_the_function_raises_is_logged_and_goes_on(self, caplog):
        def broken(messages, **kwargs):
            raise LookupError("mine")

        with pytest.raises(LookupError):
            RewardFunction(func=broken)(MESSAGES)
        assert "mine" in caplog.text


class TestPatching:
    """How users' tests replace the network of this module."""

    def test_requests_by_its_path(self):
        with patch("reward_kit.reward_function.requests.post") as post:
            post.return_value.json.return_value = {"score": 0.75}
            assert RewardFunction(mode="remote", endpoint="http://x/reward")(MESSAGES).score == 0.75
        assert post.call_args.args == ("http://x/reward",)
        assert post.call_args.kwargs["json"] == {"messages": MESSAGES, "ground_truth": MESSAGES[:1]}

    @pytest.mark.parametrize("of_module", [True, False])
    @pytest.mark.parametrize(
        "options", [{"mode": "remote", "name": "a"}, {"mode": "fireworks_hosted", "model_id": "m"}]
    )
    def test_requests_of_the_module_and_of_the_decorator_of_its_name(self, of_module, options):
        target = sys.modules["reward_kit.reward_function"] if of_module else reward_kit.reward_function
        with patch.object(target, "requests") as requests:
            requests.post.return_value.json.return_value = {"score": 0.75}
            assert RewardFunction(**options)(MESSAGES).score == 0.75
        requests.post.assert_called_once()
        assert target.requests.post is real_requests.post


class TestTrlAdapter:
    def adapter(self, function):
        return RewardFunction(func=function).get_trl_adapter()

    def test_each_prompt_is_scored_with_its_completion(self):
        def judge(messages, **kwargs):
            assert messages[0] == {"role": "user", "content": "p"}
            return EvaluateResult(score=float(messages[-1]["content"]))

        prompt = [{"role": "user", "content": "p"}]
        completions = ["0.25", [{"role": "assistant", "content": "0.5"}]]
        assert self.adapter(judge)([prompt, "p"], completions) == [0.25, 0.5]
        assert prompt == [{"role": "user", "content": "p"}]

    def test_without_completions_prompts_are_whole_conversations(self):
        adapter = self.adapter(lambda messages, **kwargs: EvaluateResult(score=len(messages)))
        assert adapter([MESSAGES, MESSAGES[:1]]) == [2.0, 1.0]

    def test_the_column_solution_is_the_ground_truth(self):
        def judge(messages, ground_truth, **kwargs):
            return EvaluateResult(score=float(ground_truth))

        adapter = self.adapter(judge)
        assert adapter(["p"] * 3, ["c"] * 3, solution=["1", 2, ["3"]]) == [1.0, 2.0, 3.0]
