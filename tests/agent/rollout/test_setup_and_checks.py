"""Functions of a bundle that no model is offered: setup, checks, after calls; hidden tables, no rollback."""

import json
from typing import Any

import pytest
from door_bundle import ROW, TOOLS, USER_TOOLS, door_bundle

from reward_kit.agent import TaskBundle, ToolRegistry
from reward_kit.agent.bundles.bundle import read_bundle
from reward_kit.agent.bundles.task import base_of
from reward_kit.errors import BundleError, RewardError

AGENT_FUNCTIONS = """

@R.setup
def unlocked(door: str, db):
    db.execute("UPDATE doors SET locked = 0 WHERE id = :door", {"door": door})


@R.check
def number_of_notes(db):
    return db.execute("SELECT count(*) FROM notes").scalar()


@R.check
def opened(db):
    return db.fetch_all("SELECT id, open FROM doors WHERE open"), ("of", 2)
"""
USER_FUNCTIONS = """

@R.setup
def tired(db):
    db.execute("INSERT INTO notes VALUES ('tired')")


@R.check
def is_open(door: str, db):
    is_known = {"front": True, "back": False}[door]
    return is_known and db.execute("SELECT open FROM doors WHERE id = ?", [door]).scalar()


@R.after_call
def note(db):
    db.execute("INSERT INTO notes SELECT 'open: ' || id FROM doors WHERE open")
"""
SETUP = [{"name": "unlocked", "arguments": {"door": "front"}}, {"name": "tired", "by": "user"}]
PUSH = ("push_hard", {"door": "front"})
IS_OPEN = {"name": "is_open", "arguments": {"door": "front"}, "by": "user"}


def bundle_of(folder: Any, *rows: dict[str, Any], tools: str = "", user_tools: str = "") -> Any:
    plain = [
        {**ROW, "actions": None, "end_goal_sql": "SELECT 1", "id": f"row{number}", **row}
        for number, row in enumerate(rows)
    ]
    texts = {
        "tools": tools or TOOLS + AGENT_FUNCTIONS,
        "user_tools": user_tools or USER_TOOLS + USER_FUNCTIONS,
    }
    return door_bundle(folder, rows=plain, **texts)


