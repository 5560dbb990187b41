"""What a row may say, and what a person reads where it says something else."""

from datetime import UTC, datetime
from typing import Any

import pytest

from reward_kit.agent.rows.task_row import Action, FaultyRowError, TaskRow

MINIMAL = {"id": "a", "toolset": "my_task.tools"}


def row_faults(data: Any) -> list[tuple[str, str]]:
    try:
        TaskRow.from_json(data)
    except FaultyRowError as error:
        return error.faults
    return []


def faults(**fields: Any) -> list[str]:
    return [f"{name}: {fault}" for name, fault in row_faults({**MINIMAL, **fields})]


def read(**fields: Any) -> TaskRow:
    assert faults(**fields) == []
    return TaskRow.from_json({**MINIMAL, **fields})


def test_a_row_needs_only_id_and_toolset_and_has_the_documented_defaults() -> None:
    row = read()
    assert (row.initial_messages, row.outputs, row.metadata, row.actions) == ([], [], {}, None)
    assert (row.n_rollouts, row.max_steps) == (1, 30)
    assert (row.seed_sql, row.end_goal_sql, row.system_prompt, row.sim_user_prompt, row.now) == (None,) * 5


def test_null_is_the_same_as_leaving_a_field_out() -> None:
    row = read(n_rollouts=None, outputs=None, system_prompt=None, own=None)
    assert row.n_rollouts == 1
    assert row.outputs == []
    assert row.reward_fields()["own"] is None


def test_what_programs_for_tables_add_to_rows_is_no_fault() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    nothing = {"name": None, "tool_calls": None, "tool_call_id": None}
    parts = [{"type": "text", "text": "hi", "image_url": None}]
    messages = [
        {"role": "user", "content": parts, **nothing},
        {"role": "assistant", "content": None, **nothing, "tool_calls": [call]},
        {"role": "tool", "content": "ok", **nothing, "tool_call_id": "c1"},
    ]
    action = {"name": "f", "arguments": {"x": None, "y": 1.0}, "refused": None, "note": None}
    row = read(
        n_rollouts=2.0,
        max_steps=30.0,
        metadata=None,
        actions=[action, {"name": "g", "arguments": None}],
        required_calls=[{"name": "g", "arguments": None, "refused": None}],
        initial_messages=messages,
    )
    assert row == read(
        n_rollouts=2,
        max_steps=30,
        actions=[{"name": "f", "arguments": {"x": None, "y": 1.0}}, {"name": "g"}],
        required_calls=[{"name": "g"}],
        initial_messages=[
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "ok", "tool_call_id": "c1"},
        ],
    )
    assert (type(row.n_rollouts), type(row.max_steps)) == (int, int)


def test_unknown_fields_reach_the_reward() -> None:
    own = {"difficulty": "hard", "_note": [1], "model_config": 2, "place": 3}
    row = read(**own)
    assert own.items() <= row.reward_fields().items()
    assert row.place == "row 'a'"


def test_the_reward_gets_plain_json_values_and_no_fields_without_a_value() -> None:
    row = TaskRow(**MINIMAL, actions=[Action("book", {"seat": 1})], outputs=["ok"])
    fields = row.reward_fields()
    assert fields["actions"] == [{"name": "book", "arguments": {"seat": 1}}]
    assert fields["outputs"] == ["ok"]
    assert "end_goal_sql" not in fields
    assert set(fields) == row.given_fields()


@pytest.mark.parametrize("row_id", ["a", "flight.booking.001", "A-b_c", "...", ".hidden", "x" * 128])
def test_ids_that_can_be_folder_names_are_accepted(row_id: str) -> None:
    assert faults(id=row_id) == []


