"""Models of one's own, in the process, in place of those that the configuration names."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle, flight_bundle
from small_task import wants

from reward_kit.agent import EvaluationConfig, agent_eval, load_rollout, run_evaluation
from reward_kit.agent.completion import Completion, Usage
from reward_kit.errors import UsageError


class Policy:
    """Looks for flights once, then says a line."""

    name = "policy-step-100"

    def __init__(self, said: str) -> None:
        self.said = said
        self.closed = 0

    async def complete(self, messages: list[dict[str, Any]], *, tools: Any = None, **_: Any) -> Completion:
        await asyncio.sleep(0)
        if tools and messages[-1]["role"] == "user":
            return Completion(
                wants(("search_flights", {"origin": "SFO", "dest": "JFK", "date": "x"})), Usage(1)
            )
        return Completion({"role": "assistant", "content": self.said}, Usage(1))

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    made = flight_bundle(tmp_path)
    made.rows({"actions": GOLD, "n_rollouts": 2, "sim_user_prompt": "You want to fly."})
    monkeypatch.chdir(tmp_path)
    for name in ("MODEL_AGENT", "MODEL_SIM", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return made


def test_they_play_agent_and_user_without_any_key(bundle: Bundle) -> None:
    agent, user = Policy("There is one."), Policy("Fine. ###STOP###")
    result = agent_eval(bundle.dataset, models={"agent": agent, "user": user})
    assert [outcome.stop_reason for outcome in result.outcomes] == ["user_stop"] * 2
    record = load_rollout(result.folder / result.outcomes[0].file)
    assert (record.agent, record.models) == (
        "tool-calling",
        {"agent": "policy-step-100", "user": "policy-step-100"},
    )
    assert [call.name for call in record.tool_calls] == ["search_flights"]
    assert result.configuration["model"] == "policy-step-100"
    assert (agent.closed, user.closed) == (1, 1)


async def test_one_may_be_given_and_none_is_needed_for_the_other(bundle: Bundle) -> None:
    config = EvaluationConfig(dataset=str(bundle.dataset), agent="react", no_sim_user=True)
    result = await run_evaluation(
        config, models={"agent": Policy('Action: {"name": "respond", "arguments": {"content": "Hi"}}')}
    )
    assert [outcome.stop_reason for outcome in result.outcomes] == ["agent_done"] * 2
    assert config.model is None


async def test_all_rollouts_offer_the_same_tools_and_an_agent_may_offer_others(bundle: Bundle) -> None:
    offered: list[Any] = []

    class Offered(Policy):
        async def complete(self, messages: Any, *, tools: Any = None, **options: Any) -> Completion:
            offered.append(tools)
            return Completion({"role": "assistant", "content": "No."}, Usage(1))

    Path("choosy.py").write_text(
        "async def agent(rollout):\n"
        "    if rollout.index == 1:\n"
        "        rollout.tools = rollout.tools[1:]\n"
        "        rollout.tools[0]['function']['description'] = 'mine'\n"
        "    return (await rollout.complete()).message['content']\n"
    )
    bundle.rows({"actions": GOLD, "n_rollouts": 3, "sim_user_prompt": None})
    config = EvaluationConfig(dataset=str(bundle.dataset), agent="choosy:agent", max_concurrency=1)
    await run_evaluation(config, models={"agent": Offered("")})
    assert offered[0] is offered[2]
    assert len(offered[1]) == len(offered[0]) - 1
    assert "mine" not in str(offered[0])


class Broken(Policy):
    """Does not do what a model does."""

    def __init__(self, answer: Any) -> None:
        super().__init__("")
        self.answer = answer

    async def complete(self, messages: list[dict[str, Any]], *, tools: Any = None, **_: Any) -> Completion:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (RuntimeError("GPU on fire"), r"test_own_models\.py:\d+: RuntimeError: GPU on fire"),
        ({"content": "Hi"}, "complete\\(\\) gave a dict, not a Completion"),
        ("Hi", "complete\\(\\) gave a str, not a Completion"),
    ],
)
def test_a_fault_of_the_model_is_not_the_agents(bundle: Bundle, answer: Any, told: str) -> None:
    result = agent_eval(
        bundle.dataset, models={"agent": Broken(answer)}, no_sim_user=True, n_rollouts=1, retries=0
    )
    outcome = result.outcomes[0]
    assert (outcome.stop_reason, outcome.reward) == ("infrastructure_error", None)
    record = load_rollout(result.folder / outcome.file)
    assert record.stop_detail is not None
    assert re.search(told, record.stop_detail)
    assert "policy-step-100" in record.stop_detail
    assert record.model_calls[-1].error == record.stop_detail


def test_an_answer_that_names_no_model_is_the_models(bundle: Bundle) -> None:
    result = agent_eval(bundle.dataset, models={"agent": Policy("Hi")}, no_sim_user=True, n_rollouts=1)
    record = load_rollout(result.folder / result.outcomes[0].file)
    assert {call.model for call in record.model_calls} == {"policy-step-100"}


class Sampling(Policy):
    """Says how it came to its words, as training needs it."""

    async def complete(self, messages: list[dict[str, Any]], *, tools: Any = None, **_: Any) -> Completion:
        answer = await super().complete(messages, tools=tools)
        answer.message |= {"token_ids": [7, len(messages)], "logprobs": [-0.5, -0.25]}
        return answer


def test_what_a_policy_says_of_its_sampling_is_in_the_trajectory(bundle: Bundle) -> None:
    result = agent_eval(bundle.dataset, models={"agent": Sampling("Hi")}, no_sim_user=True, n_rollouts=1)
    record = load_rollout(result.folder / result.outcomes[0].file)
    said = [message for message in record.messages if message["role"] == "assistant"]
    assert [message["token_ids"][0] for message in said] == [7, 7]
    assert [message["logprobs"] for message in said] == [[-0.5, -0.25]] * 2


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ({"judge": Policy("")}, "no role 'judge'"),
        ({"agent": "openai/gpt-4o"}, r"models\['agent'\] is no model"),
        ({"agent": lambda messages: "Hi"}, r"models\['agent'\] is no model"),
    ],
)
def test_what_is_no_model_is_refused_before_anything_runs(bundle: Bundle, models: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        agent_eval(bundle.dataset, models=models)
    assert not Path("runs").exists()


@pytest.mark.parametrize("option", [{"validate_only": True}, {"json": "all.json"}, {"fail_under": 0.5}])
def test_what_only_the_command_line_does_is_refused(bundle: Bundle, option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(option))} is for the command line"):
        agent_eval(bundle.dataset, agent="gold", **option)
    assert not Path("runs").exists()
