"""Loading a bundle: what it holds, and what a person reads where it does not hold together."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reward_kit.agent.bundle import TaskBundle
from reward_kit.agent.bundles.default_reward import end_goal_reward
from reward_kit.errors import BundleError

TOOLS = """\
from reward_kit.agent.tool_registry import ToolRegistry

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


def test_it_works_from_inside_of_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder)
    monkeypatch.chdir(folder)
    with TaskBundle.load("task.jsonl") as bundle:
        assert bundle.tasks[0].row.place == "task.jsonl:1"


def test_two_bundles_of_one_name_do_not_mix(tmp_path: Path) -> None:
    for number in ("1", "2"):
        write(tmp_path / number / "my_task", tools=TOOLS.replace("Add", f"Add {number}"))
    for number in ("1", "2", "1"):
        with TaskBundle.load(tmp_path / number / "my_task") as bundle:
            assert bundle.tasks[0].registry.tools["add"].description == f"Add {number}"


def test_a_packed_bundle_is_loaded_and_its_files_are_removed_on_close(folder: Path, tmp_path: Path) -> None:
    write(folder)
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path, "my_task")
    shutil.rmtree(folder)
    with TaskBundle.load(archive) as bundle:
        unpacked = bundle.folder
        assert unpacked.name == "my_task"
    assert not unpacked.exists()


def test_an_installed_bundle_is_loaded_by_its_import_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir("/")
    with TaskBundle.load("my_task") as bundle:
        assert bundle.dataset == folder / "task.jsonl"


def test_rows_from_elsewhere_can_use_a_bundle(folder: Path, tmp_path: Path) -> None:
    write(folder)
    (folder / "policy.md").write_text("Be kind.")
    (tmp_path / "subset.jsonl").write_text(json.dumps(row("only", system_prompt="file:policy.md")))
    with TaskBundle.load(tmp_path / "subset.jsonl", task_dir=folder) as bundle:
        (task,) = bundle.tasks
        assert (task.row.id, task.system_prompt) == ("only", "Be kind.")


def test_tools_may_be_a_package_and_the_reward_is_beside_it(folder: Path) -> None:
    write(folder, tools="")
    (folder / "tools").mkdir()
    (folder / "tools" / "__init__.py").write_text(TOOLS)
    with TaskBundle.load(folder) as bundle:
        assert bundle.tasks[0].reward.__module__ == "my_task.reward"


@pytest.mark.parametrize(
    ("toolset", "tools"),
    [
        ("my_task.tools:OTHER", TOOLS + "\nOTHER = ToolRegistry('other')\n"),
        ("my_task.tools", TOOLS.replace("R = ", "other = ").replace("@R", "@other")),
    ],
)
def test_the_registry_may_have_another_name(folder: Path, toolset: str, tools: str) -> None:
    write(folder, row(toolset=toolset), tools=tools)
    with TaskBundle.load(folder) as bundle:
        assert bundle.tasks[0].registry.name == ("other" if ":" in toolset else "tools")


def test_rows_may_name_different_toolsets_and_rewards(folder: Path) -> None:
    write(
        folder,
        row("a"),
        row("b", toolset="my_task.more", reward="my_task.reward:strict"),
        reward=REWARD + "\ndef strict(messages, **kwargs):\n    return {'score': 0.0}\n",
        more=TOOLS.replace('"tools"', '"more"'),
    )
    with TaskBundle.load(folder) as bundle:
        assert [task.registry.name for task in bundle.tasks] == ["tools", "more"]
        assert [task.reward.__name__ for task in bundle.tasks] == ["evaluate", "strict"]


def test_without_reward_py_the_end_goal_decides(folder: Path) -> None:
    write(folder, row(end_goal_sql=GOAL), reward="")
    with TaskBundle.load(folder) as bundle:
        assert bundle.tasks[0].reward is end_goal_reward


@pytest.mark.parametrize(("value", "score"), [(1, 1.0), ("yes", 1.0), (0, 0.0), (None, 0.0), ("", 0.0)])
def test_the_default_reward_is_1_where_the_first_value_is_true(value: Any, score: float) -> None:
    asked: list[str] = []

    def execute(sql: str) -> Any:
        asked.append(sql)
        return SimpleNamespace(scalar=lambda: value)

    result = end_goal_reward([], db=SimpleNamespace(execute=execute), end_goal_sql=GOAL, other=1)
    assert result.score == score
    assert asked == [GOAL]


def test_seed_sql_of_a_row_goes_before_the_seed_of_the_folder(folder: Path) -> None:
    write(
        folder,
        row("a"),
        row("b", seed_sql="CREATE TABLE u (y);"),
        row("c", seed_sql="file:other.sql"),
        row("d", seed_sql=""),
    )
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