@pytest.mark.parametrize(
    "row_id",
    ["", ".", "..", "../x", "a/b", "a b", "ä", "a\n", "evals", "EVALS", ".bases", ".cache", "x" * 129],
)
def test_ids_that_cannot_be_folder_names_are_refused(row_id: str) -> None:
    (fault,) = faults(id=row_id)
    assert fault.startswith("id: ")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"id": 3}, "id: got 3 (a whole number), expected a folder name of at most 128 letters"),
        ({"id": "-x"}, """id: got "-x" (a string), expected a folder name of at most 128 letters"""),
        ({"toolset": "tools.py"}, 'such as "my_task.tools"'),
        ({"reward": "evaluate"}, 'expected a string "module:function"'),
        ({"n_rollouts": 0}, "n_rollouts: got 0 (a whole number), expected a whole number >= 1"),
        ({"n_rollouts": 2.5}, "n_rollouts: got 2.5 (a number), expected a whole number >= 1"),
        ({"n_rollouts": 0.0}, "n_rollouts: got 0"),
        ({"max_steps": True}, "max_steps: got true (a boolean), expected a whole number >= 1"),
        ({"end_goal_sql": "file:goal.sql"}, '"file:goal.sql" (a string), expected the SQL itself of a query'),
        ({"end_goal_sql": "  "}, 'end_goal_sql: got "  " (a string)'),
        ({"outputs": "x"}, 'outputs: got "x" (a string), expected a list of strings'),
        ({"outputs": ["x", 1]}, "outputs[1]: got 1 (a whole number), expected a string"),
        ({"now": "tomorrow"}, 'now: got "tomorrow" (a string), expected an ISO 8601 time'),
        ({"actions": {}}, 'actions: got {} (an object), expected a list of {"name", "arguments"} objects'),
        ({"actions": [3]}, "actions[0]: got 3 (a whole number), expected an object"),
        ({"actions": [{"arguments": {}}]}, "actions[0].name: is missing, expected the name of a tool"),
        ({"actions": [{"name": ""}]}, 'actions[0].name: got "" (a string), expected the name of a tool'),
        (
            {"actions": [{"name": "f", "kwargs": {}}]},
            'actions[0].kwargs: a call has "name", "arguments", "refused" and "by" only; drop it',
        ),
        (
            {"actions": [{"name": "f", "arguments": "{}"}]},
            'actions[0].arguments: got "{}" (a string), expected an object',
        ),
        ({"messages": []}, 'the start of the conversation is "initial_messages"'),
        ({"db": 1}, "db: is a name that the rollout gives to the reward; choose another"),
        ({"initial_messages": {}}, "initial_messages: got {} (an object), expected a list of messages"),
    ],
)
def test_each_fault_says_what_was_found_and_what_is_right(fields: dict[str, Any], expected: str) -> None:
    (fault,) = faults(**fields)
    assert expected in fault


def test_all_faults_of_a_row_are_found_at_once() -> None:
    found = faults(id="a/b", n_rollouts=0, outputs=[1, 2], actions=[{"name": 1}], rollout=1)
    assert [line.split(":")[0] for line in found] == [
        "rollout", "id", "n_rollouts", "actions[0].name", "outputs[0]", "outputs[1]",
    ]  # fmt: skip


@pytest.mark.parametrize("data", [[1], "text", 3, None])
def test_a_row_is_an_object(data: Any) -> None:
    assert "expected a JSON object" in row_faults(data)[0][1]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2025-05-19", datetime(2025, 5, 19, tzinfo=UTC)),
        ("2025-05-19T09:00", datetime(2025, 5, 19, 9, tzinfo=UTC)),
        ("2025-05-19 09:00:30Z", datetime(2025, 5, 19, 9, 0, 30, tzinfo=UTC)),
        ("2025-05-19T09:00:00.25+02:00", datetime(2025, 5, 19, 7, 0, 0, 250000, tzinfo=UTC)),
    ],
)
def test_the_frozen_clock_is_read_as_utc(text: str, moment: datetime) -> None:
    row = read(now=text)
    assert row.clock() == moment
    assert row.now == text


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING = {"role": "assistant", "tool_calls": [CALL]}
OBJECT: Any = {"name": "f", "arguments": {}}
PARTS = [{"type": "text", "text": "Hello"}, {"type": "image_url", "image_url": {"url": "…"}}]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Hello"}],
        [{"role": "user", "content": PARTS}],
        [{"role": "system", "content": ""}, {"role": "assistant", "content": "Hi", "name": "bot"}],
        [CALLING, {"role": "tool", "tool_call_id": "c1", "content": "[]"}],
    ],
)
def test_conversations_that_providers_accept_are_accepted(messages: list[dict[str, Any]]) -> None:
    assert read(initial_messages=messages).initial_messages == messages


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"content": "x"}], 'initial_messages[0]: expected a message such as {"role": "user", "content"'),
        ([{"role": "user"}], "initial_messages[0].content: there is none"),
        ([{"role": "user", "content": 3}], "initial_messages[0].content: expected text or a list of parts"),
        ([{"role": "tool", "content": "x"}], "initial_messages[0].tool_call_id: a tool message names the"),
        ([{"role": "tool", "content": "x", "tool_call_id": "c1"}], "no tool call 'c1' is waiting for an"),
        ([{"role": "system", "content": "x", "tool_calls": [CALL]}], "only agent (assistant) and user can"),
        ([{"role": "assistant", "tool_calls": [CALL]}], "initial_messages[0]: the tool call 'c1' has no"),
        ([CALLING, {"role": "user", "content": "x"}], "initial_messages[1]: the tool call 'c1' before it"),
        ([{"role": "assistant", "tool_calls": [{"id": "c1"}]}], "expected a list of tool calls of the form"),
        ([{**CALLING, "tool_calls": [{**CALL, "function": OBJECT}]}], '"arguments": "text of a JSON object"'),
    ],
)
def test_conversations_that_providers_refuse_are_refused(messages: list[Any], expected: str) -> None:
    (fault,) = faults(initial_messages=messages)
    assert expected in fault
