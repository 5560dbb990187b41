"""Rows that begin with tool calls of both sides, which are replayed on their data."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import run_command
from door_bundle import ROW, TOOLS, USER_TOOLS, asks, door_bundle
from http_stub_agent import Door, opened, serving
from small_task import InProcessModel

from reward_kit.agent import TaskBundle, agent_eval, load_rollout, validate
from reward_kit.agent.after.explainer import context_of
from reward_kit.agent.players.agents.tool_calling import ToolCallingAgent
from reward_kit.agent.players.users.llm import LLMUser
from reward_kit.agent.rollout.orchestrator import run_rollout_async
from reward_kit.errors import BundleError

OPEN = "a creak: it is open"
OF_USER = ("push_hard", "look_around", "creak")
"""Words of the calls of the user in the opening, and of the tools."""


def calls(role: str, name: str, call_id: str = "call_a", **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    made = [{"id": call_id, "type": "function", "function": function}]
    return {"role": role, "content": None, "tool_calls": made}


def answer(content: str, call_id: str = "call_a") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


LINES = [
    {"role": "user", "content": "I cannot get in."},
    {"role": "assistant", "content": "Now it is unlocked. Push it."},
]
OPENING = [
    LINES[0],
    calls("assistant", "unlock", door="front"),
    answer("unlocked"),
    LINES[1],
    calls("user", "push_hard", "call_b", door="front"),
    answer(OPEN, "call_b"),
    {"role": "user", "content": "I am in. And the vault?"},
]
OPENED = {
    **ROW,
    "system_prompt": "You guard doors.",
    "initial_messages": OPENING,
    "actions": [{"name": "unlock", "arguments": {"door": "secret_vault"}}],
}
SEEN = [{"role": "system", "content": "You guard doors."}, *OPENING[:4], OPENING[6]]


class TestRollout:
    async def test_the_calls_are_part_of_the_data_that_it_begins_with(self, tmp_path):
        with (
            TaskBundle.load(door_bundle(tmp_path, rows=[OPENED])) as bundle,
            bundle.episode("front") as episode,
        ):
            front = "SELECT locked, open FROM doors WHERE id = 'front'"
            assert tuple(episode.database.read_only().execute(front).first()) == (0, 1)
            assert not episode.changes()
            assert not episode.tool_calls
            await episode.call("unlock", {"door": "secret_vault"})
            assert [change.key for change in episode.changes()] == [{"id": "secret_vault"}]
            assert (await episode.finish()).score == 1.0

    async def test_each_side_sees_its_own_calls(self, tmp_path):
        agent = InProcessModel(["Which one?"])
        user = InProcessModel([asks("look_around"), "The left one. ###STOP###"])
        with (
            TaskBundle.load(door_bundle(tmp_path, rows=[OPENED])) as bundle,
            bundle.episode("front") as empty,
        ):
            episode = await run_rollout_async(
                bundle.tasks[0],
                0,
                base=empty.base,
                agent=ToolCallingAgent(),
                user=LLMUser(),
                models={"agent": agent, "user": user},
            )
        episode.close()
        assert agent.seen[0] == SEEN
        assert "push_hard" not in json.dumps([agent.seen, episode.messages])
        heard = [
            (one["role"], one.get("content") or one["tool_calls"][0]["function"]["name"])
            for one in user.seen[-1]
        ]
        assert heard[1:] == [
            ("user", "Hello! What can I do for you today?"),
            ("assistant", "I cannot get in."),
            ("user", "Now it is unlocked. Push it."),
            ("assistant", "push_hard"),
            ("tool", OPEN),
            ("assistant", "I am in. And the vault?"),
            ("user", "Which one?"),
            ("assistant", "look_around"),
            ("tool", '[{"id": "front", "open": 1}, {"id": "secret_vault", "open": 0}]'),
        ]
        trace = episode.trace
        assert trace.opening == len(SEEN)
        assert {place: [one["role"] for one in own] for place, own in trace.user_messages.items()} == {
            5: ["assistant", "tool"],
            7: ["assistant", "tool"],
        }

    async def test_a_fork_goes_on_from_it(self, tmp_path):
        with (
            TaskBundle.load(door_bundle(tmp_path, rows=[OPENED])) as bundle,
            bundle.episode("front") as episode,
            episode.fork() as twin,
        ):
            await twin.call("look_around", {}, by="user")
            assert list(twin.trace.user_messages) == [5, 6]
            assert list(episode.trace.user_messages) == [5]
            episode.reset()
            assert episode.messages == SEEN

    def test_the_agent_has_the_calls_of_both_sides_in_solo_mode(self, tmp_path):
        row = {**OPENED, "ticket": "Open the vault.", "system_prompt": None}
        folder = door_bundle(tmp_path, rows=[row])
        with TaskBundle.load(folder) as bundle, bundle.episode("front", mode="solo") as episode:
            said = [message["role"] for message in episode.messages]
            assert said == ["system", "assistant", "tool", "assistant", "tool"]
            assert not episode.trace.user_messages
            front = "SELECT open FROM doors WHERE id = 'front'"
            assert episode.database.read_only().execute(front).scalar() == 1

    @pytest.mark.parametrize("is_async", [False, True])
    async def test_functions_after_calls_run(self, tmp_path, is_async):
        note = "\n\n@R.after_call\ndef note(db):\n    db.execute(\"INSERT INTO notes VALUES ('called')\")\n"
        tools = TOOLS if is_async else TOOLS.replace("async def", "def").replace("await ", "")
        folder = door_bundle(tmp_path, rows=[OPENED], tools=tools, user_tools=USER_TOOLS + note)
        with TaskBundle.load(folder) as bundle, bundle.episode("front") as episode:
            assert episode.database.read_only().execute("SELECT count(*) FROM notes").scalar() == 2


class TestAnEvaluation:
    @pytest.mark.parametrize("workers", [None, 1])
    def test_stores_what_each_side_saw(self, tmp_path, monkeypatch, workers):
        monkeypatch.chdir(tmp_path)
        folder = door_bundle(tmp_path, rows=[OPENED])
        agent_eval(folder, agent="gold", no_sim_user=True, eval_id="opened", workers=workers)
        trace = load_rollout("opened front#1")
        assert (trace.reward, trace.messages[:6]) == (1.0, SEEN)
        for layout in ("openai", "trl", "full"):
            exported = run_command("export", "opened", "--format", layout).out
            assert "unlock" in exported
            assert not [word for word in OF_USER if word in exported]
        shown = run_command("show", "opened front#1").out
        assert shown.index("USER'S CALL push_hard") < shown.index("I am in. And the vault?")
        assert "USER'S TOOL push_hard (given by the row)" in shown
        known = context_of(trace)
        assert 'user calls: push_hard({"door": "front"})' in known
        assert f"result of the tool: {OPEN}" in known
        assert known.index("push_hard") < known.index("user (given): I am in. And the vault?")

    def test_an_answer_that_the_tool_does_not_give_is_an_error_of_validate(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        wrong = [*OPENING[:5], answer("it is shut", "call_b"), OPENING[6]]
        folder = door_bundle(tmp_path, rows=[{**OPENED, "initial_messages": wrong}])
        done = run_command("validate", folder)
        assert done.code == 1
        call = 'task.jsonl:1 initial_messages[5]: push_hard({"door": "front"})'
        assert f"{call} answers 'a creak: it is open', not 'it is shut'" in " ".join(done.out.split())
        assert agent_eval(folder, agent="gold", no_sim_user=True).score == 1.0

    def test_reads_answers_as_values(self, tmp_path):
        looked = [
            *OPENING[:5],
            OPENING[5],
            calls("user", "look_around"),
            answer('[{"open":1,"id":"front"}, {"open":0, "id": "secret_vault"}]'),
        ]
        folder = door_bundle(tmp_path, rows=[{**OPENED, "initial_messages": [*looked, OPENING[6]]}])
        with TaskBundle.load(folder) as bundle:
            assert validate(bundle).ok


class TestSecrecy:
    async def test_of_an_agent_over_http(self, tmp_path):
        seen: list[Any] = []

        async def script(turn: dict[str, Any], door: Door) -> dict[str, Any]:
            seen.extend([turn, await door.look()])
            return {"reply": "Which one?"}

        with (
            TaskBundle.load(door_bundle(tmp_path, rows=[OPENED])) as bundle,
            bundle.episode("front") as empty,
        ):
            async with serving(script) as stub:
                async with opened(stub.url) as agents:
                    episode = await run_rollout_async(bundle.tasks[0], 0, base=empty.base, agent=agents())
                seen += stub.closed
        episode.close()
        assert "unlocked" in json.dumps(seen)
        assert not [word for word in OF_USER if word in json.dumps(seen)]

    async def test_of_the_mcp_server_whose_calls_are_followed_by_the_functions_of_both_sides(self, tmp_path):
        from mcp.client import Client

        from reward_kit.agent.tools.registry import mcp_server_of

        stuck = "\n\n@R.after_call\ndef stuck(db):\n    if db.fetch_val('SELECT sum(open) FROM doors'):\n"
        stuck += "        raise ToolError('a draught: it is open')\n"
        tools = (
            TOOLS + "\n\n@R.tool\ndef push(db):\n    'Push.'\n    db.execute('UPDATE doors SET open = 1')\n"
        )
        folder = door_bundle(tmp_path, rows=[ROW], tools=tools, user_tools=USER_TOOLS + stuck)
        with TaskBundle.load(folder) as bundle:
            task = bundle.tasks[0]
            async with Client(mcp_server_of(task.registry, task).server) as client:
                unlocked = await client.call_tool("unlock", {"door": "front"})
                pushed = await client.call_tool("push", {})
        assert [unlocked.content[0].text, pushed.content[0].text] == [
            "unlocked",
            "Error: the call could not be completed",
        ]


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        (
            [calls("system", "unlock")],
            "only agent (assistant) and user can call tools, this is from 'system'",
        ),
        (
            [calls("user", "push_hard"), LINES[0]],
            "initial_messages[1]': the tool call 'call_a' before it has no",
        ),
        ([{"role": "user", "content": None}], "only a message with tool calls can do without"),
    ],
)
def test_a_faulty_opening_is_a_fault_of_the_row(tmp_path, messages, fault):
    with pytest.raises(BundleError) as raised:
        TaskBundle.load(door_bundle(tmp_path, rows=[{**OPENED, "initial_messages": messages}]))
    assert fault in str(raised.value)


def test_rows_share_a_base_only_if_they_begin_alike(tmp_path: Path) -> None:
    fewer = {**OPENED, "id": "fewer", "initial_messages": OPENING[:4]}
    rows = [{**ROW, "id": "none"}, OPENED, {**OPENED, "id": "again"}, fewer]
    with TaskBundle.load(door_bundle(tmp_path, rows=rows)) as bundle:
        plain, opened, again, less = (task.seed.key for task in bundle.tasks)
    assert opened == again
    assert len({plain, opened, less}) == 3
