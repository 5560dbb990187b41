"""Failed rollouts in the report, and a model that explains them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from command import Command
from flight_bundle import GOLD, Bundle
from stub_server import Answer, StubServer

AGENT = """
class Agent:
    async def respond(self, rollout):
        await rollout.call_tool("create_booking", {"flight_id": 1, "passenger": "Bob"})
        return "Booked."
"""
RUN = ("-d", "task.jsonl", "--agent", "agent:Agent", "--no-sim-user", "--eval-id", "mine", "--retries", "0")
JUDGED = json.dumps({"author": "agent", "fault": "wrong_arguments", "sentence": "It booked for Bob."})


@pytest.fixture
def judge(bundle: Bundle, environment: None, stub_llm: StubServer) -> StubServer:
    bundle.rows({"actions": GOLD, "n_rollouts": 2})
    bundle.write("agent.py", AGENT)
    stub_llm.script("judge", [JUDGED])
    return stub_llm


def test_a_person_finds_out_why_a_rollout_failed_without_looking_into_files(
    agent_eval: Command, judge: StubServer, results: Callable[[], Any]
) -> None:
    ran = agent_eval(*RUN, "--explain", "openai/judge", **judge.environment)
    assert (ran.code, ran.error.count("\n") < 10) == (0, True)
    flat = " ".join(ran.out.split())
    for part in (
        "failures wrong_arguments 2 (100%)",
        "explanations 2 by openai/judge, unpriced at fault: agent 2 (100%)",
        'create_booking: passenger: expected "Alice", got "Bob"',
        "judged agent, wrong_arguments: It booked for Bob.",
        "read it reward-kit show ",
    ):
        assert part in flat
    assert results()["explanations"]["made"] == 2


def test_a_model_that_cannot_be_reached_is_told_and_the_exit_code_is_1(
    agent_eval: Command, judge: StubServer, results: Callable[[], Any]
) -> None:
    judge.fail("judge", Answer(status=500), times=9)
    ran = agent_eval(*RUN, "--explain", "openai/judge", **judge.environment)
    assert ran.code == 1
    assert "Traceback" not in ran.err
    assert "2 missing: " in " ".join(ran.out.split())
    assert "sk-test" not in ran.out + ran.err
    assert (results()["status"], results()["finished"]) == ("complete", 2)
    quiet = agent_eval("--resume", "mine", "--quiet", **judge.environment)
    assert quiet.code == 1
    assert quiet.error.startswith("2 explanations are missing: ")
    judge._faults.clear()
    assert agent_eval("--resume", "mine", "--quiet", **judge.environment).code == 0
