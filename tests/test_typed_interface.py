"""The decorator: which arguments become messages, which results are taken, what the errors say."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any, Dict, List, Optional, Union  # noqa: UP035 - users annotate so

import pytest

from reward_kit import EvaluateResult, Message, RewardOutput, create_llm_resource, reward_function

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def what_arrives(annotation: Any, given: Any, *, name: str = "messages", mode: str = "pointwise") -> Any:
    """What a decorated function gets for its parameter ``name`` that is annotated so."""
    seen = []

    def judge(**kwargs: Any) -> Any:
        seen.append(kwargs[name])
        return [] if mode == "batch" else EvaluateResult(score=1)

    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
    rest = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
    judge.__signature__ = inspect.Signature([parameter, rest])
    reward_function(judge, mode=mode)(**{name: given})
    return seen[0]


class TestArguments:
    @pytest.mark.parametrize(
        "annotation",
        [
            List[Message],  # noqa: UP006
            list[Message],
            Optional[List[Message]],  # noqa: UP006, UP045
            list[Message] | None,
            "List[Message]",
            "Optional[List[Message]]",
            "list[Message] | None",
        ],
        ids=str,
    )
    def test_dicts_become_messages_however_the_list_is_annotated(self, annotation):
        assert what_arrives(annotation, MESSAGES) == [Message(**message) for message in MESSAGES]

    @pytest.mark.parametrize(
        "annotation",
        [
            inspect.Parameter.empty,
            Any,
            list,
            List[Dict[str, str]],  # noqa: UP006
            Union[List[Dict[str, Any]], List[Message]],  # noqa: UP006, UP007
            "SomethingUnknown",
            "list[",
        ],
        ids=str,
    )
    def test_any_other_annotation_leaves_the_argument_alone(self, annotation):
        assert what_arrives(annotation, MESSAGES) is MESSAGES

    @pytest.mark.parametrize("bad", ["text", 5, None, ["text"], [{"content": "no role"}], (MESSAGES[0],)])
    def test_what_is_no_list_of_messages(self, bad):
        with pytest.raises(ValueError, match=r"^Input 'messages' failed Pydantic validation: "):
            what_arrives(list[Message], bad)

    def test_batch_mode_takes_rollouts(self):
        batch = {"name": "rollouts_messages", "mode": "batch"}
        rollouts = what_arrives(list[list[Message]], [MESSAGES, MESSAGES], **batch)
        assert [message.content for message in rollouts[1]] == ["hi", "hello"]
        with pytest.raises(ValueError, match=r"^Input 'rollouts_messages' failed Pydantic validation"):
            what_arrives(list[list[Message]], [["text"]], **batch)

    def test_ground_truth(self):
        assert what_arrives(list[Message], MESSAGES, name="ground_truth")[0].content == "hi"
        assert what_arrives(list[Message], None, name="ground_truth") is None
        assert what_arrives(str, "hello", name="ground_truth") == "hello"
        for bad in ("hello", ["hello"]):
            with pytest.raises(ValueError, match=r"^Input 'ground_truth' failed Pydantic .*List\[Message\]"):
                what_arrives(list[Message], bad, name="ground_truth")


class TestResults:
    def test_a_result_is_handed_on_as_it_is(self):
        for result in (EvaluateResult(score=2), RewardOutput(score=1.0, metrics={"m": {"score": 1.0}})):
            assert reward_function(lambda result=result, **kwargs: result)() is result

    def test_a_dict_becomes_an_evaluate_result(self):
        judge = reward_function(lambda **kwargs: {"score": 0.5, "reason": "r", "unknown": 1})
        assert judge() == EvaluateResult(score=0.5, reason="r")

    @pytest.mark.parametrize("result", [0.5, None, (0.5, {}), {"reward": 1}])
    def test_anything_else_is_refused_by_name(self, result):
        @reward_function
        def judge(**kwargs):
            return result

        with pytest.raises(
            ValueError,
            match=r"^Return value from function 'judge' failed Pydantic validation for mode 'pointwise':\n"
            r"1 validation error for EvaluateResult",
        ):
            judge()

    def test_batch_mode_wants_a_list(self):
        judge = reward_function(lambda result, **kwargs: result, mode="batch")
        mixed = judge([{"score": 1}, RewardOutput(score=0.5), EvaluateResult(score=0)])
        assert [type(result) for result in mixed] == [EvaluateResult] * 3
        assert [result.score for result in mixed] == [1.0, 0.5, 0.0]
        kept = [RewardOutput(score=0.5), EvaluateResult(score=0)]
        assert judge(kept) is kept
        with pytest.raises(ValueError, match=r"mode 'batch':\n1 validation error for list\[EvaluateResult\]"):
            judge({"score": 1})

    async def test_async_functions_are_awaited(self):
        @reward_function
        async def judge(messages: list[Message], **kwargs):
            return {"score": 1.0, "reason": messages[0].content}

        assert inspect.iscoroutinefunction(judge)
        assert (await judge(messages=MESSAGES)).reason == "hi"

    async def test_an_async_function_may_be_inside(self):
        class Judge:
            async def __call__(self, messages: list[Message], **kwargs):
                return {"score": 1.0, "reason": messages[0].content}

        judge = Judge()
        around = functools.wraps(judge.__call__)(lambda *args, **kwargs: judge(*args, **kwargs))
        for one in (judge, around):
            assert await reward_function(one)(messages=MESSAGES) == EvaluateResult(score=1.0, reason="hi")


class TestDecoration:
    def test_var_keyword_is_required(self):
        with pytest.raises(ValueError) as caught:

            @reward_function
            def judge(messages, *, extra=None):
                return None

        assert str(caught.value) == (
            "Function 'judge' must accept **kwargs parameter. "
            "Please add '**kwargs' to the function signature."
        )

    def test_the_function_keeps_its_name_and_signature(self):
        @reward_function(id="exact", requirements=["numpy"])
        def judge(messages, *, db, **kwargs):
            """Doc."""

        assert (judge.__name__, judge.__doc__) == ("judge", "Doc.")
        assert list(inspect.signature(judge).parameters) == ["messages", "db", "kwargs"]
        assert judge._reward_function_id == "exact"
        assert judge._reward_function_requirements == ["numpy"]
        assert judge._reward_function_mode == "pointwise"
        assert judge._reward_function_resources is None
        assert not hasattr(judge, "deploy")

    def test_resources_are_set_up_once_and_their_clients_passed(self):
        applied = []
        llm = types.SimpleNamespace(deployment_type="on-demand", apply=lambda: applied.append("applied"))

        @reward_function(resources={"llms": [create_llm_resource(llm)]})
        def judge(resources, **kwargs):
            return {"score": float(resources["llms"][0] is llm)}

        assert applied == ["applied"]
        assert judge().score == judge().score == 1.0
        assert applied == ["applied"]
