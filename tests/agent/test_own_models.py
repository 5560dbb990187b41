"""Models of one's own, in the process, in place of those that the configuration names."""

import asyncio
import math
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle
from small_task import wants

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.base.types import Completion, Usage
from reward_kit.errors import ModelError, ModelSetupError, UsageError

SEARCH = {"origin": "SFO", "dest": "JFK", "date": "x"}
NO_USAGE: Any = None
ROWS = [{"actions": GOLD, "n_rollouts": 2, "sim_user_prompt": "You want to fly."}]


class Policy:
    """Looks for flights once, then says a line."""

    name = "policy-step-100"

    def __init__(self, said: str) -> None:
        self.said = said
        self.closed = 0

    async def complete(self, messages: list[dict[str, Any]], *, tools: Any = None, **_: Any) -> Completion:
        await asyncio.sleep(0)
        if tools and messages[-1]["role"] == "user":
            return Completion(wants(("search_flights", SEARCH)), Usage(1))
        return Completion({"role": "assistant", "content": self.said}, Usage(1))

    async def close(self) -> None:
        self.closed += 1


def test_they_play_agent_and_user_without_any_key(bundle: Bundle) -> None:
    agent, user = Policy("There is one."), Policy("Fine. ###STOP###")
    result = agent_eval(bundle.dataset, models={"agent": agent, "user": user})
    assert [outcome.stop_reason for outcome in result.outcomes] == ["user_stop"] * 2
    record = result.record(result.outcomes[0])
    assert record.agent == "tool-calling"
    assert record.models == {"agent": "policy-step-100", "user": "policy-step-100"}
    assert [call.name for call in record.tool_calls] == ["search_flights"]
    assert result.configuration["model"] == "policy-step-100"
    assert (agent.closed, user.closed) == (1, 1)


def run(bundle: Bundle, model: Any, **options: Any) -> EvaluationResult:
    """An evaluation whose agent is played by this model."""
    return agent_eval(bundle.dataset, models={"agent": model}, no_sim_user=True, **{"retries": 0, **options})


class Broken(Policy):
    """Does not do what a model does."""

    def __init__(self, answer: Any) -> None:
        super().__init__("")
        self.answer = answer

    async def complete(self, messages: list[dict[str, Any]], *, tools: Any = None, **_: Any) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (RuntimeError("GPU on fire"), r"test_own_models\.py:\d+: RuntimeError: GPU on fire"),
        ({"content": "Hi"}, "complete\\(\\) gave a dict, not a Completion"),
        (Completion({"content": "Hi"}, NO_USAGE), "whose message is no dict, or whose usage no Usage"),
        (Completion({"content": "Hi"}, Usage(1, cost=math.nan)), "Usage.cost is nan, not a number from 0"),
    ],
)
def test_a_fault_of_the_model_is_not_the_agents(bundle: Bundle, answer: Any, told: str) -> None:
    result = run(bundle, Broken(answer), n_rollouts=1)
    outcome = result.outcomes[0]
    assert (outcome.stop_reason, outcome.reward) == ("infrastructure_error", None)
    record = result.record(outcome)
    assert record.stop_detail is not None
    assert re.search(told, record.stop_detail)
    assert "policy-step-100" in record.stop_detail
    assert record.model_calls[-1].error == record.stop_detail


class Sampling(Policy):
    """Says how it came to its words, as training needs it."""

    async def complete(self, messages: list[dict[str, Any]], *, tools: Any = None, **_: Any) -> Completion:
        answer = await super().complete(messages, tools=tools)
        answer.message |= {"token_ids": [7, len(messages)], "logprobs": [-0.5, -0.25]}
        return answer


