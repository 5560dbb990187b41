"""The requests of a ported bundle are those that τ²-bench's own code sends.

Messages, tools and settings of each request of one scripted conversation are compared, for agent and user.
These differ, and are listed in ``DIFFERENT`` and in the documentation: the seed, the default ``tool_choice``,
and where a call and its result repeat the tool's name.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from oracle import CHECKOUT, PYTHON, missing
from stub_server import StubServer, called, calls, served

from reward_kit.agent import agent_eval
from reward_kit.cli import main

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

AGENT, USER = "gpt-4o", "gpt-4o-mini"
DIFFERENT = {"seed", "tool_choice"}
"""Keys of requests with other values: ours has a seed for each rollout, and leaves out ``auto``."""
TELECOM = "[mobile_data_issue]airplane_mode_on|data_mode_off[PERSONA:None]"


@pytest.fixture
def stub_llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubServer]:
    """An OpenAI-compatible server that the environment points at."""
    yield from served(monkeypatch)


@pytest.fixture
def both(stub_llm: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``both(domain, task, row, agent, user)``: the requests of the benchmark and of the bundle, by model."""
    monkeypatch.setenv("MODEL_JUDGE", "none")

    def sent() -> dict[str, list[dict[str, Any]]]:
        found = {model: stub_llm.requests_for(model) for model in (AGENT, USER)}
        stub_llm.requests.clear()
        return found

    def play(domain: str, task: str, row: str, agent: list[Any], user: list[Any], mode: str = "") -> Any:
        stub_llm.script(AGENT, agent)
        stub_llm.script(USER, user)
        program = [PYTHON, str(Path(__file__).with_name("their_requests.py")), domain, task, mode]
        variables = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LOGURU_LEVEL": "CRITICAL"}
        done = subprocess.run(program, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        theirs = sent()
        source = ["--source", CHECKOUT] if CHECKOUT else []
        source += ["--variant", mode] if mode else []
        assert main(["port", "tau2", "--domain", domain, str(tmp_path), *source]) == 0
        options: dict[str, Any] = {"model": AGENT, "provider": "openai", "temperature": 0.0}
        if mode:
            options |= {"mode": mode, "model_args": {"tool_choice": "required"}}
        else:
            options |= {"sim_model": USER, "user_provider": "openai", "user_model_args": {"temperature": 0.0}}
        bundle, runs = tmp_path / f"tau2_{domain}", str(tmp_path / "runs")
        result = agent_eval(bundle, task_ids=row, output_dir=runs, **options)
        return done.stdout, theirs, sent(), result

    return play


def plain(requests: list[dict[str, Any]]) -> list[str]:
    """Messages, tools and settings as text, without what differs on purpose."""
    texts = []
    for request in requests:
        kept = {name: value for name, value in request.items() if name not in DIFFERENT}
        kept["messages"] = [_plain(message) for message in kept["messages"]]
        texts.append(json.dumps(kept, sort_keys=True, indent=1))
    return texts


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in message.items() if value is not None}
    if kept["role"] == "tool":
        kept.pop("name", None)
    if "tool_calls" in kept:
        kept["tool_calls"] = [{**call, "name": None} for call in kept["tool_calls"]]
    return kept


SCRIPTS: dict[str, tuple[str, str, list[Any], list[Any]]] = {
    "mock": (
        "update_task_with_user_tools",
        "update_task_with_user_tools",
        [
            "Which task? Ünïcode.",
            called(
                "a", ("update_task_status", {"task_id": "task_1", "status": "completed"}), ("get_users", {})
            ),
            "It is done.",
        ],
        [called("u", ("check_notifications", {})), "It is task_1, é.", "Yes, please.", "Thanks! ###STOP###"],
    ),
    "airline": (
        "5",
        "5",
        ["Who are you?", called("a", ("get_user_details", {"user_id": "nobody"})), "There is no such user."],
        ["I want to cancel a flight.", "I am nobody.", "###TRANSFER###"],
    ),
    "retail": (
        "5",
        "5",
        ["Who are you?", called("a", ("calculate", {"expression": "1 + 2"})), "It is 3."],
        ["I want to return something.", "Please add 1 and 2.", "###STOP###"],
    ),
    "telecom": (
        TELECOM,
        "mobile_data_issue.airplane_mode_on.data_mode_off.PERSONA.None",
        [called("a", ("get_customer_by_phone", {"phone_number": "555-123-2002"})), "Look at it.", "And now?"],
        [
            "My phone has no network.",
            called("u", ("toggle_airplane_mode", {}), ("check_network_status", {})),
            called("v", ("toggle_data", {})),
            "It works.",
            "###STOP###",
        ],
    ),
}


@pytest.mark.parametrize("domain", SCRIPTS)
def test_agent_and_user_send_what_they_send_there(both: Callable[..., Any], domain: str) -> None:
    end, theirs, ours, result = both(domain, *SCRIPTS[domain])
    assert end == result.outcomes[0].stop_reason == "user_stop"
    for model, requests in theirs.items():
        assert len(requests) >= 3
        assert plain(ours[model]) == plain(requests)
        for their, our in zip(requests, ours[model], strict=True):
            assert their.get("tool_choice", "auto") == "auto"
            assert set(their) - set(our) <= {"tool_choice"}
            assert set(our) <= set(their)


SOLO: dict[str, tuple[str, str, list[Any]]] = {
    "mock": (
        "create_task_1_with_env_assertions",
        "create_task_1_with_env_assertions",
        [
            called("a", ("get_users", {})),
            called("b", ("create_task", {"user_id": "user_1", "title": "Important Meeting"})),
            called("c", ("done", {})),
        ],
    ),
    "telecom": (
        TELECOM,
        "mobile_data_issue.airplane_mode_on.data_mode_off.PERSONA.None",
        [
            called("a", ("get_customer_by_phone", {"phone_number": "555-123-2002"})),
            called("u", ("toggle_airplane_mode", {}), ("check_network_status", {})),
            called("c", ("done", {})),
        ],
    ),
}


@pytest.mark.parametrize("domain", SOLO)
def test_without_a_user_the_agent_sends_what_it_sends_there(both: Callable[..., Any], domain: str) -> None:
    task, row, agent = SOLO[domain]
    end, theirs, ours, result = both(domain, task, row, agent, [], "solo")
    assert (end, result.outcomes[0].stop_reason) == ("agent_stop", "terminal_tool")
    assert len(theirs[AGENT]) == 3
    assert plain(ours[AGENT]) == plain(theirs[AGENT])
    assert {one["tool_choice"] for one in (*theirs[AGENT], *ours[AGENT])} == {"required"}
    assert theirs[USER] == ours[USER] == []


def test_a_model_that_writes_arguments_its_own_way_gets_them_back_as_it_wrote_them(
    both: Callable[..., Any],
) -> None:
    """There they are written anew, with blanks and ASCII escapes; the objects are the same."""
    answer = calls(("calculate", '{"expression":"1 + 2"}'))
    answer.tool_calls[0]["id"] = "call_own"
    end, theirs, ours, _ = both("retail", "5", "5", ["Yes?", answer, "It is 3."], SCRIPTS["retail"][3])
    written = [
        one[AGENT][-1]["messages"][-2]["tool_calls"][0]["function"]["arguments"] for one in (theirs, ours)
    ]
    assert written == ['{"expression": "1 + 2"}', '{"expression":"1 + 2"}']
    assert end == "user_stop"
