"""The requests of a written bundle are those that the benchmark's own code sends.

Each test needs a checkout of tau-bench, which ``TAU_BENCH=…`` names.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stub_server import StubServer, called
from their_code import AGENT_MODEL, USER_MODEL

from reward_kit.agent import agent_eval
from reward_kit.agent.tau.tau_bench.bundle import port

TAU_BENCH = os.environ.get("TAU_BENCH")
tau_bench = pytest.mark.skipif(not TAU_BENCH, reason="no checkout: make test-tau-bench TAU_BENCH=DIR")

FIND = {"email": "mei.kovacs8232@example.com"}
LINES = ["Hi, the lamp is broken.", "Yes, please.", "Thanks! ###STOP###"]
REPLIES = ["Who are you?", "I can do that; shall I?"]


TWO_CALLS = called("a", ("find_user_id_by_email", FIND), ("calculate", {"expression": "1 + 2"}))
CALLING = [REPLIES[0], TWO_CALLS, REPLIES[1]]
HANDING_OVER = [REPLIES[0], TWO_CALLS, called("b", ("transfer_to_human_agents", {}))]


def acting(thought: str = "") -> list[str]:
    def action(name: str, arguments: dict[str, Any]) -> str:
        return f"{thought}Action:\n{json.dumps({'name': name, 'arguments': arguments})}"

    said = [action("respond", {"content": reply}) for reply in REPLIES]
    return [said[0], action("find_user_id_by_email", FIND), said[1]]


AGENTS = {"tool-calling": CALLING, "act": acting(), "react": acting("Thought:\nThat can be done.\n")}


def speaking(*verdicts: str, form: str = "{}") -> Callable[[dict[str, Any], int], str]:
    """The user's model: its lines by their place, and verdicts and reflections where these are asked for."""
    left = list(verdicts)

    def answer(request: dict[str, Any], place: int) -> str:
        asked = request["messages"][0]["content"]
        if not asked.startswith("You are a supervisor"):
            return form.format(LINES[place])
        if not asked.endswith("Classification:"):
            return "Reflection:\nToo long.\n\nResponse:\nHi."
        return left.pop(0) if left and "Instruction:" in asked else "true"

    return answer


def without_nothing(value: Any) -> Any:
    """Without empty keys: LiteLLM's answers, which tau-bench sends back, are full of them."""
    if isinstance(value, list):
        return [without_nothing(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: without_nothing(each) for key, each in value.items()}
    return {key: each for key, each in kept.items() if each not in (None, {})}


def sent(stub: StubServer) -> dict[str, list[dict[str, Any]]]:
    """The requests by model, emptied from the server.

    tau-bench also sends requests without any instruction, when it makes a user: nobody hears the answers.
    """
    found: dict[str, list[dict[str, Any]]] = {AGENT_MODEL: [], USER_MODEL: []}
    for request in stub.requests:
        if "agent.\nRules:" not in str(request["messages"][0].get("content")):
            found[request["model"]].append({**request, "messages": without_nothing(request["messages"])})
    stub.requests.clear()
    return found


def text_of(requests: list[dict[str, Any]]) -> str:
    """Messages and tools of each request, as JSON text."""
    return json.dumps([[each["messages"], each.get("tools")] for each in requests], sort_keys=True, indent=1)


def keys_of(requests: list[dict[str, Any]]) -> set[str]:
    return {key for each in requests for key in each}


@pytest.fixture
def both(stub_llm: StubServer, tmp_path: Path) -> Callable[..., Any]:
    """``both(checkout, agent, user, answers, lines)``: the requests of the benchmark and of the bundle."""

    def play(checkout: str, agent: str, user: str, answers: Any, lines: Any, **options: Any) -> Any:
        stub_llm.script(AGENT_MODEL, answers)
        stub_llm.script(USER_MODEL, lines())
        script = str(Path(__file__).parent / "their_code.py")
        done = subprocess.run(
            [sys.executable, script, checkout, agent, user, "5"],
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        theirs = sent(stub_llm)
        stub_llm.script(USER_MODEL, lines())
        bundle = tmp_path / "written_retail"
        port(checkout, bundle)
        given = {"user": user, "model": AGENT_MODEL, "provider": "openai", "task_ids": "5"}
        given |= {"temperature": 0.0, "sim_model": USER_MODEL, "user_provider": "openai"}
        given |= {"output_dir": str(tmp_path / "runs")}
        result = agent_eval(str(bundle), agent=agent, **{**given, **options})
        return theirs, sent(stub_llm), result

    return play


@tau_bench
@pytest.mark.parametrize("agent", AGENTS)
def test_agents_of_tau_bench_send_what_they_send_there(both: Callable[..., Any], agent: str) -> None:
    theirs, ours, _ = both(TAU_BENCH, agent, "llm", AGENTS[agent], speaking)
    for model in theirs:
        assert text_of(ours[model]) == text_of(theirs[model])
    assert [len(requests) for requests in theirs.values()] == [3, 3]
    assert keys_of(ours[AGENT_MODEL]) ^ keys_of(theirs[AGENT_MODEL]) == {"seed"}
    assert keys_of(ours[USER_MODEL]) ^ keys_of(theirs[USER_MODEL]) == {"seed"}


@tau_bench
def test_a_hand_over_without_its_arguments_ends_the_episode_as_there(both: Callable[..., Any]) -> None:
    theirs, ours, result = both(TAU_BENCH, "tool-calling", "llm", HANDING_OVER, speaking)
    assert text_of(ours[AGENT_MODEL]) == text_of(theirs[AGENT_MODEL])
    assert len(theirs[AGENT_MODEL]) == 3
    assert [outcome.stop_reason for outcome in result.outcomes] == ["terminal_tool"]


@tau_bench
@pytest.mark.parametrize(
    ("user", "lines", "same"),
    [
        ("react", lambda: speaking(form="Thought:\nI see.\n\nUser Response:\n{}"), 3),
        ("verify", speaking, 6),
        ("reflection", speaking, 6),
        ("reflection", lambda: speaking("false"), 3),  # a draft, its verdict and the reflection on it
    ],
)
def test_users_of_tau_bench_are_asked_what_they_are_asked_there(
    both: Callable[..., Any], user: str, lines: Callable[[], Any], same: int
) -> None:
    theirs, ours, _ = both(TAU_BENCH, "tool-calling", user, CALLING, lines)
    for request in theirs[USER_MODEL]:  # verify shows the model an object of Python's in place of its line
        first = request["messages"][0]
        first["content"] = re.sub(r"Message\(content='(.*?)', role=.*\)", r"\1", first["content"])
    assert text_of(ours[USER_MODEL][:same]) == text_of(theirs[USER_MODEL][:same])
    assert len(ours[USER_MODEL]) >= same