def test_what_a_policy_says_of_its_sampling_is_in_the_trajectory(bundle: Bundle) -> None:
    result = run(bundle, Sampling("Hi"), n_rollouts=1)
    record = result.record(result.outcomes[0])
    said = [message for message in record.messages if message["role"] == "assistant"]
    assert [message["token_ids"][0] for message in said] == [7, 7]
    assert [message["logprobs"] for message in said] == [[-0.5, -0.25]] * 2


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ({"judge": Policy("")}, "no role 'judge'"),
        ({"agent": "openai/gpt-4o"}, r"models\['agent'\] is not a model"),
        ({"agent": Policy}, r"models\['agent'\] is not a model"),
        (Policy(""), r"models takes a dict, .* models=\{\"agent\": model"),
    ],
)
def test_what_is_no_model_is_refused_before_anything_runs(bundle: Bundle, models: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        agent_eval(bundle.dataset, models=models)
    assert not Path("runs").exists()


def test_a_model_in_the_place_of_its_name_is_told_where_it_belongs(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match=r"--model takes text.*models=\{'agent': model\}"):
        agent_eval(bundle.dataset, model=Policy(""))
    with pytest.raises(UsageError, match=r"--user-model takes text.*models=\{'user': model\}"):
        agent_eval(bundle.dataset, sim_model=Policy(""))


@pytest.mark.parametrize("option", [{"validate_only": True}, {"json": "all.json"}, {"fail_under": 0.5}])
def test_what_only_the_command_line_does_is_refused(bundle: Bundle, option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(option))} is for the command line"):
        agent_eval(bundle.dataset, agent="gold", **option)
    assert not Path("runs").exists()


async def a_message(messages: list[dict[str, Any]], tools: Any = None) -> dict[str, Any]:
    if tools and messages[-1]["role"] == "user":
        return {"tool_calls": [{"function": {"name": "search_flights", "arguments": SEARCH}}]}
    return {"content": "There is one."}


def a_text_in_a_thread(messages: list[dict[str, Any]]) -> str:
    assert threading.current_thread() is not threading.main_thread()
    return "There is one." if messages[0]["role"] == "user" else "Hello."


def a_completion(messages: Any, parallel_tool_calls: bool, **options: Any) -> Completion:
    assert parallel_tool_calls
    assert options["tools"]
    assert isinstance(options["seed"], int)
    return Completion({"role": "assistant", "content": "No."}, Usage(1, input_tokens=7))


class Dumped:
    def model_dump(self, *, exclude_none: bool) -> dict[str, Any]:
        return {"role": "assistant", "content": "No."} if exclude_none else {}


@pytest.mark.parametrize(
    ("function", "calls", "tokens"),
    [(a_message, 1, 0), (a_text_in_a_thread, 0, 0), (a_completion, 0, 7), (lambda messages: Dumped(), 0, 0)],
    ids=["message", "text", "completion", "object"],
)
def test_a_function_is_a_model(bundle: Bundle, function: Any, calls: int, tokens: int) -> None:
    result = run(bundle, function)
    assert [outcome.stop_reason for outcome in result.outcomes] == ["agent_done"] * 2
    assert result.configuration["model"] == function.__name__
    record = result.record(result.outcomes[0])
    assert len(record.tool_calls) == calls
    assert record.usage["agent"].input_tokens == tokens
    assert record.usage["agent"].calls == 1 + calls
    assert record.usage["agent"].unpriced_calls == (0 if tokens else 1 + calls)  # unknown is not free


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "gave a NoneType, not a message, its text or a Completion"),
        ({"choices": [{"message": {"content": "Hi"}}]}, "gave a whole answer: return the message in it"),
        ({"tool_calls": [{"name": "search_flights"}]}, 'gave tool_calls[0] that is not of the form {"id": '),
    ],
)
def test_an_answer_that_is_no_message_is_the_functions_fault(bundle: Bundle, answer: Any, said: str) -> None:
    result = run(bundle, lambda messages: answer)
    assert {outcome.stop_reason for outcome in result.outcomes} == {"infrastructure_error"}
    assert said in (result.outcomes[0].stop_detail or "")


