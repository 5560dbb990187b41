"""Solo mode: no user, the ticket in the system prompt, the tools of both sides, and ``done``."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import run_command
from door_bundle import PUSH, ROW, TOOLS, UNLOCK, USER_TOOLS, asks, door_bundle
from small_task import InProcessModel

from reward_kit.agent import TaskBundle, agent_eval, load_rollout, validate
from reward_kit.agent.players.agents.tool_calling import ToolCallingAgent
from reward_kit.agent.rollout.orchestrator import run_rollout_async
from reward_kit.agent.store.transcript import transcript
from reward_kit.errors import BundleError, UsageError

PUSH_BY_USER = ("push_hard", {"door": "front"})
SECRET = "You stand before the front door."
TICKET = "The front door does not open. Open it."
SOLO = {**ROW, "ticket": TICKET, "system_prompt": "You guard doors.", "initial_messages": []}
ALL = ["unlock", "push_hard", "look_around", "walk_away", "done"]


def names(tools: Any) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


async def played(folder: Path, *answers: Any) -> Any:
    """The trace of a rollout in solo mode, and the model that played it."""
    model = InProcessModel(list(answers))
    with TaskBundle.load(folder, mode="solo") as bundle, bundle.episode("front") as empty:
        [task] = bundle.tasks
        episode = await run_rollout_async(
            task, 0, base=empty.base, agent=ToolCallingAgent(), models={"agent": model}
        )
        with episode:
            return episode.trace, model


class TestRollout:
    async def test_the_agent_has_the_ticket_and_the_tools_of_both_sides(self, tmp_path):
        calls = [asks("unlock", door="front"), asks("push_hard", door="front"), asks("done")]
        trace, model = await played(door_bundle(tmp_path, rows=[SOLO]), *calls)
        assert (trace.reward, trace.stop_reason) == (1.0, "terminal_tool")
        assert [(call.name, call.by) for call in trace.tool_calls] == [
            ("unlock", "agent"),
            ("push_hard", "agent"),
            ("done", "agent"),
        ]
        assert model.seen[0] == [
            {"role": "system", "content": f"You guard doors.\n\n<ticket>\n{TICKET}\n</ticket>"}
        ]
        assert names(model.tools[0]) == ALL
        assert SECRET not in json.dumps(model.seen)
        assert not trace.user_messages
        assert "USER" not in transcript(trace)

    async def test_a_reply_ends_the_rollout_as_well(self, tmp_path):
        trace, _ = await played(
            door_bundle(tmp_path, rows=[SOLO]), {"role": "assistant", "content": "I give up."}
        )
        assert (trace.reward, trace.stop_reason) == (0.0, "agent_done")
        assert trace.failure is None

    @pytest.mark.parametrize(
        ("prompt", "ticket", "shown"),
        [
            ("A {ticket} B", "do it\n", "A do it\n B"),
            (None, "do it", "<ticket>\ndo it\n</ticket>"),
            ("file:policy.md", "file:ticket.md", "Policy\n\n<ticket>\nOpen.\n</ticket>"),
        ],
    )
    def test_the_system_prompt_says_where_the_ticket_goes(self, tmp_path, prompt, ticket, shown):
        folder = door_bundle(tmp_path, rows=[{**SOLO, "system_prompt": prompt, "ticket": ticket}])
        (folder / "policy.md").write_text("Policy\n", encoding="utf-8")
        (folder / "ticket.md").write_text("Open.\n", encoding="utf-8")
        with TaskBundle.load(folder) as bundle:
            with bundle.episode("front", mode="solo") as episode:
                assert episode.rollout.system_prompt == shown
                assert names(episode.rollout.tools) == ALL
            with bundle.episode("front") as episode:
                assert ticket.strip() not in str(episode.rollout.system_prompt) + str(
                    episode.rollout.messages
                )
                assert names(episode.rollout.tools) == ["unlock"]

    async def test_the_functions_and_options_of_each_side_stay_its_own(self, tmp_path):
        note = "\n\n@R.after_call\ndef note(db):\n    db.execute(\"INSERT INTO notes VALUES ('called')\")\n"
        check = "\n\n@R.check\ndef is_open(db):\n    return db.fetch_val('SELECT max(open) FROM doors')\n"
        hands = USER_TOOLS.replace('("hands")', '("hands", rollback=False)').replace(
            "    if db.fetch_val", "    db.execute('UPDATE doors SET open = open + 2')\n    if db.fetch_val"
        )
        doors = TOOLS.replace('return "unlocked"', 'raise ToolError("the key broke")')
        row = {**SOLO, "actions": None, "checks": [{"name": "is_open", "by": "user", "is": 2}]}
        folder = door_bundle(tmp_path, rows=[row], tools=doors, user_tools=hands + note + check)
        with TaskBundle.load(folder) as bundle, bundle.episode("front", mode="solo") as episode:
            await episode.call("unlock", {"door": "front"})
            await episode.call("push_hard", {"door": "front"})
            unlocked, pushed = episode.tool_calls
            assert (unlocked.status, pushed.status) == ("refused", "refused")
            assert [sorted({one["table"] for one in call.changes}) for call in (unlocked, pushed)] == [
                [],
                ["doors", "notes"],
            ]
            assert (await episode.finish()).score == 1.0

    def test_there_is_no_user_in_it(self, tmp_path):
        with TaskBundle.load(door_bundle(tmp_path, rows=[SOLO])) as bundle:
            with pytest.raises(UsageError, match='mode="solo" has no user'):
                bundle.episode("front", mode="solo", user="human")
            with pytest.raises(ValueError, match="mode is solo, not 'duo'"):
                bundle.episode("front", mode="duo")
            with bundle.episode("front", mode="solo") as episode:
                assert episode.call_sync(*PUSH_BY_USER, by="user").status == "unknown_tool"
                assert not names(episode.user_rollout.tools)


class TestNames:
    def test_a_name_that_both_sides_have_is_an_error_with_both_places(self, tmp_path):
        clash = USER_TOOLS.replace("def look_around", "def unlock")
        with TaskBundle.load(door_bundle(tmp_path, rows=[SOLO], user_tools=clash)) as bundle:
            with pytest.raises(
                BundleError, match=r"both have 'unlock' \(.*/tools.py:7 and .*/user_tools.py:16\)"
            ):
                bundle.episode("front", mode="solo")
            [error] = validate(bundle).errors
            assert (error.kind, error.rows) == ("solo", ("front",))
        with pytest.raises(BundleError, match="field 'user_toolset': in solo mode"):
            TaskBundle.load(tmp_path / "door_task", mode="solo")

    @pytest.mark.parametrize(("terminal", "ends"), [("(terminal=True)", True), ("", False)])
    async def test_a_tool_done_of_the_bundle_is_taken_if_it_ends_the_rollout(self, tmp_path, terminal, ends):
        own = f"\n\n@R.tool{terminal}\ndef done():\n    'Hang up.'\n"
        with TaskBundle.load(door_bundle(tmp_path, rows=[SOLO], tools=TOOLS + own)) as bundle:
            if not ends:
                with pytest.raises(BundleError, match="the tool 'done' ends a rollout, and that of"):
                    bundle.episode("front", mode="solo")
                return
            with bundle.episode("front", mode="solo") as episode:
                [tool] = [one for one in episode.rollout.tools if one["function"]["name"] == "done"]
                assert tool["function"]["description"] == "Hang up."
                assert (await episode.call("done", {})).terminal

    def test_each_row_has_the_tools_that_it_gives_to_the_user(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        rows = [SOLO, {**SOLO, "id": "side", "user_tools": ["push_hard"]}]
        folder = door_bundle(tmp_path, rows=rows)
        result = agent_eval(folder, agent="gold", mode="solo", eval_id="both")
        assert result.score == 1.0
        assert names(result.tools_of("front")) == ALL
        assert names(result.tools_of("side")) == ["unlock", "push_hard", "done"]


class TestEvaluation:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.chdir(tmp_path)
        return door_bundle(tmp_path, rows=[SOLO, {**ROW, "id": "chatty"}])

    @pytest.mark.parametrize("workers", [None, 1])
    def test_gold_plays_the_calls_of_both_sides(self, folder, workers):
        agent_eval(folder, agent="gold", mode="solo", task_ids="front", eval_id="solo", workers=workers)
        trace = load_rollout("solo front#1")
        assert trace.reward == 1.0
        assert [(call.name, call.by) for call in trace.tool_calls] == [
            ("unlock", "agent"),
            ("push_hard", "agent"),
        ]
        assert trace.fields["actions"] == [UNLOCK, {name: PUSH[name] for name in ("name", "arguments")}]
        assert "sim_user_prompt" not in trace.fields

    def test_a_row_without_a_ticket_is_an_error(self, folder):
        done = run_command("agent-eval", folder, "--agent", "gold", "--mode", "solo")
        assert done.code == 2
        assert "task.jsonl:2: row 'chatty', field 'ticket': is missing, but in solo mode" in done.err

    def test_the_mode_belongs_to_the_evaluation(self, folder):
        asked = ("agent-eval", folder, "--agent", "gold", "--rows", "front", "--eval-id", "solo")
        assert run_command(*asked, "--mode", "solo").code == 0
        again = run_command(*asked)
        assert again.code == 2
        assert '--mode was "solo", is null' in again.err
        assert run_command("agent-eval", "--resume", "solo", "--n-rollouts", "2").code == 0
        assert load_rollout("solo front#2").reward == 1.0
        done = run_command("rescore", "solo")
        assert (done.code, "0 rewards changed" in done.out) == (0, True), done.out

    def test_its_failures_are_found_by_deep_validation(self, folder):
        class Idle:
            async def respond(self, _: Any) -> str:
                return "Done."

        agent_eval(folder, agent=Idle, mode="solo", task_ids="front", n_rollouts=5, eval_id="solo")
        found = run_command("validate", "--deep", folder, "--evaluation", "solo").out
        assert "never-passed (1 row)" in found

    def test_a_user_contradicts_it(self, folder):
        done = run_command("agent-eval", folder, "--agent", "gold", "--mode", "solo", "--user", "human")
        assert (done.code, "--mode solo contradicts --user human" in done.err) == (2, True)
