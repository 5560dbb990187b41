"""Loading a bundle: what it holds, and what a person reads where it does not hold together."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from reward_kit.agent.bundles.bundle import TaskBundle, read_bundle
from reward_kit.agent.rewards import evaluate
from reward_kit.errors import BundleError

TOOLS = """\
from reward_kit.agent.tools.registry import ToolRegistry

R = ToolRegistry("tools")

@R.tool(description="Add", parameters={"x": int})
def add(x, db):
    db.execute("INSERT INTO t VALUES (:x)", {"x": x})
"""

REWARD = "def evaluate(messages, *, db, **kwargs):\n    return {'score': 1.0}\n"

GOAL = "SELECT COUNT(*) FROM t"


def row(row_id: str = "a", **fields: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "hi"}]
    return {"id": row_id, "toolset": "my_task.tools", "initial_messages": said, **fields}


def write(folder: Path, *rows: dict[str, Any], **files: str) -> Path:
    """A bundle's folder; ``tools="…"`` writes ``tools.py``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "task.jsonl").write_text("".join(json.dumps(item) + "\n" for item in rows or (row(),)))
    for name, content in {"tools": TOOLS, "reward": REWARD, **files}.items():
        if content:
            (folder / f"{name}.py").write_text(content)
    return folder


def faults(source: Path) -> list[str]:
    with pytest.raises(BundleError) as caught:
        TaskBundle.load(source)
    assert "my_task" not in sys.modules
    return str(caught.value).splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "my_task"


def test_a_bundle_holds_its_tasks_with_tools_reward_and_seed(folder: Path) -> None:
    write(folder, row("a"), row("b", system_prompt="file:policy.md"))
    (folder / "policy.md").write_text("Be kind.")
    (folder / "seed.sql").write_text("CREATE TABLE t (x);")
    with TaskBundle.load(folder / "task.jsonl") as bundle:
        first, second = bundle.tasks
        assert (bundle.dataset, bundle.folder) == (folder / "task.jsonl", folder)
        assert list(first.registry.tools) == ["add"]
        assert first.reward([], db=None) == {"score": 1.0}
        assert first.seed.sql == "CREATE TABLE t (x);"
        assert second.seed is first.seed
        assert second.registry is first.registry
        assert first.system_prompt is None
        assert second.system_prompt == "Be kind."
        assert second.folder == folder
    assert "my_task.tools" not in sys.modules


def test_without_reward_py_the_end_goal_decides(folder: Path) -> None:
    write(folder, row(end_goal_sql=GOAL), reward="")
    with TaskBundle.load(folder) as bundle:
        assert bundle.tasks[0].reward is evaluate


def test_seed_sql_of_a_row_goes_before_the_seed_of_the_folder(folder: Path) -> None:
    given = {"b": "CREATE TABLE u (y);", "c": "file:other.sql", "d": ""}
    write(folder, row("a"), *(row(name, seed_sql=sql) for name, sql in given.items()))
    (folder / "seed.sql").write_text("CREATE TABLE t (x);")
    (folder / "other.sql").write_text("CREATE TABLE v (z);")
    with TaskBundle.load(folder) as bundle:
        assert [task.seed.sql for task in bundle.tasks] == [
            "CREATE TABLE t (x);", "CREATE TABLE u (y);", "CREATE TABLE v (z);", "",
        ]  # fmt: skip
        assert [task.seed.origin for task in bundle.tasks] == [
            "my_task/seed.sql", "task.jsonl:2 seed_sql", "my_task/other.sql", "task.jsonl:4 seed_sql",
        ]  # fmt: skip
        assert len({task.seed.key for task in bundle.tasks}) == 4


def test_nothing_is_imported_while_a_row_is_faulty(folder: Path) -> None:
    write(folder, row("a"), row("b", n_rollouts=0), tools="raise RuntimeError('imported')\n")
    (fault,) = faults(folder)
    assert fault.startswith("task.jsonl:2: row 'b', field 'n_rollouts': got 0 (a whole number), expected")


def test_reading_a_bundle_imports_nothing_of_it_nor_runs_its_seed(folder: Path) -> None:
    raises = "raise AssertionError('imported')\n"
    files = {**dict.fromkeys(("__init__", "tools", "reward"), raises), "seed": f"def seed(db):\n    {raises}"}
    with read_bundle(write(folder, row("a"), row("b"), **files)) as read:
        assert [row.id for row in read.rows] == ["a", "b"]
        assert read.seeds[0] is read.seeds[1]
        assert len(read.seeds[0].key) == 64
        assert read.folder == folder
        assert read.dataset == folder / "task.jsonl"
        assert "my_task" not in sys.modules
        with pytest.raises(BundleError, match=r"module 'my_task\.tools' cannot be imported: .*imported"):
            read.open()
    assert str(folder.parent) not in sys.path


def test_gold_actions_of_tools_that_are_not_there_are_warned_of_once(folder: Path) -> None:
    known, unknown = {"name": "add", "arguments": {"x": 1}}, {"name": "ad", "arguments": {"x": 1}}
    write(folder, row("a", actions=[known]), row("b", actions=[unknown] * 2), row("c", actions=[unknown]))
    with TaskBundle.load(folder) as bundle:
        (warning,) = bundle.warnings
    assert warning == (
        "task.jsonl:2: row 'b', field 'actions': there is no tool 'ad' (did you mean 'add'?); "
        "the call is skipped (also in 1 more row)"
    )