def test_a_row_may_name_a_seed_script(folder: Path) -> None:
    write(folder, row(seed_sql="file:make.py"), make="def seed(db): pass\n")
    with TaskBundle.load(folder) as bundle:
        assert bundle.tasks[0].seed.script is not None
        assert bundle.tasks[0].seed.origin == "my_task/make.py"


def test_nothing_is_imported_while_a_row_is_faulty(folder: Path) -> None:
    write(folder, row("a"), row("b", n_rollouts=0), tools="raise RuntimeError('imported')\n")
    assert faults(folder) == [
        "task.jsonl:2: row 'b', field 'n_rollouts': got 0 (a whole number), expected a whole number >= 1"
    ]


def test_warnings_are_listed(folder: Path) -> None:
    write(folder, row(n_rollout=4))
    with TaskBundle.load(folder) as bundle:
        assert len(bundle.warnings) == 1
        assert "did you mean 'n_rollouts'?" in bundle.warnings[0]


def test_gold_actions_of_tools_that_are_not_there_are_warned_of_once(folder: Path) -> None:
    known, unknown = {"name": "add", "arguments": {"x": 1}}, {"name": "ad", "arguments": {"x": 1}}
    write(
        folder, row("a", actions=[known]), row("b", actions=[unknown, unknown]), row("c", actions=[unknown])
    )
    with TaskBundle.load(folder) as bundle:
        (warning,) = bundle.warnings
    assert warning == (
        "task.jsonl:2: row 'b', field 'actions': there is no tool 'ad' (did you mean 'add'?); "
        "the call is passed over (also in 1 more row)"
    )


def test_the_bare_name_of_a_seed_file_is_no_sql(folder: Path) -> None:
    write(folder, row(seed_sql="other.sql"))
    (folder / "other.sql").write_text("CREATE TABLE t (x);")
    (fault,) = faults(folder)
    assert fault == (
        "task.jsonl:1: row 'a', field 'seed_sql': 'other.sql' is a file, not SQL. Write \"file:other.sql\"."
    )


def test_a_missing_seed_file_is_told(folder: Path) -> None:
    write(folder, row(seed_sql="file:seed.sql"))
    assert faults(folder) == [
        f"task.jsonl:1: row 'a', field 'seed_sql': file 'seed.sql' does not exist in {folder}"
    ]


def test_a_faulty_seed_script_is_told_before_anything_is_imported(folder: Path) -> None:
    write(folder, seed="def sed(db): pass\n", tools="raise RuntimeError('imported')\n")
    (fault,) = faults(folder)
    assert fault.startswith("task.jsonl:1: row 'a', field 'seed_sql': ")
    assert fault.endswith('my_task/seed.py: has no "def seed(db)"')


def test_an_unknown_toolset_is_told_once_with_where_it_was_looked_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    write(folder, row("a", toolset="nowhere.tools"), row("b", toolset="nowhere.tools"), tools="")
    (fault,) = faults(folder)
    assert fault == (
        "task.jsonl:1: row 'a', field 'toolset': there is no module 'nowhere' in "
        f"{tmp_path}, / or the installed packages (also in 1 more row)"
    )


def test_a_toolset_that_names_another_folder_gets_a_hint(folder: Path) -> None:
    write(folder, row(toolset="your_task.tools"))
    (fault,) = faults(folder)
    assert fault.endswith("The bundle's folder is 'my_task': did you mean 'my_task.tools'?")


def test_a_bundle_without_tools_is_told_which_file_to_write(folder: Path) -> None:
    write(folder, tools="")
    (fault,) = faults(folder)
    assert fault.endswith(
        f"there is no module 'my_task.tools' in package 'my_task'. Write {folder / 'tools.py'}."
    )


def test_a_folder_name_that_cannot_be_imported_is_explained(tmp_path: Path) -> None:
    folder = write(tmp_path / "my.task", row(toolset="my.task.tools"))
    (fault,) = faults(folder)
    assert fault.endswith("A folder with a dot in its name, 'my.task', cannot be imported: rename it.")


