"""The bundle's folder is all that another machine with reward-kit needs."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from typing import TYPE_CHECKING

import pytest
from command import run_command
from places import BUNDLE

if TYPE_CHECKING:
    from pathlib import Path

MODULES = sorted([*BUNDLE.glob("*.py"), *BUNDLE.glob("tools/*.py")])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(BUNDLE)))
def test_modules_import_nothing_but_reward_kit_its_dependency_pydantic_and_python_itself(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
        for name in names:
            top = name.partition(".")[0]
            assert top in sys.stdlib_module_names | {"reward_kit", "pydantic"}, name


def test_a_copy_of_the_folder_runs_from_anywhere(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "tau_retail_task"
    shutil.copytree(BUNDLE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.jsonl"))
    row = {
        "id": "retail.cancel",
        "toolset": "tau_retail_task.tools",
        "system_prompt": "file:policy.md",
        "initial_messages": [{"role": "user", "content": "Cancel my order, please."}],
        "actions": [
            {
                "name": "cancel_pending_order",
                "arguments": {"order_id": "#W1080318", "reason": "no longer needed"},
            }
        ],
        "outputs": ["53.43"],
    }
    (copy / "task.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    options = ["--agent", "gold", "--output-dir", str(tmp_path / "runs"), "--keep-db", "full"]
    done = run_command("agent-eval", "--dataset", str(copy), "--fail-under", "1", *options, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert list(tmp_path.glob("runs/retail.cancel/roll_*.db"))
