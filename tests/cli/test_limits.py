"""A provider that is not there, as the command tells of it."""

from collections.abc import Callable
from typing import Any

from command import Command
from flight_bundle import Bundle
from stub_server import Answer, StubServer

MODEL_RUN = ("-d", "task.jsonl", "--model", "openai/gpt-4o-mini", "--no-sim-user", "--max-concurrency", "2")


def test_a_provider_that_stays_away_is_told_and_stops_the_run(
    agent_eval: Command, bundle: Bundle, stub_llm: StubServer, results: Callable[[], Any]
) -> None:
    bundle.rows({"n_rollouts": 8, "sim_user_prompt": None})
    away = Answer(drop=True)
    stub_llm.script("gpt-4o-mini", lambda request, place: "Done." if len(stub_llm.requests) <= 3 else away)
    ran = agent_eval(*MODEL_RUN, "--patience", "2", **stub_llm.environment)
    assert ran.code == 2
    assert f"openai at {stub_llm.url} has not answered since" in ran.err
    assert "retrying in" in ran.err
    assert "no good answer since" in ran.error
    assert "--patience" in ran.error
    assert "3 of 8 rollouts are done and saved" in ran.err
    assert "--resume" in ran.err
    assert (results()["status"], results()["finished"], results()["unjudged"]) == ("stopped", 3, {})
