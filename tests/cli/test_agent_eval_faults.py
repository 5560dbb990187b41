"""Each error is one clear message with the right exit code, and never a traceback."""

import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from command import Command, Finished, Starter
from flight_bundle import GOLD, SEED, Bundle
from stub_server import Answer, StubServer

GOLD_RUN = ("-d", "task.jsonl", "--agent", "gold")
MODEL_RUN = ("-d", "task.jsonl", "--model", "openai/gpt-4o-mini", "--no-sim-user", "--n-rollouts", "1")


def answer_twice(stub: StubServer, then: Answer) -> None:
    """A model that answers twice, and then with this."""
    stub.script("gpt-4o-mini", lambda request, place: "No." if len(stub.requests) <= 2 else then)


def assert_fault(ran: Finished, *parts: str, code: int = 2) -> None:
    """One message that holds ``parts``, and no more output."""
    assert ran.code == code, (ran.code, ran.out, ran.err)
    for part in parts:
        assert part in ran.error
    assert ran.out == ""
    assert [line[:7] == "Error: " for line in ran.error.splitlines()][:2] in ([True], [True, False])


def test_no_dataset(agent_eval: Command) -> None:
    assert_fault(agent_eval("--agent", "gold"), "--dataset")
    assert_fault(agent_eval("-d", "nothing.jsonl", "--agent", "gold"), "nothing.jsonl")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--max-concurrency", "0"], ["--max-concurrency must be at least 1"]),
        (["--fail-under", "2"], ["--fail-under must be at most 1"]),
        (["--eval-id", "../x"], ["--eval-id", "'../x'"]),
        (["--task-ids", "nobody"], ["nobody", "there is no row"]),
        (["--task-ids", "0", "--end-index", "1"], ["--rows cannot be combined with"]),
        (["--agent", "unheard"], ["unheard", "tool-calling, act, react, few-shot, gold, human,"]),
        (["--user", "unheard"], ["unheard", "llm, react, verify, reflection, human, none, replay:PATH"]),
        (["--resume", "never-begun"], ["never-begun"]),
        (["--json", "nowhere/all.json"], ["--json nowhere/all.json lies in no folder"]),
        (["--model-arg", "top_p"], ["--model-arg", "KEY=VALUE"]),
        (["--strict"], ["--strict is for --validate-only"]),
    ],
)
def test_options_that_do_not_fit(agent_eval: Command, arguments: list[str], parts: list[str]) -> None:
    run = GOLD_RUN[:2] if "--agent" in arguments else GOLD_RUN
    assert_fault(agent_eval(*run, *arguments), *parts)


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([{"n_rollouts": "four"}], ["task.jsonl:1", "n_rollouts", "four"]),
        ([{}, {}], ["task.jsonl:2", "flight.booking.001"]),
        ([{"id": "../x"}], ["task.jsonl:1", "../x"]),
        ([{"seed_sql": "file:nothing.sql"}], ["task.jsonl:1", "nothing.sql"]),
        ([{"toolset": "flight_task.gadgets"}], ["task.jsonl:1", "flight_task.gadgets"]),
        ([{"toolset": "flight_task.reward"}], ["flight_task.reward", "ToolRegistry"]),
        ([{"actions": None}], ["flight.booking.001", "actions", "--agent"]),
    ],
)
def test_faulty_rows(agent_eval: Command, bundle: Bundle, rows: list[Any], parts: list[str]) -> None:
    bundle.rows(*({"actions": GOLD, **row} for row in rows))
    assert_fault(agent_eval(*GOLD_RUN), *parts)


def test_an_error_in_the_seed_is_told_with_its_line(agent_eval: Command, bundle: Bundle) -> None:
    bundle.rows({"actions": GOLD})
    bundle.write("seed.sql", SEED + "\nINSERT INTO flihgts VALUES (2);\n")
    assert_fault(agent_eval(*GOLD_RUN), "flight_task/seed.sql:6", "flihgts")
    assert list((bundle.folder / "runs" / ".bases").iterdir()) == []


def test_a_reward_that_fails_leaves_rollouts_unjudged(
    agent_eval: Command, bundle: Bundle, results: Callable[[], Any]
) -> None:
    bundle.rows({"actions": GOLD, "n_rollouts": 2})
    bundle.write("reward.py", "def evaluate(messages, *, db, **kwargs):\n    raise KeyError('seat')\n")
    ran = agent_eval(*GOLD_RUN)
    assert ran.code == 1
    assert "reward_error 2 (left out of Pass^k)" in ran.out
    for part in ("reward.py", "KeyError", "seat"):
        assert part in ran.error
    assert (results()["unjudged"], results()["score"]) == ({"reward_error": 2}, None)


def test_a_missing_key_is_found_before_anything_runs(agent_eval: Command, bundle: Bundle) -> None:
    ran = agent_eval("-d", "task.jsonl", "--model", "openai/gpt-4o-mini", "--no-sim-user")
    assert_fault(ran, "OPENAI_API_KEY is not set")
    assert not (bundle.folder / "runs").exists()