class TestSetup:
    async def test_it_happens_at_the_time_of_its_row(self, tmp_path):
        tools = (
            TOOLS
            + "\n\n@R.setup\ndef noted(db):\n    db.execute(\"INSERT INTO notes VALUES (date('now'))\")\n"
        )
        days = ["2024-05-15", "2020-01-01"]
        rows = [{"setup": [{"name": "noted"}], "now": day} for day in days]
        with TaskBundle.load(bundle_of(tmp_path, *rows, tools=tools)) as bundle:
            bases = [base_of(bundle, task) for task in bundle.tasks]
            assert [await base.fetch_val("SELECT text FROM notes") for base in bases] == days

    async def test_it_changes_the_base_of_its_rows_alone(self, tmp_path):
        folder = bundle_of(tmp_path, {}, {"setup": SETUP}, {"setup": SETUP}, {"setup": SETUP[:1]})
        with TaskBundle.load(folder) as bundle:
            keys = [task.seed.key for task in bundle.tasks]
            assert keys[1] == keys[2]
            assert len({*keys}) == 3
            assert base_of(bundle, bundle.tasks[1]) is base_of(bundle, bundle.tasks[2])
            with bundle.episode("row1") as episode:
                assert not episode.changes()
                assert (await episode.call(*PUSH, by="user")).status == "ok"
            with bundle.episode("row0") as episode:
                assert (await episode.call(*PUSH, by="user")).status == "refused"

    def test_it_is_run_where_only_the_rows_were_read(self, tmp_path):
        from reward_kit.agent.database import Database
        from reward_kit.agent.store.layout import RunsFolder

        folder = bundle_of(tmp_path, {"setup": SETUP})
        with read_bundle(folder) as rows:
            path = RunsFolder(tmp_path / "runs").ensure_base(rows.seeds[0])
        with Database.open(path) as base:
            assert base.read_only().execute("SELECT text FROM notes").scalar() == "tired"

    @pytest.mark.parametrize(("file", "is_read"), [("tools.py", True), ("reward.py", False)])
    def test_the_key_of_its_base_depends_on_the_code(self, tmp_path, file, is_read):
        folder = bundle_of(tmp_path, {"setup": SETUP})
        keys = set()
        for _ in range(2):
            with (folder / file).open("a") as text:
                text.write("# changed\n")
            with read_bundle(folder) as rows:
                keys.add(rows.seeds[0].key)
        assert len(keys) == 1 + is_read

    @pytest.mark.parametrize(
        ("call", "fault"),
        [
            ({"name": "unlock"}, r"field 'setup\[0\]': there is no setup 'unlock' \(did you mean 'unlocked'"),
            ({"name": "tired"}, r"""there is no setup 'tired' \(the user has one: add "by": "user"\)"""),
            (
                {**SETUP[0], "by": "user"},
                r"""there is no setup 'unlocked' \(the agent has one: drop "by"\)""",
            ),
            ({"name": "unlocked"}, "invalid arguments for setup 'unlocked'"),
        ],
    )
    def test_a_faulty_call_is_a_fault_of_the_row(self, tmp_path, call, fault):
        with pytest.raises(BundleError, match=fault):
            TaskBundle.load(bundle_of(tmp_path, {"setup": [call]}))

    def test_a_function_that_fails_is_named_with_the_place_in_the_row(self, tmp_path):
        broken = "\n\n@R.setup\ndef broken(db):\n    raise KeyError('oil')\n"
        folder = bundle_of(tmp_path, {"setup": [{"name": "broken"}]}, tools=TOOLS + broken)
        with (
            TaskBundle.load(folder) as bundle,
            pytest.raises(BundleError, match=r"task.jsonl:1 setup\[0\]: setup 'broken' raised"),
        ):
            base_of(bundle, bundle.tasks[0])

    def test_no_model_is_offered_the_functions(self, tmp_path):
        with TaskBundle.load(bundle_of(tmp_path, {})) as bundle:
            task = bundle.tasks[0]
            offered = json.dumps([task.registry.get_openai_tools(), task.user_registry.get_openai_tools()])
        assert not [name for name in ("unlocked", "tired", "is_open", "note") if f'"{name}"' in offered]


class TestAfterCalls:
    async def test_they_run_after_the_calls_of_both_sides_in_the_same_transaction(self, tmp_path):
        folder = bundle_of(tmp_path, {"setup": SETUP[:1]})
        with TaskBundle.load(folder) as bundle, bundle.episode("row0") as episode:
            await episode.call("unlock", {"door": "front"})
            await episode.call(*PUSH, by="user")
            assert [len(call.changes) for call in episode.tool_calls] == [0, 2]

    @pytest.mark.parametrize("error", ["db.execute('SELECT * FROM nowhere')", "raise ToolError('a creak')"])
    async def test_a_call_fails_with_the_function_after_it_whose_words_are_not_shown(self, tmp_path, error):
        broken = f"\n\n@R.after_call\ndef broken(db):\n    {error}\n"
        folder = bundle_of(tmp_path, {}, user_tools=USER_TOOLS + broken)
        with TaskBundle.load(folder) as bundle, bundle.episode("row0") as episode:
            result = await episode.call("unlock", {"door": "front"})
            assert (result.status, result.content) == ("failed", "Error: the call could not be completed")
            assert "user_tools.py" in episode.trace.tool_faults["unlock"]["first"]
            assert not episode.changes()


