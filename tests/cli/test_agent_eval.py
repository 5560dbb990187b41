"""``reward-kit agent-eval`` from a person's side: whole conversations over HTTP, in a process of its own."""

import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import Command
from flight_bundle import GOLD, Bundle
from stored_rollouts import query
from stub_server import StubServer, book_and_pay

from reward_kit.agent import load_rollout
from reward_kit.agent.config import DEFAULTS, OPTIONS


def busy_agent(request: dict[str, Any], place: int) -> Any:
    return book_and_pay(request, place - 1) if place else "There is one at 6:30. Shall I book it?"


@pytest.fixture
def booking(stub_llm: StubServer) -> StubServer:
    """An agent that asks, books, pays and reports, and a user who agrees and leaves."""
    stub_llm.script("gpt-4o-mini", busy_agent)
    stub_llm.script("gpt-3.5-turbo", ["Yes please.", "Thanks! ###STOP###"])
    return stub_llm


def test_a_booking_over_several_turns_is_rewarded(
    agent_eval: Command, bundle: Bundle, booking: StubServer, results: Callable[[], Any]
) -> None:
    named = {"MODEL_AGENT": "openai/gpt-4o-mini", "MODEL_SIM": "openai/gpt-3.5-turbo"}
    ran = agent_eval("--dataset", "task.jsonl", **named, **booking.environment)
    assert (ran.code, ran.error.count("Error")) == (0, 0)
    found = results()
    assert found["status"] == "complete"
    assert [found["pass_power"][k]["value"] for k in "1234"] == [1.0, 1.0, 1.0, 1.0]
    assert "tool-calling (openai/gpt-4o-mini): 4 of 4 judged rollouts passed" in ran.out
    assert re.search(r"\| +1\.000 \| +1\.000 \| +1\.000 \| +1\.000 \|", ran.out)
    usage = found["usage"]
    assert (usage["agent"]["calls"], usage["user"]["calls"]) == (16, 8)
    assert usage["agent"]["input_tokens"] == 1600
    assert usage["agent"]["cost"] > 0

    outcome = found["rows"][0]["rollouts"][0]
    record = load_rollout(bundle.folder / "runs" / outcome["file"])
    assert [call.name for call in record.tool_calls] == ["create_booking", "pay_booking"]
    assert record.tool_calls[1].changes[0]["after"] == {"status": "paid"}
    assert (record.stop_reason, record.turns, outcome["turn_of_success"]) == ("user_stop", 2, 2)
    with sqlite3.connect(bundle.folder / "runs" / outcome["database"]) as final:
        assert final.execute("SELECT passenger, status FROM bookings").fetchall() == [("Alice", "paid")]


def test_gold_needs_no_model_or_network(agent_eval: Command, bundle: Bundle, results: Any) -> None:
    bundle.rows({"actions": GOLD, "n_rollouts": None})
    nowhere = {"MODEL_AGENT": "no/such", "OPENAI_API_BASE": "http://127.0.0.1:9"}
    ran = agent_eval("-d", "task.jsonl", "--agent", "gold", **nowhere)
    assert ran.code == 0, ran.err
    assert results()["score"] == 1.0
    assert results()["configuration"]["model"] is None
    (evaluation,) = (bundle.folder / "runs" / "evals").glob("*.db")
    (row,) = query(evaluation, "SELECT gold_calls, gold_changes FROM rows")
    assert [change["table"] for change in json.loads(row["gold_changes"])] == ["bookings"]
    assert [bool(call["changes"]) for call in json.loads(row["gold_calls"])] == [True, True]


def test_it_runs_from_anywhere(agent_eval: Command, bundle: Bundle, tmp_path: Path) -> None:
    bundle.rows({"actions": GOLD, "n_rollouts": 1})
    for number, dataset in enumerate(["flight_task/task.jsonl", "flight_task", str(bundle.folder)]):
        ran = agent_eval("-d", dataset, "--agent", "gold", "-o", f"runs{number}", "--quiet", cwd=tmp_path)
        assert ran.code == 0, ran.err
        assert (tmp_path / f"runs{number}" / "flight.booking.001" / "base.db").is_file()
    ran = agent_eval("--task-dir", "flight_task", "--agent", "gold", "--quiet", cwd=tmp_path)
    assert ran.code == 0, ran.err


def test_quiet_prints_one_line_of_scores(agent_eval: Command, bundle: Bundle) -> None:
    bundle.rows({"actions": GOLD, "n_rollouts": 2})
    ran = agent_eval("-d", "task.jsonl", "--agent", "gold", "--quiet")
    assert ran.out == "gold  Pass^1 1.000  Pass^2 1.000  Pass^3 -  Pass^4 -\n"
    assert ran.err == ""


