"""The bundle's folder is all that another machine with reward-kit needs."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from command import run_command
from places import BUNDLE
from small_sources import write_tau_bench

if TYPE_CHECKING:
    from pathlib import Path

MODULES = sorted([*BUNDLE.glob("*.py"), *BUNDLE.glob("tools/*.py"), *BUNDLE.glob("port/**/*.py")])


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


def test_a_renamed_copy_of_the_folder_runs_from_anywhere_with_its_own_tools(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "my_shop"
    shutil.copytree(BUNDLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    kept = ["--output-dir", str(tmp_path / "runs")]
    options = ["--agent", "gold", "--max-tasks", "2", "--fail-under", "1", *kept]
    done = run_command("agent-eval", "--dataset", str(copy), *options, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    (copy / "tools" / "__init__.py").write_text("raise RuntimeError('tools of the copy')\n", encoding="utf-8")
    done = run_command("agent-eval", "--dataset", str(copy), *options, cwd=tmp_path)
    assert done.code == 2
    assert "tools of the copy" in done.err


def test_a_renamed_copy_uses_its_own_code(tmp_path: Path) -> None:
    copy = tmp_path / "my_shop"
    shutil.copytree(BUNDLE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.jsonl"))
    checkout = write_tau_bench(tmp_path / "tau-bench")
    places = ["--from", str(checkout), "--out", str(tmp_path / "written")]
    command = [sys.executable, "-m", "my_shop.port", *places]
    # the original cannot be imported, even if it is installed
    (tmp_path / "tau_retail_task.py").write_text("raise ImportError('not the copy')\n", encoding="utf-8")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    row = {"id": "a", "toolset": ".tools", "initial_messages": [], "end_goal_sql": "SELECT 1", "actions": []}
    (copy / "task.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    options = ["--validate-only", "--output-dir", str(tmp_path / "runs")]
    done = run_command("agent-eval", "--dataset", "my_shop", *options, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
