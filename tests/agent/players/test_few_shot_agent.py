"""Tool calling with example conversations."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import Bundle
from small_task import InProcessModel, play, small_task, wants
from stub_server import StubServer

from reward_kit.agent import agent_eval
from reward_kit.agent.players.agents.tool_calling import FewShotAgent, read_displays
from reward_kit.errors import BundleError, UsageError

EIGHT = [f"User: question {number}\nAgent: answer {number}" for number in range(8)]


def written(folder: Path, *lines: Any) -> str:
    """A file of displays; what is not text is written as JSON."""
    path = folder / "displays.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


async def shown(folder: Path, displays: list[str], *, seed: int = 1, **fields: Any) -> str:
    """The system prompt that the model sees."""
    model = InProcessModel(["Hello"])
    task = small_task(folder, **{"system_prompt": "Sell flights.", **fields})
    await play(task, FewShotAgent(displays), models={"agent": model}, seed=seed)
    return str(model.seen[0][0]["content"])


async def test_five_examples_stand_behind_the_system_prompt(tmp_path: Path) -> None:
    policy, *examples = (await shown(tmp_path, EIGHT)).split("\n\n")
    assert policy == "Sell flights."
    assert [example.partition("\n")[0] for example in examples] == [f"Example {n}:" for n in range(1, 6)]
    drawn = [example.partition("\n")[2] for example in examples]
    assert len(set(drawn)) == 5
    assert set(drawn) < set(EIGHT)


async def test_the_model_calls_tools_and_the_history_keeps_the_rows_own_prompt(tmp_path: Path) -> None:
    model = InProcessModel([wants(("ping", {})), "Done"])
    task = small_task(tmp_path, system_prompt="Sell flights.")
    rollout = await play(task, FewShotAgent(EIGHT), models={"agent": model})
    assert rollout.messages[0] == {"role": "system", "content": "Sell flights."}
    assert [message["role"] for message in model.seen[1]] == ["system", "user", "assistant", "tool"]
    assert "Example 5:" in model.seen[1][0]["content"]
    assert model.tools[0] == rollout.tools
    assert rollout.lines[-1].text == "Done"


def test_both_forms_of_a_display_are_read(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "policy"},
        {"role": "user", "content": "Cancel it"},
        wants(("cancel", {"id": 1})),
        {"role": "tool", "tool_call_id": "c0", "content": "ok"},
        {"role": "assistant", "content": "It is cancelled."},
    ]
    path = written(tmp_path, {"messages_display": " as is\ud83d\n", "other": 1}, "", {"messages": messages})
    assert read_displays(path) == [
        "as is?",
        'User: Cancel it\nAgent calls cancel with {"id": 1}\nTool result: ok\nAgent: It is cancelled.',
    ]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "not valid JSON"),
        ("[1]", "[1] (a list) is no example conversation"),
        ({"message": "x"}, "is no example conversation"),
        ({"messages_display": 5}, "is no example conversation"),
        ({"messages": []}, "nobody says anything"),
        ({"messages": [{"role": "system", "content": "policy"}]}, "nobody says anything"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0]: expected a message"),
        ({"messages": [wants(("cancel", "{"))]}, "text of a JSON object"),
    ],
)
def test_a_bad_line_is_named_with_file_and_line(tmp_path: Path, line: Any, fault: str) -> None:
    path = written(tmp_path, {"messages_display": "fine"}, "", line)
    with pytest.raises(BundleError, match=re.escape(fault)) as raised:
        read_displays(path)
    assert str(raised.value).startswith(f"{path}:3: ")
    assert len(str(raised.value)) < 600


def test_without_the_option_the_run_does_not_begin(bundle: Bundle, stub_llm: StubServer) -> None:
    options: Any = {"agent": "few-shot", "model": "openai/gpt-4o-mini", "no_sim_user": True}
    with pytest.raises(UsageError, match="--few-shot-displays"):
        agent_eval(bundle.dataset, **options)
    with pytest.raises(BundleError, match=r"displays\.jsonl:1: "):
        agent_eval(bundle.dataset, few_shot_displays=written(bundle.folder, "{"), **options)
    assert stub_llm.requests == []
