"""Users with tools: their calls are recorded and change the data, and the agent sees nothing of them."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import run_command
from door_bundle import HIDDEN, PUSH, ROW, TOOLS, UNLOCK, USER_TOOLS, asks, door_bundle
from http_stub_agent import Door, opened, serving
from small_task import InProcessModel

from reward_kit.agent import TaskBundle, evaluate, load_rollout, load_user, validate
from reward_kit.agent.bundles.rules import Rule, violations_of
from reward_kit.agent.players.agents.replay import GoldAgent
from reward_kit.agent.players.agents.tool_calling import ToolCallingAgent
from reward_kit.agent.players.users.llm import MOST_CALLS, LLMUser
from reward_kit.agent.rollout.episode import Episode
from reward_kit.agent.rollout.orchestrator import run_rollout_async
from reward_kit.agent.scoring.failures.classify import classify_failure
from reward_kit.agent.scoring.failures.first_fault import ExpectedCall
from reward_kit.agent.servers.sessions import Sessions
from reward_kit.agent.store.transcript import transcript
from reward_kit.errors import BundleError

CHANGED = {
    "table": "doors",
    "op": "update",
    "key": {"id": "front"},
    "before": {"open": 0},
    "after": {"open": 1},
}


class Pusher:
    """A user that tries the door, and says how that went."""

    async def respond(self, rollout: Any) -> str:
        self.tools = [tool["function"]["name"] for tool in rollout.tools]
        result = await rollout.call_tool("push_hard", {"door": "front"})
        return "It is still shut." if result.startswith("Error") else "I am in. ###STOP###"


class Snoop:
    """An agent that notes all that it can read, and unlocks the door in its second turn."""

    def __init__(self) -> None:
        self.read: list[str] = []

    async def respond(self, rollout: Any) -> str:
        if rollout.turns == 2:
            self.read.append(await rollout.call_tool("push_hard", {"door": "front"}))
            await rollout.call_tool("unlock", {"door": "front"})
        names = [name for name in dir(rollout) if not name.startswith("_")]
        shown = {name: getattr(rollout, name) for name in names if not callable(getattr(rollout, name))}
        self.read.append(json.dumps(shown, default=repr))
        return "Please push."


@pytest.fixture
def bundle(tmp_path: Path):
    with TaskBundle.load(door_bundle(tmp_path)) as opened:
        yield opened


def base_of(bundle: TaskBundle) -> Any:
    from reward_kit.agent.bundles.task import base_of

    return base_of(bundle, bundle.tasks[0])


async def played(bundle: TaskBundle, **options: Any) -> Any:
    with await run_rollout_async(bundle.tasks[0], 0, base=base_of(bundle), **options) as episode:
        return episode.trace


class TestCalls:
    async def test_both_sides_change_one_database_and_the_reward_compares_it(self, bundle):
        trace = await played(bundle, agent=Snoop(), user=Pusher())
        made = [(call.name, call.by, call.status, call.step) for call in trace.tool_calls]
        assert made == [
            ("push_hard", "user", "refused", 1),
            ("push_hard", "agent", "unknown_tool", 2),
            ("unlock", "agent", "ok", 3),
            ("push_hard", "user", "ok", 4),
        ]
        assert (trace.reward, trace.stop_reason, trace.steps) == (1.0, "user_stop", 4)
        assert trace.tool_calls[-1].changes == [CHANGED]

    async def test_a_call_by_hand(self, bundle):
        with bundle.episode("front") as episode:
            await episode.call("unlock", {"door": "front"})
            result = await episode.call("push_hard", {"door": "front"}, by="user")
            assert result.content == "a creak: it is open"
            with pytest.raises(ValueError, match="by is agent or user, not 'judge'"):
                await episode.call("unlock", {}, by="judge")
            assert (await episode.finish()).score == 1.0

    async def test_a_terminal_tool_of_the_user_ends_the_rollout_as_a_stop_of_the_user(self, bundle):
        class Leaver:
            async def respond(self, rollout: Any) -> str:
                await rollout.call_tool("walk_away", {})
                raise AssertionError("the rollout is over")

        trace = await played(bundle, agent=Snoop(), user=Leaver())
        assert (trace.stop_reason, trace.stop_detail) == ("user_stop", None)

    async def test_a_stored_trace_comes_back_the_same(self, bundle):
        from reward_kit.agent.rollout.trace import read_trace

        trace = await played(bundle, agent=Snoop(), user=Pusher())
        again = read_trace(trace.encoded(), Path("roll.json"))
        assert again.tool_calls == trace.tool_calls
        assert again.user_messages == trace.user_messages
        assert list(again.user_messages) == [2, 8]

    async def test_show_marks_the_calls_of_the_user(self, bundle):
        text = transcript(await played(bundle, agent=Snoop(), user=Pusher()))
        assert 'USER\'S CALL push_hard {"door": "front"}' in text
        assert "USER'S TOOL push_hard (refused" in text
        assert "2 tool calls, 2 tool calls of the user" in text
        assert text.index("a creak") < text.index("I am in.")

    async def test_rules_can_order_the_calls_of_the_user_in_one_turn(self, bundle):
        class Hasty:
            async def respond(self, rollout: Any) -> str:
                for name in ("push_hard", "look_around", "push_hard"):
                    await rollout.call_tool(name, {"door": "front"} if name == "push_hard" else {})
                return "It is shut. ###STOP###"

        trace = await played(bundle, agent=Snoop(), user=Hasty())
        rules = [Rule("all", "", "SELECT position, number, name FROM calls ORDER BY number", "rules.sql:1")]
        found = violations_of(rules, {}, trace.messages, trace.tool_calls, trace.user_messages)
        [position] = {row["position"] for row in found["all"]}
        assert found["all"] == [
            {"position": position, "number": number, "name": name}
            for number, name in enumerate(("push_hard", "look_around", "push_hard"))
        ]

    async def test_rules_tell_the_sides_apart(self, bundle):
        trace = await played(bundle, agent=Snoop(), user=Pusher())
        sql = "SELECT position, by, name FROM calls WHERE status = 'ok' ORDER BY position"
        rules = [Rule("all", "", sql, "rules.sql:1")]
        found = violations_of(rules, {}, trace.messages, trace.tool_calls, trace.user_messages)
        assert found == {
            "all": [
                {"position": 6, "by": "agent", "name": "unlock"},
                {"position": 8, "by": "user", "name": "push_hard"},
            ]
        }


class TestRows:
    @pytest.mark.parametrize(
        ("field", "names"),
        [(None, ["push_hard", "look_around", "walk_away"]), (["push_hard"], ["push_hard"]), ([], [])],
    )
    async def test_user_tools_names_what_is_allowed(self, tmp_path, field, names):
        folder = door_bundle(tmp_path, rows=[{**ROW, "user_tools": field}])
        with TaskBundle.load(folder) as bundle, bundle.episode("front") as episode:
            assert [tool["function"]["name"] for tool in episode.user_rollout.tools] == names
            result = await episode.call("look_around", {}, by="user")
            assert result.status == ("ok" if field is None else "unknown_tool")

    def test_an_unknown_tool_is_a_fault_of_the_row(self, tmp_path):
        folder = door_bundle(tmp_path, rows=[{**ROW, "user_tools": ["push_hart"]}])
        with pytest.raises(
            BundleError, match=r"'user_tools': the user has no tool 'push_hart' \(did you mean"
        ):
            TaskBundle.load(folder)

    def test_user_tools_that_need_a_file_beside_tools_that_do_not_are_a_fault_of_the_row(self, tmp_path):
        hands = USER_TOOLS.replace('("hands")', '("hands", database="file")')
        with pytest.raises(BundleError, match=r"'user_toolset': needs database='file', which 'doors' does"):
            TaskBundle.load(door_bundle(tmp_path, user_tools=hands))

    def test_a_module_of_another_name(self, tmp_path):
        folder = door_bundle(tmp_path, rows=[{**ROW, "user_toolset": ".hands"}])
        (folder / "user_tools.py").rename(folder / "hands.py")
        with TaskBundle.load(folder) as bundle:
            assert list(bundle.tasks[0].user_registry.tools) == ["push_hard", "look_around", "walk_away"]

    def test_a_gold_call_of_the_wrong_side_is_a_warning(self, tmp_path):
        folder = door_bundle(tmp_path, rows=[{**ROW, "actions": [UNLOCK, {**UNLOCK, "by": "user"}]}])
        with TaskBundle.load(folder) as bundle:
            assert "there is no tool of the user 'unlock'" in bundle.warnings[0]

    @pytest.mark.parametrize(
        ("row", "left_out"),
        [({"user_tools": []}, " (the row's user_tools: none)"), ({"user_toolset": ".tools"}, "")],
    )
    def test_a_gold_call_that_the_user_cannot_make_is_named(self, tmp_path, row, left_out):
        with TaskBundle.load(door_bundle(tmp_path, rows=[{**ROW, **row}])) as bundle:
            report = validate(bundle)
        texts = [finding.text for finding in report.errors if finding.kind == "gold-call"]
        assert texts == [f"actions[1]: the user has no tool 'push_hard'{left_out}"]

    def test_a_hidden_table_that_is_not_there_is_no_fault_of_the_reward(self, tmp_path):
        hands = USER_TOOLS.replace('("hands")', '("hands", hidden=["nots"])')
        with TaskBundle.load(door_bundle(tmp_path, user_tools=hands)) as bundle:
            report = validate(bundle)
        fault = "ToolRegistry(hidden=…) ignores 'nots', which is no table or column (did you mean 'notes'?)"
        assert report.errors[0].text.startswith(fault)

    async def test_the_gold_agent_plays_both_sides(self, bundle):
        trace = await played(bundle, agent=GoldAgent())
        assert [(call.name, call.by) for call in trace.tool_calls] == [
            ("unlock", "agent"),
            ("push_hard", "user"),
        ]
        assert trace.reward == 1.0


class TestTheModelOfTheUser:
    async def test_it_calls_its_tools_and_remembers_the_results(self, bundle):
        agent = InProcessModel(["Is it locked?", asks("unlock", door="front"), "Try again."])
        push = asks("push_hard", door="front")
        user = InProcessModel([push, "It does not open.", push, "Thanks! ###STOP###"])
        models = {"agent": agent, "user": user}
        trace = await played(bundle, agent=ToolCallingAgent(), user=LLMUser(), models=models)
        assert (trace.reward, trace.steps, trace.usage["user"].calls) == (1.0, 3, 4)
        assert [tool["function"]["name"] for tool in user.tools[0]] == [
            "push_hard",
            "look_around",
            "walk_away",
        ]
        last = [(message["role"], message.get("content")) for message in user.seen[-1][1:]]
        assert last == [
            ("user", "Hello! What can I do for you today?"),
            ("assistant", "I cannot get in."),
            ("user", "Is it locked?"),
            ("assistant", None),
            ("tool", "Error: it does not move, though you feel a draught"),
            ("assistant", "It does not open."),
            ("user", "Try again."),
            ("assistant", None),
            ("tool", "a creak: it is open"),
        ]
        asked = json.dumps([agent.seen, agent.tools])
        assert not [word for word in HIDDEN if word in asked]

    async def test_empty_answers_with_a_call_between_them_are_not_in_a_row(self, bundle):
        answers = ["", asks("look_around"), "", "", asks("look_around"), "", "", "I give up. ###STOP###"]
        models = {"agent": InProcessModel(["Well?"]), "user": InProcessModel(answers)}
        trace = await played(bundle, agent=ToolCallingAgent(), user=LLMUser(), models=models)
        assert (trace.stop_reason, trace.usage["user"].calls) == ("user_stop", len(answers))

    async def test_one_that_only_calls_tools_fails(self, bundle):
        models = {"agent": InProcessModel(["Well?"]), "user": InProcessModel([asks("look_around")])}
        trace = await played(bundle, agent=ToolCallingAgent(), user=LLMUser(), models=models)
        assert trace.stop_reason == "user_error"
        assert f"{MOST_CALLS} answers in a row were tool calls" in trace.stop_detail


class TestSecrecy:
    async def test_of_an_agent_in_the_process(self, bundle):
        agent = Snoop()
        trace = await played(bundle, agent=agent, user=Pusher())
        read = "\n".join([*agent.read, json.dumps(trace.messages)])
        assert "unlocked" in read
        assert "unknown tool 'push_hard'; available: unlock" in read
        # the name is in it because the agent has called it
        assert not [word for word in HIDDEN if word in read.replace("push_hard", "")]

    async def test_over_http(self, bundle):
        seen: list[Any] = []

        async def script(turn: dict[str, Any], door: Door) -> dict[str, Any]:
            seen.append(turn)
            seen.append(await door.call("look_around"))
            await door.call("unlock", {"door": "front"})
            seen.append(await door.look())
            return {"reply": "Please push."}

        async with serving(script) as stub, opened(stub.url) as agents:
            trace = await played(bundle, agent=agents(), user=Pusher())
            seen += stub.closed
        assert trace.reward == 1.0
        assert seen[1]["result"] == "Error: unknown tool 'look_around'; available: unlock"
        assert not [w for w in HIDDEN if w in json.dumps(seen).replace("look_around", "")]

    async def test_of_the_tool_servers_and_the_listing(self, bundle):
        from mcp.client import Client

        task = bundle.tasks[0]
        from reward_kit.agent.tools.registry import mcp_server_of

        async with Client(mcp_server_of(task.registry, task).server) as client:
            shown = [tool.name for tool in (await client.list_tools()).tools]
            refused = await client.call_tool("push_hard", {"door": "front"})
        assert shown == ["unlock"]
        assert refused.is_error
        schema = json.dumps(task.registry.create_fastapi_app().fastapi.openapi())
        assert not [word for word in HIDDEN if word in schema]

    def test_of_the_command_tools(self, bundle):
        printed = run_command("tools", str(bundle.folder)).out
        assert "unlock" in printed
        assert not [word for word in HIDDEN if word in printed]


class TestFailures:
    def failure(self, calls: list[Any], *after: ExpectedCall) -> Any:
        wanted = [
            ExpectedCall(
                "unlock", {"door": "front"}, True, [{**CHANGED, "before": {}, "after": {"locked": 0}}]
            ),
            ExpectedCall("push_hard", {"door": "front"}, True, [CHANGED], by="user"),
            *after,
        ]
        row = {"table": "doors", "key": {"id": "front"}, "column": "open", "expected": 1, "got": 0}
        return classify_failure(stop_reason="user_stop", tool_calls=calls, expected=wanted, differences=[row])

    async def test_a_user_that_did_not_push(self, bundle):
        with bundle.episode("front") as episode:
            await episode.call("unlock", {"door": "front"})
            failure = self.failure(episode.tool_calls)
        assert failure.kind == "user_did_not_act"
        assert failure.detail == 'the user did not call push_hard({"door": "front"})'
        assert failure.expected == {"name": "push_hard", "arguments": {"door": "front"}, "by": "user"}

    async def test_a_right_call_that_is_refused_for_want_of_the_user_is_not_the_agents_fault(self, bundle):
        after = ExpectedCall("unlock", {"door": "back"}, True, [CHANGED])
        with bundle.episode("front") as episode:
            await episode.call("unlock", {"door": "front"})
            await episode.call("unlock", {"door": "back"})
            unlocked, last = episode.tool_calls
            calls = [unlocked, replace(last, status="refused", changes=[])]
            assert self.failure(calls, after).kind == "user_did_not_act"
            calls[1] = replace(calls[1], arguments={"door": "side"})
            assert self.failure(calls, after).kind == "wrong_arguments"

    async def test_what_the_user_did_beyond_the_actions_is_named_if_nothing_else_explains_the_data(
        self, bundle
    ):
        with bundle.episode("front") as episode:
            await episode.call("unlock", {"door": "front"})
            for _ in range(2):
                await episode.call("push_hard", {"door": "front"}, by="user")
            unlocked, pushed, again = episode.tool_calls
        again = replace(again, changes=pushed.changes)
        failure = self.failure([unlocked, pushed, again])
        assert (failure.kind, failure.call) == ("other", 2)
        assert 'the user called push_hard({"door": "front"}), which is not expected; ' in failure.detail
        assert failure.made["by"] == "user"
        assert self.failure([pushed, again]).kind == "partially_completed"

    def test_the_reason_stands_in_place_of_data_that_do_not_count(self, tmp_path):
        class Opener:
            async def respond(self, rollout: Any) -> str:
                await rollout.call_tool("unlock", {"door": "front"})
                return "Please push."

        row = {**ROW, "actions": [UNLOCK], "checks": ["SELECT 0"], "score_by": ["checks"]}
        folder = door_bundle(tmp_path, rows=[row])
        result = evaluate(folder, agent=Opener, user=Pusher, output_dir=tmp_path / "runs")
        (trace,) = result.records()
        detail = 'the user called push_hard({"door": "front"}), which is not expected'
        assert trace.failure["detail"] == f"{detail}; does not hold: SELECT 0"
        unexplained = classify_failure(
            stop_reason="user_stop",
            differences=[{"table": "doors", "key": None}],
            reason="does not hold: SELECT 0",
        )
        assert (unexplained.kind, unexplained.detail) == ("other", "does not hold: SELECT 0")

    def test_an_agent_that_did_not_unlock_comes_first(self):
        assert self.failure([]).kind == "partially_completed"

    async def test_the_same_tool_name_of_the_other_side_does_not_count(self, bundle):
        with bundle.episode("front") as episode:
            await episode.call("unlock", {"door": "front"})
            await episode.call("push_hard", {"door": "front"})
            assert self.failure(episode.tool_calls).kind == "user_did_not_act"


def test_gold_names_the_side_where_a_trace_is_saved(tmp_path):
    from reward_kit.agent.after.as_row import actions_of

    with TaskBundle.load(door_bundle(tmp_path)) as bundle, bundle.episode("front") as episode:
        episode.call_sync("unlock", {"door": "front"})
        episode.call_sync("push_hard", {"door": "front"}, by="user")
        episode.tool_calls  # noqa: B018 - decodes the changed rows
        assert actions_of(episode.trace) == [UNLOCK, PUSH]
        assert isinstance(episode, Episode)


async def test_a_person_who_plays_the_user_has_the_tools_of_the_user(bundle, monkeypatch, capsys):
    lines = ["/tools", "/call", '/call push_hard {"door": "front"}', "Thanks. ###STOP###"]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    models = {"agent": InProcessModel([asks("unlock", door="front"), "Please push."])}
    trace = await played(bundle, agent=ToolCallingAgent(), user=load_user("human")(), models=models)
    assert trace.reward == 1.0
    shown = capsys.readouterr().out
    assert 'push_hard(door: "string")  Push a door.' in shown
    assert "unlock" not in shown
    assert "a creak: it is open" in shown


async def test_a_replay_makes_the_calls_of_both_sides(bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "door_players.py").write_text(
        "class Agent:\n"
        "    async def respond(self, rollout):\n"
        "        if rollout.turns == 2:\n"
        "            await rollout.call_tool('unlock', {'door': 'front'})\n"
        "        return 'Please push.'\n\n\n"
        "class User:\n"
        "    async def respond(self, rollout):\n"
        "        result = await rollout.call_tool('push_hard', {'door': 'front'})\n"
        "        return 'Still shut.' if result.startswith('Error') else 'I am in. ###STOP###'\n"
    )
    own = ["--agent", "door_players:Agent", "--user", "door_players:User", "--eval-id", "once"]
    assert run_command("agent-eval", str(bundle.folder), *own).code == 0
    again = [
        "--agent",
        "replay:runs/evals/once.db",
        "--user",
        "replay:runs/evals/once.db",
        "--eval-id",
        "again",
    ]
    finished = run_command("agent-eval", str(bundle.folder), *again)
    assert finished.code == 0, finished.err
    once, repeated = (load_rollout(f"{name} front#1") for name in ("once", "again"))
    assert [(call.by, call.name, call.content) for call in once.tool_calls] == [
        (call.by, call.name, call.content) for call in repeated.tool_calls
    ]
    assert [call.by for call in repeated.tool_calls] == ["user", "agent", "user"]
    assert repeated.user_messages.keys() == once.user_messages.keys()
    workers = run_command("agent-eval", str(bundle.folder), *own[:-1], "workers", "--workers", "1")
    assert workers.code == 0, workers.err
    assert load_rollout("workers front#1").user_messages.keys() == once.user_messages.keys()


async def test_a_fork_has_the_calls_of_the_user_and_goes_its_own_way(bundle: TaskBundle) -> None:
    with bundle.episode(0) as episode:
        await episode.call("unlock", {"door": "front"})
        await episode.call("push_hard", {"door": "front"}, by="user")
        with episode.fork() as twin:
            assert twin.trace.user_messages == episode.trace.user_messages != {}
            assert len(twin.changes()) == len(episode.changes())
            await twin.call("push_hard", {"door": "front"}, by="user")
            assert [call.by for call in twin.tool_calls] == ["agent", "user", "user"]
            assert [call.by for call in episode.tool_calls] == ["agent", "user"]
            assert twin.trace.user_messages != episode.trace.user_messages


async def test_a_restored_rollout_counts_the_calls_of_the_user_to_their_steps(bundle: TaskBundle) -> None:
    with bundle.episode(0, user=Pusher) as episode:
        await episode.say("Please push.")
        await episode.call("unlock", {"door": "front"})
        await episode.say("Please push again.")
        with await Episode.from_trace(episode.trace, episode.steps, bundle=bundle, user=Pusher) as again:
            found = [[(call.by, call.step) for call in one.tool_calls] for one in (episode, again)]
    assert found == [[("user", 1), ("agent", 2), ("user", 3)]] * 2


@pytest.mark.parametrize(("file", "calls"), [("tools", 2), ("user_tools", 1)])
async def test_each_side_has_its_own_parallel_calls(tmp_path: Path, file: str, calls: int) -> None:
    text = {"tools": TOOLS, "user_tools": USER_TOOLS}[file]
    own = text.replace("Registry(", "Registry(parallel_tool_calls=False, name=")

    def model(messages: Any, tools: Any = None) -> Any:
        made = asks("push_hard", door="front")
        return {**made, "tool_calls": made["tool_calls"] * 2} if len(messages) == 4 else "Done. ###STOP###"

    folder = door_bundle(tmp_path, **{file: own})
    with TaskBundle.load(folder) as bundle, bundle.episode(0, models={"user": model}) as episode:
        await episode.say("Please push.")
        assert [call.by for call in episode.tool_calls] == ["user"] * calls


async def test_a_session_of_a_row_runs_and_hides_for_both_sides(tmp_path: Path) -> None:
    more = "\n@R.after_call\ndef note(db):\n    db.execute(\"INSERT INTO notes VALUES ('dust')\")\n"
    more += "    db.execute(\"UPDATE doors SET open = 2 WHERE id = 'secret_vault'\")\n"
    user = USER_TOOLS.replace('("hands")', '("hands", hidden=["notes"])') + more
    with TaskBundle.load(door_bundle(tmp_path, user_tools=user)) as bundle:
        registry = bundle.tasks[0].registry
        sessions = Sessions(registry, 2)
        sessions.reset("row", "front")
        for name, doors in (("row", ["front", "secret_vault"]), ("none", ["front"])):
            result = await sessions.call(name, "unlock", {"door": "front"})
            assert result.status == "ok"
            assert [one["key"]["id"] for one in await sessions.changes(name)] == doors
        sessions.close()