class TestChecks:
    @pytest.mark.parametrize(
        ("checks", "score", "reason"),
        [
            ([IS_OPEN], 1.0, "as required"),
            ([{**IS_OPEN, "is": False}], 0.0, r'is_open({"door": "front"}): expected False, got 1'),
            (["SELECT open FROM doors WHERE id = 'front'"], 1.0, "as required"),
            (
                ["SELECT open FROM doors\nWHERE id = 'secret_vault'"],
                0.0,
                "does not hold: SELECT open",
            ),
            ([{"name": "number_of_notes", "is": 1}], 1.0, "as required"),
            ([{"name": "number_of_notes", "is": 2}], 0.0, "expected 2, got 1"),
            ([{"name": "opened", "is": [[{"id": "front", "open": 1}], ["of", 2]]}], 1.0, "as required"),
            ([{**IS_OPEN, "arguments": {"door": "side"}}], 0.0, "check 'is_open' raised user_tools.py"),
        ],
    )
    async def test_they_decide_the_default_reward(self, tmp_path, checks, score, reason):
        row = {"setup": SETUP[:1], "checks": checks, "end_goal_sql": None}
        with TaskBundle.load(bundle_of(tmp_path, row)) as bundle, bundle.episode("row0") as episode:
            await episode.call(*PUSH, by="user")
            result = await episode.finish()
        assert result.score == score
        assert reason in result.reason

    async def test_a_query_that_sqlite_refuses_is_named(self, tmp_path):
        row = {"checks": ["SELECT 1", "SELECT colour FROM doors"], "end_goal_sql": None}
        fault = r"checks\[1\]: no such column: colour"
        with TaskBundle.load(bundle_of(tmp_path, row)) as bundle, pytest.raises(RewardError, match=fault):
            await bundle.episode("row0").finish()

    @pytest.mark.parametrize(
        "row", [{"actions": ROW["actions"]}, {"required_calls": ["unlock", ROW["actions"][1]]}]
    )
    async def test_calls_of_both_sides_can_be_scored(self, tmp_path, row):
        row |= {"end_goal_sql": None, "score_by": ["calls"]}
        with TaskBundle.load(bundle_of(tmp_path, row)) as bundle:
            for pusher, score in (("user", 1.0), ("agent", 0.0)):
                with bundle.episode("row0") as episode:
                    await episode.call("unlock", {"door": "front"})
                    await episode.call(*PUSH, by=pusher)
                    result = await episode.finish()
                assert (result.score, result.metrics["calls"].score) == (score, score)
        assert result.reason == 'never called: the user\'s push_hard({"door": "front"})'

    async def test_a_reward_of_the_bundle_uses_them(self, tmp_path):
        folder = bundle_of(tmp_path, {"setup": SETUP[:1], "checks": [IS_OPEN]})
        (folder / "reward.py").write_text(
            "from reward_kit.agent.rewards import all_of, checks_hold\n\n\n"
            "async def evaluate(messages, *, db, checks=(), **kwargs):\n"
            "    return all_of({'checks': checks_hold(checks, db)})\n"
        )
        with TaskBundle.load(folder) as bundle, bundle.episode("row0") as episode:
            assert (await episode.finish()).score == 0.0

    @pytest.mark.parametrize(
        ("check", "fault"),
        [
            ({"name": "is_opem", "by": "user"}, "there is no check 'is_opem'"),
            ({"name": "is_open", "by": "nobody"}, "expected the text of a query"),
            (" ", "expected the text of a query"),
        ],
    )
    def test_a_faulty_check_is_a_fault_of_the_row(self, tmp_path, check, fault):
        with pytest.raises(BundleError, match=fault):
            TaskBundle.load(bundle_of(tmp_path, {"checks": [check]}))


class TestHiddenTables:
    async def test_they_are_neither_shown_nor_compared(self, tmp_path):
        hidden = (TOOLS + AGENT_FUNCTIONS).replace('("doors")', '("doors", hidden=["notes"])')
        row = {"setup": SETUP[:1], "actions": [], "end_goal_sql": None}
        folder = bundle_of(tmp_path, row, tools=hidden)
        with TaskBundle.load(folder) as bundle, bundle.episode("row0") as episode:
            await episode.call(*PUSH, by="user")
            [call] = episode.tool_calls
            assert {change["table"] for change in call.changes} == {"doors"}
            assert {change.table for change in episode.changes()} == {"doors"}
            with episode.database.fork() as again, episode.base.fork() as untouched:
                assert {change.table for change in again.changes()} == {"doors"}
                assert again.read_only().execute("SELECT count(*) FROM notes").scalar() == 1
                assert again.equals(untouched, ignore=["doors"])