def test_an_unknown_toolset_is_told_once_with_where_it_was_looked_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    write(folder, row("a", toolset="nowhere.tools"), row("b", toolset="nowhere.tools"), tools="")
    (fault,) = faults(folder)
    assert fault == (
        "task.jsonl:1: row 'a', field 'toolset': there is no module 'nowhere' in "
        f"{tmp_path}, / or what is installed (also in 1 more row)"
    )


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("tools", "x = 1\nraise ValueError('no luck')\n", "tools.py:2: ValueError: no luck"),
        (
            "tools",
            "import not_installed\n",
            "tools.py:1: ModuleNotFoundError: No module named 'not_installed'",
        ),
        ("tools", "def f(:\n", "tools.py:1: SyntaxError: invalid syntax"),
        ("tools", "x = 1\n", "module 'my_task.tools' has no ToolRegistry. Write R = ToolRegistry"),
        (
            "tools",
            TOOLS.replace("R", "A").replace("ToolAegistry", "ToolRegistry") + "B = ToolRegistry('b')\n",
            'has several registries. Write which one: "my_task.tools:A", "my_task.tools:B".',
        ),
        ("reward", "x = 1\n", "module 'my_task.reward' has no 'evaluate'"),
        ("reward", "1 / 0\n", "reward.py:1: ZeroDivisionError: division by zero"),
        ("reward", "def evaluate(messages, db): pass\n", "my_task.reward:evaluate does not take **kwargs"),
    ],
)
def test_code_that_does_not_work_is_told_without_a_traceback(
    folder: Path, name: str, text: str, expected: str
) -> None:
    write(folder, **{name: text})
    (fault,) = faults(folder)
    field = {"tools": "toolset", "reward": "reward"}[name]
    assert fault.startswith(f"task.jsonl:1: row 'a', field '{field}': ")
    assert expected in fault


def test_a_row_must_have_the_fields_that_its_reward_needs(folder: Path) -> None:
    needs = "messages, *, db, gold_db, rollout, end_goal_sql, level, outputs, **kwargs"
    rows = [row("a", level=1, end_goal_sql=GOAL), row("b", level=2), row("c", end_goal_sql=GOAL)]
    write(folder, *rows, reward=f"def evaluate({needs}):\n    1\n")
    assert faults(folder) == [
        "task.jsonl:2: row 'b', field 'end_goal_sql': is missing, but the reward needs it",
        "task.jsonl:3: row 'c', field 'level': is missing, but the reward needs it",
    ]


def test_a_relative_toolset_is_the_folders_own_whatever_its_name(tmp_path: Path) -> None:
    for name in ("my_task", "weird name-2", "json", "7th"):
        folder = write(tmp_path / name, row(toolset=".tools", reward=".reward:evaluate"))
        with TaskBundle.load(folder) as bundle:
            assert bundle.tasks[0].reward([], db=None) == {"score": 1.0}
            assert list(bundle.tasks[0].registry.tools) == ["add"]
    assert sys.modules["json"] is json


def test_a_copied_folder_does_not_run_the_originals_tools(folder: Path, tmp_path: Path) -> None:
    write(folder)
    shutil.copytree(folder, tmp_path / "copy")
    (fault,) = faults(tmp_path / "copy")
    assert fault == (
        f"task.jsonl:1: row 'a', field 'toolset': 'my_task.tools' is {folder / 'tools.py'}, outside of the "
        f"bundle's folder {tmp_path / 'copy'}; write \".tools\" for the bundle's own tools, or add "
        '"toolset_outside": true to the row to use it'
    )
    write(tmp_path / "copy", row(toolset_outside=True), tools="raise RuntimeError('the wrong one')\n")
    with TaskBundle.load(tmp_path / "copy") as bundle:
        assert list(bundle.tasks[0].registry.tools) == ["add"]


SHOP = """
from pydantic import BaseModel
from reward_kit.agent import ToolRegistry

R = ToolRegistry("shop")

class Line(BaseModel):
    item: int
    gift: bool = False

@R.tool
def find(db) -> str:
    return "7"

@R.tool
def buy(item: int, db, qty: int = 1, note: str = '', tag: str | None = 'x', line: Line | None = None) -> str:
    db.execute("INSERT INTO t VALUES (?, ?)", [item, tag])
    return "bought"

@R.tool(parameters={"type": "object", "properties": {"codes": {"type": ["array", "null"]}}})
def mark(db, codes=None) -> str:
    return str(codes)
"""


def test_null_arguments_that_a_tool_refuses_are_left_out_with_a_warning(folder: Path) -> None:
    keys = dict.fromkeys(("item", "qty", "note", "line", "codes"))
    actions: list[Any] = [
        {"name": "find", "arguments": keys},
        {"name": "buy", "arguments": {**keys, "item": {"$result": [0]}, "tag": None}},
        {"name": "buy", "arguments": {**keys, "item": 1.0, "line": {**keys, "item": 2.0, "gift": None}}},
        {"name": "mark", "arguments": {"codes": None}},
        {"name": "buy", "arguments": {"item": None}},
    ]
    write(folder, row("a", actions=actions), row("b", actions=actions[:1]), tools=SHOP)
    with TaskBundle.load(folder) as bundle:
        given = [action.arguments for action in bundle.tasks[0].row.actions or ()]
        assert given == [
            {},
            {"item": {"$result": [0]}, "line": None, "tag": None},
            {"item": 1.0, "line": {"item": 2.0}},
            {"codes": None},
            {"item": None},  # needed: the check of gold actions reports it
        ]
        told = [line for line in bundle.warnings if "is left out" in line]
    assert told[0] == (
        "task.jsonl:1: row 'a', field 'actions[0].arguments.item': is null, which tool 'find' does not take: "
        "it is left out (also in 1 more row)"
    )
    assert "field 'actions[2].arguments.line.gift': is null, which tool 'buy'" in "\n".join(told)
    assert len(told) == 16