def test_a_refused_key_stops_at_once_and_keeps_what_is_finished(
    agent_eval: Command, bundle: Bundle, stub_llm: StubServer, results: Callable[[], Any]
) -> None:
    bundle.rows({"n_rollouts": 5, "sim_user_prompt": None})
    answer_twice(stub_llm, Answer(status=401, error="Incorrect API key"))
    ran = agent_eval(*MODEL_RUN[:-2], "--max-concurrency", "1", **stub_llm.environment)
    assert ran.code == 2
    assert "HTTP 401" in ran.error
    assert "OPENAI_API_KEY" in ran.error
    assert "sk-test" not in ran.error
    assert len(stub_llm.requests) == 3
    assert (results()["status"], results()["finished"]) == ("stopped", 2)
    assert "2 of 5 rollouts are done and saved" in ran.error
    assert re.search(r"--resume [\d-]+\w{4}", ran.error)


def test_an_output_folder_that_is_a_file(agent_eval: Command, bundle: Bundle) -> None:
    bundle.rows({"actions": GOLD})
    bundle.write("occupied", "")
    assert_fault(agent_eval(*GOLD_RUN, "-o", "occupied"), "occupied", "cannot be written")


def test_a_log_that_is_a_folder(agent_eval: Command, bundle: Bundle) -> None:
    bundle.rows({"actions": GOLD})
    (bundle.folder / "runs" / "evals" / "mine.log").mkdir(parents=True)
    ran = agent_eval(*GOLD_RUN, "--eval-id", "mine", "--debug")
    last = ran.err.splitlines()[-1]  # after the traceback that --debug shows of every error
    assert (ran.code, last[:7]) == (2, "Error: ")
    assert last.endswith("mine.log: cannot be written: Is a directory")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_keeps_what_is_finished_and_says_how_to_go_on(
    start: Starter, agent_eval: Command, bundle: Bundle, stub_llm: StubServer, number: signal.Signals
) -> None:
    bundle.rows({"n_rollouts": 5, "sim_user_prompt": None})
    answer_twice(stub_llm, Answer(content="No.", delay=30))
    process = start(*MODEL_RUN[:-2], "--max-concurrency", "1", **stub_llm.environment)
    while len(stub_llm.requests) < 3 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "2 of 5 rollouts are done and saved" in err
    command = re.search(r"reward-kit agent-eval (--resume \S+)", err)
    assert command is not None
    assert "(interrupted: by a signal)" in out

    stub_llm.script("gpt-4o-mini", ["No."])
    before = len(stub_llm.requests)
    resumed = agent_eval(*command[1].split(), **stub_llm.environment)
    assert resumed.code == 0, resumed.err
    assert len(stub_llm.requests) - before == 3
    assert "0 of 5 judged rollouts passed" in resumed.out


def test_interrupted_before_anything_ran(start: Starter, bundle: Bundle) -> None:
    bundle.write("tools.py", "import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    process = start(*GOLD_RUN)
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_budget_starts_no_more_rollouts_and_can_be_raised(
    agent_eval: Command, bundle: Bundle, stub_llm: StubServer, results: Callable[[], Any]
) -> None:
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 0, "total_tokens": 1_000_000}  # 0.15 USD each
    bundle.rows({"n_rollouts": 4, "sim_user_prompt": None})
    stub_llm.script("gpt-4o-mini", [Answer(content="No.", usage=usage)])
    run = (*MODEL_RUN[:-2], "--max-concurrency", "1", "--eval-id", "thrifty")
    ran = agent_eval(*run, "--max-cost", "0.2", **stub_llm.environment)
    assert ran.code == 1
    assert (results()["status"], results()["finished"]) == ("budget", 2)
    assert "0.30 of 0.20 USD are spent (--max-cost)" in ran.out
    assert "--resume thrifty --max-cost USD" in ran.error
    more = agent_eval("--resume", "thrifty", "--max-cost", "5", **stub_llm.environment)
    assert more.code == 0, more.err
    assert (results()["status"], results()["finished"]) == ("complete", 4)
    assert len(stub_llm.requests) == 4
    assert results()["usage"]["agent"]["cost"] == pytest.approx(0.6)


def test_secret_arguments_are_not_stored(agent_eval: Command, bundle: Bundle, stub_llm: StubServer) -> None:
    stub_llm.script("gpt-4o-mini", ["No."])
    canary = "sk-canary-4711-do-not-store"
    options = ("--model-arg", f"api_key={canary}", "--json", "all.json", "--debug")
    ran = agent_eval(*MODEL_RUN, *options, **stub_llm.environment)
    assert ran.code == 0, ran.err
    assert any(canary in value for headers in stub_llm.request_headers for value in headers.values())
    written = [path for path in bundle.folder.rglob("*") if path.is_file()]
    assert not [path for path in written if canary.encode() in path.read_bytes()]
    assert canary not in ran.out + ran.err