@pytest.mark.parametrize(
    ("toolset", "remedy"),
    [
        (
            "weird_name.tools",
            "A folder named 'weird name' cannot be imported: rename it, to 'weird_name' say.",
        ),
        ("weird name.tools", "(rename the folder: 'weird_name' can be imported)"),
    ],
)
def test_a_folder_with_a_space_in_its_name_is_to_be_renamed(
    tmp_path: Path, toolset: str, remedy: str
) -> None:
    folder = write(tmp_path / "weird name", row(toolset=toolset))
    (fault,) = faults(folder)
    assert fault.endswith(remedy)


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ("x = 1\nraise ValueError('no luck')\n", "tools.py:2: ValueError: no luck"),
        ("import not_installed\n", "tools.py:1: ModuleNotFoundError: No module named 'not_installed'"),
        (
            "from my_task.absent import x\n",
            "tools.py:1: ModuleNotFoundError: No module named 'my_task.absent'",
        ),
        ("def f(:\n", "tools.py:1: SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(3)\n", "tools.py:2: SystemExit: 3"),
        ("x = 1\n", "module 'my_task.tools' has no ToolRegistry. Write R = ToolRegistry"),
        ("R = 3\n", "'R' in module 'my_task.tools' is int, expected a ToolRegistry"),
        (
            TOOLS.replace("R", "A").replace("ToolAegistry", "ToolRegistry") + "B = ToolRegistry('b')\n",
            'has several registries. Write which one: "my_task.tools:A", "my_task.tools:B".',
        ),
    ],
)
def test_a_tools_module_that_does_not_work_is_told_without_a_traceback(
    folder: Path, tools: str, expected: str
) -> None:
    write(folder, tools=tools)
    (fault,) = faults(folder)
    assert fault.startswith("task.jsonl:1: row 'a', field 'toolset': ")
    assert expected in fault


def test_a_registry_that_does_not_exist_is_told(folder: Path) -> None:
    write(folder, row(toolset="my_task.tools:Q"))
    (fault,) = faults(folder)
    assert fault.endswith("'Q' in module 'my_task.tools' does not exist, expected a ToolRegistry")


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ("x = 1\n", "module 'my_task.reward' has no 'evaluate'"),
        ("evaluate = 3\n", "my_task.reward:evaluate is int, expected a function"),
        ("1 / 0\n", "reward.py:1: ZeroDivisionError: division by zero"),
        ("def evaluate(messages, db):\n    pass\n", "my_task.reward:evaluate does not take **kwargs"),
        ("def evaluate(messages, /, **kwargs):\n    pass\n", "takes 'messages' by position only"),
    ],
)
def test_a_reward_that_cannot_be_called_is_told(folder: Path, reward: str, expected: str) -> None:
    write(folder, reward=reward)
    (fault,) = faults(folder)
    assert fault.startswith("task.jsonl:1: row 'a', field 'reward': ")
    assert expected in fault


def test_a_reward_in_a_module_that_does_not_exist_is_told(folder: Path) -> None:
    write(folder, row(reward="my_task.judge:evaluate"))
    (fault,) = faults(folder)
    assert "field 'reward': there is no module 'my_task.judge' in package 'my_task'" in fault


def test_a_row_must_have_the_fields_that_its_reward_needs(folder: Path) -> None:
    reward = (
        "def evaluate(messages, *, db, gold_db, rollout, end_goal_sql, level, outputs, **kwargs):\n    1\n"
    )
    write(
        folder,
        row("a", level=1, end_goal_sql=GOAL),
        row("b", level=2),
        row("c", end_goal_sql=GOAL),
        reward=reward,
    )
    assert faults(folder) == [
        "task.jsonl:2: row 'b', field 'end_goal_sql': is missing, but the reward needs it",
        "task.jsonl:3: row 'c', field 'level': is missing, but the reward needs it",
    ]


def test_a_row_without_any_reward_is_told(folder: Path) -> None:
    write(folder, row("a", end_goal_sql=GOAL), row("b"), reward="")
    (fault,) = faults(folder)
    assert fault.startswith(
        "task.jsonl:2: row 'b', field 'end_goal_sql': is missing, and there is no my_task/reward.py"
    )


def test_the_faults_of_all_toolsets_and_rewards_are_told_together(folder: Path) -> None:
    write(
        folder,
        row("a", toolset="my_task.broken"),
        row("b", reward="my_task.reward:missing"),
        row("c", toolset="elsewhere.tools"),
        broken="1 / 0\n",
    )
    assert [line.split(": ")[0] for line in faults(folder)] == [
        "task.jsonl:1",
        "task.jsonl:2",
        "task.jsonl:3",
    ]


def test_tasks_can_be_selected(folder: Path) -> None:
    write(folder, row("a"), row("b"), row("c"))
    with TaskBundle.load(folder) as bundle:
        assert [task.row.id for task in bundle.select(task_ids="c,0")] == ["c", "a"]
        assert [task.row.id for task in bundle.select(start_index=1, max_tasks=1)] == ["b"]


def test_many_rows_import_their_tools_once(folder: Path) -> None:
    count = "import my_task\nmy_task.loaded = getattr(my_task, 'loaded', 0) + 1\n"
    write(folder, *(row(f"r{i}") for i in range(2000)), tools=count + TOOLS)
    with TaskBundle.load(folder) as bundle:
        assert len(bundle.tasks) == 2000
        assert sys.modules["my_task"].loaded == 1
