"""A workflow folder for rollouts, from an example of the installed package.

The commands stay as they are. Their tools, which work on files of the example, are replaced by others that
call the tools of the rollout.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from reward_kit.agent.agents.fastworkflow.environment import FastWorkflowHome

DATA = '''\
"""The rollout that is being played takes the place of the example's files."""

import fastworkflow


def load_data():
    """What the tools call: the rollout of the workflow that is active in this thread."""
    return fastworkflow.get_active_workflow().context["reward_kit_tools"]
'''
TOOL = '''\
from .tool import Tool


class {name}(Tool):
    """Calls the tool `{tool}` of the rollout."""

    @staticmethod
    def invoke(data, **arguments):
        return data.call("{tool}", arguments)
'''
TRAINED = "___command_info"
"""Where the training of FastWorkflow puts what it has learned."""

_CLASS = re.compile(r"^class (\w+)\(Tool\)", re.MULTILINE)


def prepare_workflow(home: FastWorkflowHome, name: str) -> Path:
    """Copy the example ``name`` and turn its tools to rollouts; what was trained in an earlier copy stays.

    Raises ``UsageError`` for an example that is not there or is not built so that this is possible.
    """
    source = _example(home, name)
    data = _data_package(source, name)
    target = home.workflows / name
    kept = target.with_name(f"{name}.trained")
    if (target / TRAINED).is_dir():
        shutil.rmtree(kept, ignore_errors=True)
        (target / TRAINED).rename(kept)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "___*"))
    for file in (target / data).iterdir():
        file.unlink()
    (target / data / "__init__.py").write_text(DATA, encoding="utf-8")
    for file in _tools(target):
        found = _CLASS.search(file.read_text(encoding="utf-8"))
        if found is not None:
            file.write_text(TOOL.format(name=found.group(1), tool=file.stem), encoding="utf-8")
    if kept.is_dir():
        kept.rename(target / TRAINED)
    return target


def _example(home: FastWorkflowHome, name: str) -> Path:
    examples = home.package / "examples" if home.package else None
    names = sorted(path.parent.name for path in examples.glob("*/_commands")) if examples else []
    if examples is None or name not in names:
        raise UsageError(
            f"FastWorkflow has no example workflow {name!r}",
            remedy=f"There are {', '.join(names) or 'none'}.",
        )
    return examples / name


def _data_package(source: Path, name: str) -> str:
    """The package whose ``load_data`` gives the tools what they work on."""
    found = [
        file.parent.name
        for file in source.glob("*/__init__.py")
        if "def load_data" in file.read_text(encoding="utf-8")
    ]
    if len(found) != 1 or not _tools(source):
        raise UsageError(
            f"the example {name} has no tools of its own that could be turned to a rollout",
            remedy=f"{name} would need a folder tools/ and one package with load_data(), as retail_workflow.",
        )
    return found[0]


def _tools(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("tools/*.py") if file.stem not in ("tool", "__init__"))
