"""Making FastWorkflow's environment, and running its own programs in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.agents.fastworkflow.environment import CONSTANTS, PACKAGES, PYTHON, FastWorkflowHome
from reward_kit.agent.agents.fastworkflow.prepare import prepare_workflow
from reward_kit.agent.agents.fastworkflow.settings import base_environment
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TRAINING_SETTING = re.compile(r"LLM_SYNDATA_GEN|LITELLM_\w+|INTENT_DETECTION_\w+|SYNTHETIC_UTTERANCE_\w+")


def install(home: FastWorkflowHome, python: str | None, workflow: str, pip_arguments: Sequence[str]) -> Path:
    """Make the environment unless it is there, and prepare ``workflow``; gives the workflow's folder.

    Raises ``UsageError`` where a Python is missing or the installation fails, whose output has been shown.
    """
    if not home.has_right_version:
        interpreter = find_python(python)
        home.folder.mkdir(parents=True, exist_ok=True)
        _run([interpreter, "-m", "venv", "--clear", str(home.venv)], "the environment cannot be made")
        # index and proxy are whatever the user has configured for pip
        pip = [str(home.python), "-m", "pip", "install", "--disable-pip-version-check"]
        _run([*pip, *pip_arguments, *PACKAGES], "pip cannot install FastWorkflow")
    return prepare_workflow(home, workflow)


def train(home: FastWorkflowHome, workflow: Path) -> None:
    """Run FastWorkflow's own training; its output goes to the terminal."""
    environment = base_environment()
    # Its command line wants settings and keys in files; these refer to the environment: no key is written.
    referred = sorted(
        name for name in environment if _TRAINING_SETTING.fullmatch(name) and name not in CONSTANTS
    )
    lines = [f'{name}="{environment[name]}"' for name in CONSTANTS]
    with tempfile.TemporaryDirectory() as folder:
        settings, keys = Path(folder, "settings.env"), Path(folder, "keys.env")
        settings.write_text("\n".join(lines) + "\n", encoding="utf-8")
        keys.write_text("".join(f"{name}=${{{name}}}\n" for name in referred), encoding="utf-8")
        program = [
            str(home.python),
            "-I",
            "-m",
            "fastworkflow.train",
            str(workflow),
            str(settings),
            str(keys),
        ]
        _run(program, "the training failed", environment=environment)


def find_python(python: str | None) -> str:
    """A Python that FastWorkflow runs on: the one asked for, this one, or one that is on the path."""
    if python is not None:
        found = shutil.which(python)
        if found is None:
            raise UsageError(f"--python {python}: there is no such program")
        return found
    oldest, newest = PYTHON
    if oldest <= sys.version_info[:2] <= newest:
        return sys.executable
    for minor in range(newest[1], oldest[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found is not None:
            return found
    raise UsageError(
        f"FastWorkflow runs on Python {_dotted(oldest)} to {_dotted(newest)}, and there is none",
        remedy="Install one and name it with --python.",
    )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _run(command: list[str], fault: str, *, environment: dict[str, str] | None = None) -> None:
    try:
        code = subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - our own arguments, no shell
    except OSError as error:
        raise UsageError(f"{fault}: {error}") from error
    if code != 0:
        raise UsageError(f"{fault} (exit code {code})", remedy="The reason is in its output above.")
