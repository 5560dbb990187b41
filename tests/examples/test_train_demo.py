"""The ticket office of ``examples/train_demo``, without PyTorch: its rows, its players, its conversations."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import run_command

from reward_kit.agent import TaskBundle, evaluate, export

DEMO = Path(__file__).parents[2] / "examples" / "train_demo"


@pytest.fixture
def players(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(DEMO)
    monkeypatch.chdir(tmp_path)
    import players  # type: ignore[import-not-found]

    return players


@pytest.mark.parametrize("dataset", ["task.jsonl", "held_out.jsonl"])
def test_its_bundle_is_valid(dataset: str) -> None:
    done = run_command("validate", DEMO / "ticket_task" / dataset)
    assert done.code == 0
    assert "doing nothing in none" in done.out


def test_held_out_customers_are_new() -> None:
    named = [
        {row["sim_user_prompt"].split()[2] for row in map(json.loads, lines[1:])}
        for name in ("task.jsonl", "held_out.jsonl")
        if (lines := (DEMO / "ticket_task" / name).read_text().splitlines())
    ]
    assert len(named[0]) == 48
    assert named[0].isdisjoint(named[1])


def test_the_clerk_asks_every_third_customer(players: Any) -> None:
    models = {"user": players.Customer()}
    played = evaluate(
        str(DEMO / "ticket_task"), agent=players.Clerk, models=models, n_rollouts=3, max_tasks=2
    )
    assert played.passed == len(played.outcomes) == 6
    asked, *others = [players.as_trained(line["messages"]) for line in export(played, format="trl", rows="0")]
    assert [message["role"] for message in asked[1:]] == ["user", *["assistant", "tool"] * 2, "assistant"]
    calls = [message["tool_calls"][0]["function"] for message in asked if message.get("tool_calls")]
    asks = {"name": "say_to_user", "arguments": {"text": "Which seat?"}}
    assert calls == [asks, {"name": "book", "arguments": {"seat": "window"}}]
    assert asked[3] == {"role": "tool", "name": "say_to_user", "content": "Window, please."}
    assert [len(other) for other in others] == [5, 5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Done.", {"content": "Done."}),
        ("", {"content": "(nothing)"}),
        (
            '<tool_call>\n{"name": "say_to_user", "arguments": {"text": "Yes?"}}\n</tool_call>',
            {"content": "Yes?"},
        ),
        (
            '<tool_call>\n{"name": "book", "arguments": {"seat": "aisle"}}\n</tool_call>',
            {"tool_calls": [{"function": {"name": "book", "arguments": {"seat": "aisle"}}}]},
        ),
        ('<tool_call>{"name": "book"}</tool_call>', {"content": '<tool_call>{"name": "book"}</tool_call>'}),
        ("<tool_call>[]</tool_call>", {"content": "<tool_call>[]</tool_call>"}),
    ],
)
def test_what_the_model_writes_is_a_message(players: Any, text: str, message: Any) -> None:
    assert players.as_message(text) == message


def test_a_customer_at_fault_spoils_the_rollout(players: Any) -> None:
    models = {"user": players.Customer(faults=1.0), "agent": lambda _: "Which seat?"}
    played = evaluate(str(DEMO / "ticket_task"), models=models, n_rollouts=1, max_tasks=1)
    assert [outcome.failure for outcome in played.outcomes] == ["user_error"]


def test_a_policy_learns_to_ask_if_spoilt_rollouts_are_left_out(players: Any) -> None:
    import masking  # type: ignore[import-not-found]

    with TaskBundle.load(str(DEMO / "ticket_task")) as bundle:
        assert masking.train(bundle, 1, 0.2, masked=True) > 0.8
        assert masking.train(bundle, 1, 0.2, masked=False) < 0.2