def test_a_model_that_breaks_each_time_ends_the_run_at_once(bundle: Bundle) -> None:
    asked: list[int] = []

    def broken(messages: Any) -> str:
        asked.append(1)
        return str(messages.nothing)

    with pytest.raises(ModelSetupError) as caught:
        run(bundle, broken, n_rollouts=40, max_concurrency=2, retries=3)
    assert re.search(r"model broken: raised test_own_models\.py:\d+: AttributeError", str(caught.value))
    assert "It has answered no call yet" in str(caught.value)
    assert 3 <= len(asked) <= 5


def hang_in_a_thread(messages: Any) -> str:
    threading.Event().wait(600)
    return "Hello"


async def hang(messages: Any) -> str:
    await asyncio.sleep(600)
    return "Hello"


@pytest.mark.parametrize("model", [hang, hang_in_a_thread])
def test_a_call_has_a_time(bundle: Bundle, model: Any) -> None:
    bundle.rows({"n_rollouts": 2, "initial_messages": [{"role": "user", "content": "You want to fly."}]})
    result = run(bundle, model, call_timeout=0.2)
    name = getattr(model, "name", None) or model.__name__
    assert [outcome.stop_reason for outcome in result.outcomes] == ["infrastructure_error"] * 2
    assert {outcome.stop_detail for outcome in result.outcomes} == {f"model {name}: no answer within 0.2 s"}
    record = result.record(result.outcomes[0])
    assert [call.error for call in record.model_calls] == [f"model {name}: no answer within 0.2 s"]


def test_the_time_of_a_rollout_is_not_taken_for_that_of_a_call(bundle: Bundle) -> None:
    result = run(bundle, hang, timeout=0.2, call_timeout=100.0)
    assert {outcome.stop_reason for outcome in result.outcomes} == {"timeout"}


def test_a_function_gets_copies_which_it_may_change(bundle: Bundle) -> None:
    def policy(messages: list[Any], tools: list[Any]) -> Any:
        seen.append((len(messages), len(tools)))
        messages[0]["content"] = "changed"
        messages.insert(0, {"role": "system", "content": "mine"})
        tools.clear()
        return "Done."

    seen: list[tuple[int, int]] = []
    result = run(bundle, policy)
    assert seen[0] == seen[1]
    for record in result.records():
        assert [message["role"] for message in record.messages] == ["user", "assistant"]
        assert record.messages[0]["content"] != "changed"


class Down:
    """A model whose provider is down."""

    name = "down"

    async def complete(self, messages: Any, **_: Any) -> Any:
        raise ModelError("the provider is down", retryable=True)


class Asks:
    """Asks its model twice at once."""

    async def respond(self, rollout: Any) -> Any:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(rollout.complete()) for _ in range(2)]
        return asked[0].result().message


def test_a_fault_of_the_provider_is_one_in_a_group_of_tasks_too(bundle: Bundle) -> None:
    result = run(bundle, Down(), agent=Asks)
    assert {outcome.stop_reason for outcome in result.outcomes} == {"infrastructure_error"}


class Slow(Policy):
    """Answers too late."""

    async def complete(self, messages: Any, **_: Any) -> Completion:
        await asyncio.sleep(0.6)
        self.closed += 100
        return Completion({"role": "assistant", "content": self.said}, Usage(1, cost=1.0))


def test_a_model_call_ends_with_its_rollout(bundle: Bundle) -> None:
    def agent(rollout: Any) -> Any:
        return rollout.complete().message

    slow = Slow("Hi")
    result = run(bundle, slow, agent=agent, timeout=0.2)
    assert [outcome.stop_reason for outcome in result.outcomes] == ["timeout"] * 2
    time.sleep(0.6)
    assert slow.closed < 100


class Loaded(Policy):
    """Has a sync ``open``, as what loads weights has."""

    is_loaded = False

    def open(self) -> None:
        self.is_loaded = True


def test_what_opens_a_model_need_not_be_async(bundle: Bundle) -> None:
    model = Loaded("Done.")
    assert len(run(bundle, model).outcomes) == 2
    assert (model.is_loaded, model.closed) == (True, 1)
