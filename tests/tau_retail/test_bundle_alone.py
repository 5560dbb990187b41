"""The bundle's folder is all that another machine with reward-kit needs."""

from __future__ import annotations

import ast
import shutil
import sys
from typing import TYPE_CHECKING

import pytest
from command import run_command
from places import BUNDLE, ROOT

if TYPE_CHECKING:
    from pathlib import Path

PUBLIC = {"reward_kit", "reward_kit.agent", "reward_kit.agent.rewards", "reward_kit.errors"}
MODULES = sorted(BUNDLE.glob("**/*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_import_only_public_names_of_reward_kit_pydantic_and_python_itself(path: Path) -> None:
    known = PUBLIC | {"pydantic"} | sys.stdlib_module_names
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
        for name in names:
            assert name in known or name.partition(".")[0] in sys.stdlib_module_names, name


def test_a_renamed_copy_of_the_folder_runs_from_anywhere_with_its_own_tools(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "my_shop"
    shutil.copytree(BUNDLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    # the original cannot be imported, even if it is installed
    (tmp_path / "tau_retail_task.py").write_text("raise ImportError('not the copy')\n", encoding="utf-8")
    kept = ["--output-dir", str(tmp_path / "runs")]
    options = ["--agent", "gold", "--max-tasks", "2", "--fail-under", "1", *kept]
    done = run_command("agent-eval", "--dataset", str(copy), *options, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    (copy / "tools" / "__init__.py").write_text("raise RuntimeError('tools of the copy')\n", encoding="utf-8")
    done = run_command("agent-eval", "--dataset", str(copy), *options, cwd=tmp_path)
    assert done.code == 2
    assert "tools of the copy" in done.err
