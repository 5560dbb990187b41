"""Bundles in other frameworks, as far as it shows without one; tests_integrations has the real packages."""

import importlib
import sys
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle

from reward_kit.errors import UsageError
from reward_kit.integrations.trl import BundleParts

ROWS = [
    {"id": "talk", "actions": GOLD, "initial_messages": []},
    {"id": "alone", "actions": GOLD, "sim_user_prompt": None},
]


@pytest.mark.parametrize(
    ("module", "framework", "package"),
    [
        ("gymnasium", "gymnasium", "gymnasium"),
        ("verifiers", "verifiers", "'verifiers>=0.4'"),
        ("inspect_ai", "inspect_ai", "inspect_ai"),
        ("openenv", "openenv", "'openenv>=0.10'"),
    ],
)
def test_the_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, framework: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.delitem(sys.modules, f"reward_kit.integrations.{module}", raising=False)
    with pytest.raises(ImportError, match=f"is not installed: pip install {package}$"):
        importlib.import_module(f"reward_kit.integrations.{module}")


def user(messages: list[Any]) -> str:
    return "I want to book a flight. Can you do it?" if len(messages) == 2 else "###STOP###"


def played(parts: BundleParts, row: str, *, solve: bool) -> Any:
    environment = parts.environment()
    environment.reset(row_id=row)
    if solve:
        booked = environment.create_booking(flight_id=1, passenger="Alice")
        environment.pay_booking(booking_id=booked[16:24])
    return environment


def test_only_a_reply_is_said(bundle: Bundle) -> None:
    bundle.rows({**ROWS[1], "end_goal_sql": None, "outputs": ["4711"]})
    (bundle.folder / "reward.py").unlink()
    parts = BundleParts(str(bundle.dataset))
    call = {"id": "c", "type": "function", "function": {"name": "search_flights", "arguments": "{}"}}
    cut_off = {"role": "assistant", "content": "It is 4711.", "tool_calls": [call]}
    ends = [
        cut_off,
        {"role": "tool", "tool_call_id": "c", "content": "4711"},
        {**cut_off, "tool_calls": None},
    ]
    played_all = [played(parts, "alone", solve=True) for _ in ends]
    assert parts.reward([[end] for end in ends], played_all) == [0.0, 0.0, 1.0]
    parts.bundle.close()


def test_trl_reads_the_kinds_and_values_of_arguments(bundle: Bundle) -> None:
    bundle.rows(ROWS[1])
    tools = bundle.folder / "tools.py"
    sides = "side: Literal['window', 'aisle']"
    optional = "kinds: list[str] | None = None, most: int | None = None"
    more = f"\nfrom typing import Literal\n@R.tool\ndef seats(row: int, {sides}, {optional}): ...\n"
    tools.write_text(tools.read_text() + more)
    parts = BundleParts(str(bundle.dataset))
    seats = parts.environment.seats
    assert seats.__annotations__ == {"row": int, "side": str, "kinds": list, "most": int, "return": str}
    assert 'side: side (choices: ["window", "aisle"])' in seats.__doc__
    parts.bundle.close()


def test_trl_takes_no_rows_and_parameters_that_it_cannot_offer(bundle: Bundle) -> None:
    head = 'from reward_kit.agent import ToolRegistry\nR = ToolRegistry("one")\n'
    for name, parameter in (("others", "seat"), ("froms", "from")):
        (bundle.folder / f"{name}.py").write_text(
            f"{head}@R.tool(parameters={{{parameter!r}: str}})\ndef book(**given): ...\n"
        )
    bundle.rows(ROWS[1], {**ROWS[1], "id": "b", "toolset": "flight_task.others", "actions": []})
    with pytest.raises(UsageError, match="the rows have different tools"):
        BundleParts(str(bundle.dataset))
    bundle.rows({**ROWS[1], "toolset": "flight_task.froms", "actions": []})
    with pytest.raises(UsageError, match="has a parameter 'from'"):
        BundleParts(str(bundle.dataset))


def test_a_user_whose_line_was_the_last_does_not_open(bundle: Bundle) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "search_flights", "arguments": "{}"}}
    begun = [
        {"role": "user", "content": "Which flights are there?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "none"},
    ]
    bundle.rows({**ROWS[0], "initial_messages": begun}, ROWS[0] | {"id": "opens"})
    parts = BundleParts(str(bundle.dataset), models={"user": user})
    assert [row["prompt"][-1]["role"] for row in parts.rows] == ["tool", "user"]
    parts.bundle.close()


def test_a_failure_that_the_user_explains_has_no_reward(bundle: Bundle) -> None:
    parts = BundleParts(str(bundle.dataset), models={"user": user})
    assert [row["prompt"][-1]["content"] for row in parts.rows] == ["", ROW_LINE]
    assert parts.environment().reset(row_id="talk") == "I want to book a flight. Can you do it?"
    rewards = []
    for solve in (True, False):
        environment = played(parts, "talk", solve=solve)
        assert environment.say_to_user("Shall I take the first one?") == "The conversation is over."
        alone = played(parts, "alone", solve=solve)
        said = [{"role": "assistant", "content": "Shall I take the first one?"}]
        rewards.append(parts.reward([said, said], [environment, alone]))
        assert alone.create_booking(flight_id=1, passenger="Alice") == "The conversation is over."
    assert rewards == [[1.0, 1.0], [None, 0.0]]
    parts.bundle.close()


ROW_LINE = "Book me a flight from SFO to JFK for tomorrow morning"


@pytest.mark.parametrize("options", [{}, {"user": "react"}])
def test_a_row_without_a_model_for_its_user_is_refused(bundle: Bundle, options: Any) -> None:
    with pytest.raises(UsageError, match=r"task\.jsonl:1: the row has a simulated user \((llm|react)\)"):
        BundleParts(str(bundle.dataset), **options)
    for others in ({"user": "none"}, {"user": lambda _rollout: "###STOP###"}):
        BundleParts(str(bundle.dataset), **others).bundle.close()