class TestWithoutRollback:
    @pytest.mark.parametrize(("rollback", "kept"), [(True, 0), (False, 1)])
    async def test_a_failed_call_keeps_what_it_changed(self, tmp_path, rollback, kept):
        failing = f"""
from reward_kit.agent import ToolError, ToolRegistry

R = ToolRegistry("doors", rollback={rollback})


@R.tool
def unlock(door: str, db):
    '''Unlock.'''
    db.execute("UPDATE doors SET locked = 0 WHERE id = :door", {{"door": door}})
    raise ToolError("the key broke")
"""
        folder = bundle_of(tmp_path, {}, tools=failing)
        with TaskBundle.load(folder) as bundle, bundle.episode("row0") as episode:
            assert (await episode.call("unlock", {"door": "front"})).status == "refused"
            assert len(episode.changes()) == len(episode.tool_calls[0].changes) == kept

    @pytest.mark.parametrize(("rollback", "notes"), [(True, 0), (False, 1)])
    @pytest.mark.parametrize(
        ("tool", "arguments", "status"),
        [
            ("unlock", {"door": "back"}, "refused"),
            ("unlock", {}, "invalid_arguments"),
            ("lock", {}, "unknown_tool"),
        ],
    )
    async def test_functions_run_after_a_failed_call(
        self, tmp_path, rollback, notes, tool, arguments, status
    ):
        tools = TOOLS.replace('("doors")', f'("doors", rollback={rollback})').replace(
            'return "unlocked"', 'raise ToolError("the key broke")'
        )
        count = "\n\n@R.after_call\ndef count(db):\n    db.execute(\"INSERT INTO notes VALUES ('called')\")\n"
        folder = bundle_of(tmp_path, {}, tools=tools, user_tools=USER_TOOLS + count)
        with TaskBundle.load(folder) as bundle, bundle.episode("row0") as episode:
            assert (await episode.call(tool, arguments)).status == status
            [call] = episode.tool_calls
            assert len([one for one in call.changes if one["table"] == "notes"]) == notes
            assert len([one for one in episode.changes() if one.table == "notes"]) == notes

    async def test_a_function_that_fails_after_a_failed_call_is_not_quoted(self, tmp_path):
        tools = TOOLS.replace('("doors")', '("doors", rollback=False)')
        broken = "\n\n@R.after_call\ndef broken(db):\n    raise ToolError('a creak')\n"
        folder = bundle_of(tmp_path, {}, tools=tools, user_tools=USER_TOOLS + broken)
        with TaskBundle.load(folder) as bundle, bundle.episode("row0") as episode:
            for name in ("unlock", "lock"):
                result = await episode.call(name, {"gate": "front"})
                assert (result.status, result.content) == ("failed", "Error: the call could not be completed")


@pytest.mark.parametrize(
    ("kind", "source", "fault"),
    [
        ("setup", "async def f(db): ...", "setup 'f' is async"),
        ("after_call", "def f(db, x: int): ...", "after_call 'f' has arguments"),
        ("check", "def f(*names): ...", "check 'f'"),
    ],
)
def test_a_function_that_cannot_be_registered(kind, source, fault):
    names: dict[str, Any] = {}
    exec(source, names)
    registry = ToolRegistry("r")
    with pytest.raises(BundleError, match=fault):
        getattr(registry, kind)(names["f"])


def test_a_name_is_taken_once():
    registry = ToolRegistry("r")

    def prepare(db: Any) -> None: ...

    registry.setup(prepare)
    registry.check(prepare)
    with pytest.raises(BundleError, match="setup 'prepare': the name is taken"):
        registry.setup(prepare)