def test_json_carries_whole_histories_to_a_file_or_the_output(agent_eval: Command, bundle: Bundle) -> None:
    bundle.rows({"actions": GOLD, "n_rollouts": 2})
    ran = agent_eval("-d", "task.jsonl", "--agent", "gold", "--json", "all.json")
    assert ran.code == 0
    report = json.loads((bundle.folder / "all.json").read_text())
    trajectory = report["rows"][0]["rollouts"][1]["trajectory"]
    assert [message["role"] for message in trajectory["messages"]][:2] == ["user", "assistant"]
    assert report["configuration"]["agent"] == "gold"
    assert report["versions"]["python"]
    to_output = agent_eval("-d", "task.jsonl", "--agent", "gold", "--json", "-")
    assert json.loads(to_output.out)["score"] == report["score"] == 1.0


def test_fail_under_turns_a_low_score_into_an_exit_code(agent_eval: Command, bundle: Bundle) -> None:
    bundle.rows({"actions": GOLD, "n_rollouts": 1}, {"id": "other", "actions": [], "n_rollouts": 1})
    run = ("-d", "task.jsonl", "--agent", "gold", "--quiet")
    assert agent_eval(*run, "--fail-under", "0.5").code == 0
    low = agent_eval(*run, "--fail-under", "0.6")
    assert (low.code, low.error) == (1, "Pass^1 is below --fail-under 0.6.\n")


def test_validate_only_checks_without_a_model(agent_eval: Command, bundle: Bundle) -> None:
    bundle.rows({"actions": GOLD})
    ran = agent_eval("-d", "task.jsonl", "--validate-only")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "Task bundle successfully validated.")
    bundle.rows({"end_goal_sql": "SELECT nonsense", "n_rollouts": 1})
    ran = agent_eval("-d", "task.jsonl", "--validate-only", "--json", "-")
    assert ran.code == 1
    found = json.loads(ran.out)
    assert found["ok"] is False
    assert [(one["kind"], one["grade"]) for one in found["findings"]] == [("goal", "error")]
    assert found["findings"][-1]["text"].startswith("end_goal_sql does not run")
    assert "error: goal (1 row)" in ran.error
    assert agent_eval("-d", "task.jsonl", "--validate-only", "--json", "found.json").code == 1
    assert json.loads((bundle.folder / "found.json").read_text()) == found
    assert not (bundle.folder / "runs").exists()


def test_of_several_values_of_an_option_the_last_counts(agent_eval: Command, bundle: Bundle) -> None:
    bundle.rows({"actions": GOLD, "n_rollouts": 1})
    ran = agent_eval("-d", "task.jsonl", "--agent", "human", "--agent-strategy", "gold", "--quiet")
    assert (ran.code, ran.out.split()[0]) == (0, "gold")
    assert ran.error == "warning: --agent is given 2 times; only the last counts\n"


def test_help_lists_every_option_under_its_group_and_no_alias(agent_eval: Command) -> None:
    usual = agent_eval("--help")
    assert usual.code == 0
    assert len(usual.out.splitlines()) < 70
    assert "--dataset" in usual.out
    assert "--patience" not in usual.out
    ran = agent_eval("--help-all", COLUMNS="200")
    assert ran.code == 0
    columns = "\n".join(re.findall(r"^  -.*?(?=  |$)", ran.out, re.MULTILINE))
    listed = set(re.findall(r"(?<![\w-])-[\w-]+", columns))
    shown = [  # up to the first long one
        one.flags[: [flag.startswith("--") for flag in one.flags].index(True) + 1]
        for one in OPTIONS.values()
        if not one.hidden
    ]
    flags = {flag for several in shown for both in several for flag in both.split("/")}
    assert listed == {"-h", "--help", "--help-all"} | flags
    for group in ("Tasks", "Agent", "Simulated user", "Limits", "Results", "Display"):
        assert f"\n{group}:\n" in ran.out
    for name, default in DEFAULTS.items():
        if isinstance(default, int) and not isinstance(default, bool) and not OPTIONS[name].hidden:
            assert f"Default: {default}." in " ".join(ran.out.split()), name


def test_rows_are_filtered_by_their_fields(agent_eval: Command, bundle: Bundle) -> None:
    domains = ("hotel", "flight", "hotel")
    bundle.rows(*({"id": f"r{n}", "actions": GOLD, "metadata": {"in": one}} for n, one in enumerate(domains)))
    of_hotels = ("-d", "task.jsonl", "--agent", "gold", "--filter", "metadata.in=hotel")
    ran = agent_eval(*of_hotels, "--n-rollouts", "1")
    assert "2 of 2 judged rollouts passed, 2 rows" in ran.out
    ran = agent_eval(*of_hotels, "--filter", "id=r1")
    assert (ran.code, "--filter: no row has metadata.in=hotel, id=r1" in ran.error) == (2, True)
