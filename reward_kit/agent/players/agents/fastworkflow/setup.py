"""FastWorkflow in a separate environment: its folder, installation, workflow and training.

Its requirements conflict with common packages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

HOME_VARIABLE = "REWARD_KIT_FASTWORKFLOW"
VERSION = "2.30"
PACKAGES = ("fastworkflow[training]==2.30.*", "dspy==3.4.1", "litellm==1.106.2")
"""Packages to install. DSPy and LiteLLM are pinned: the worker program depends on the one, and pip would try
dozens of releases of the other, 37 MB each.
"""
DEFAULT_WORKFLOW = "retail_workflow"
CONSTANTS = {
    "SPEEDDICT_FOLDERNAME": "___workflow_contexts",
    "SYNTHETIC_UTTERANCE_GEN_NUMOF_PERSONAS": "4",
    "SYNTHETIC_UTTERANCE_GEN_UTTERANCES_PER_PERSONA": "5",
    "SYNTHETIC_UTTERANCE_GEN_PERSONAS_PER_BATCH": "1",
    "MISSING_INFORMATION_ERRMSG": "Missing parameter values: ",
    "INVALID_INFORMATION_ERRMSG": "Invalid parameter values: ",
    "NOT_FOUND": "NOT_FOUND",
    "INVALID": "INVALID",
    "PARAMETER_EXTRACTION_ERROR_MSG": "Error in parameter extraction: {error}",
}
"""Settings that FastWorkflow requires; the environment overrides them."""


@dataclass(frozen=True, slots=True)
class FastWorkflowHome:
    """The folder that ``reward-kit fastworkflow setup`` fills: ``venv/`` and ``workflows/NAME/``."""

    folder: Path

    @classmethod
    def find(cls, folder: str | Path | None = None) -> FastWorkflowHome:
        """Return ``folder``, or the one in ``REWARD_KIT_FASTWORKFLOW``, or the one in the user's cache."""
        given = folder or os.environ.get(HOME_VARIABLE)
        if given:
            return cls(Path(given).expanduser().absolute())
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return cls(Path(cache) / "reward-kit" / "fastworkflow")

    @property
    def venv(self) -> Path:
        """The folder of the virtual environment."""
        return self.folder / "venv"

    @property
    def python(self) -> Path:
        """The environment's interpreter, which may not exist yet."""
        return self.venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    @property
    def version(self) -> str | None:
        """The installed version of FastWorkflow, if any."""
        found = self._installed("fastworkflow-*.dist-info")
        return found.name.removesuffix(".dist-info").partition("-")[2] if found else None

    @property
    def has_right_version(self) -> bool:
        """True if ``VERSION`` is installed."""
        return f"{self.version}.".startswith(f"{VERSION}.")

    @property
    def package(self) -> Path | None:
        """The folder of the installed package."""
        return self._installed("fastworkflow")

    @property
    def workflows(self) -> Path:
        """The folder of the prepared workflows."""
        return self.folder / "workflows"

    def workflow(self) -> Path:
        """Return the prepared workflow: the retail one, else the first by name; it may not exist yet."""
        retail = self.workflows / DEFAULT_WORKFLOW
        prepared = sorted(path.parent for path in self.workflows.glob("*/_commands"))
        return retail if retail in prepared or not prepared else prepared[0]

    def internal_workflows(self) -> list[Path]:
        """The workflows of the installed package itself, which training covers as well."""
        found = self.package.glob("_workflows/*/_commands") if self.package else ()
        return sorted(path.parent for path in found)

    def _installed(self, pattern: str) -> Path | None:
        places = ("lib/python3.*/site-packages", "Lib/site-packages")
        return next((found for place in places for found in self.venv.glob(f"{place}/{pattern}")), None)


def base_environment() -> dict[str, str]:
    """Return FastWorkflow's constants, overridden by this process's environment."""
    return {**CONSTANTS, **os.environ}


TRAINED, KEPT = "___command_info", "kept_training"
"""Folders of trained models: in a workflow, and beside the environment while it is made anew."""
_REMEDY = "FastWorkflow needs Python 3.11 to 3.13; name one with --python."

DATA = '''\
"""The current rollout, in place of the example's data files."""

import fastworkflow


def load_data():
    """Return the rollout of the workflow that is active in this thread."""
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

_CLASS = re.compile(r"^class (\w+)\(Tool\)", re.MULTILINE)
_TRAINING_SETTING = re.compile(r"LLM_SYNDATA_GEN|LITELLM_\w+|INTENT_DETECTION_\w+|SYNTHETIC_UTTERANCE_\w+")


def install(home: FastWorkflowHome, python: str | None, workflow: str, pip_arguments: Sequence[str]) -> Path:
    """Make the environment unless it exists, prepare ``workflow``, and return the workflow's folder.

    Raises ``UsageError`` if there is no such Python or the installation fails; its output is shown.
    """
    if not home.has_right_version:
        home.folder.mkdir(parents=True, exist_ok=True)
        for internal in home.internal_workflows():  # their training is in the environment, which is cleared
            if any(internal.glob(f"{TRAINED}/*/threshold.json")):
                kept = home.folder / KEPT / internal.name
                shutil.copytree(internal / TRAINED, kept, dirs_exist_ok=True)
        make = (python or sys.executable, "-m", "venv", "--clear", home.venv)
        _run(*make, fault="the environment cannot be created", remedy=_REMEDY)
        # pip uses the index and proxy that the user has configured
        pip = (home.python, "-m", "pip", "install", "--disable-pip-version-check")
        _run(*pip, *pip_arguments, *PACKAGES, fault="pip cannot install FastWorkflow", remedy=_REMEDY)
    _restore_training(home)
    return prepare_workflow(home, workflow)


def _restore_training(home: FastWorkflowHome) -> None:
    """Put back what was kept; an installation that failed is made up for by the next one."""
    for internal in home.internal_workflows():
        kept = home.folder / KEPT / internal.name
        for context in kept.glob("*/"):
            # copied without its times: training older than the commands counts as out of date
            target = internal / TRAINED / context.name
            shutil.copytree(context, target, copy_function=shutil.copyfile, dirs_exist_ok=True)
    shutil.rmtree(home.folder / KEPT, ignore_errors=True)


def train(home: FastWorkflowHome) -> None:
    """Run FastWorkflow's own training, with its output on the terminal."""
    environment = base_environment()
    # Its command line reads settings and keys from files; keys refer to the environment, none is written.
    referred = sorted(filter(_TRAINING_SETTING.fullmatch, environment.keys() - CONSTANTS.keys()))
    with tempfile.TemporaryDirectory() as folder:
        settings, keys = Path(folder, "settings.env"), Path(folder, "keys.env")
        settings.write_text(
            "".join(f'{name}="{environment[name]}"\n' for name in CONSTANTS), encoding="utf-8"
        )
        keys.write_text("".join(f"{name}=${{{name}}}\n" for name in referred), encoding="utf-8")
        program = (home.python, "-I", "-m", "fastworkflow.train")
        _run(*program, home.workflow(), settings, keys, fault="the training failed", environment=environment)


def prepare_workflow(home: FastWorkflowHome, name: str) -> Path:
    """Copy the example ``name`` and make its tools call those of rollouts; earlier training is kept.

    The commands stay unchanged. Their tools, which work on the example's files, are replaced. Raises
    ``UsageError`` if the example does not exist or has another structure.
    """
    source = _example(home, name)
    data = _data_package(source, name)
    target = home.workflows / name
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "___*"), dirs_exist_ok=True)
    shutil.rmtree(target / data)
    (target / data).mkdir()
    (target / data / "__init__.py").write_text(DATA, encoding="utf-8")
    for file in target.glob("tools/*.py"):
        found = _CLASS.search(file.read_text(encoding="utf-8"))
        if found is not None:
            file.write_text(TOOL.format(name=found.group(1), tool=file.stem), encoding="utf-8")
    return target


def _example(home: FastWorkflowHome, name: str) -> Path:
    found = home.package.glob("examples/*/_commands") if home.package else []
    examples = {path.parent.name: path.parent for path in found}
    if name not in examples:
        names = ", ".join(sorted(examples)) or "none"
        raise UsageError(f"FastWorkflow has no example workflow {name!r}", remedy=f"There are {names}.")
    return examples[name]


def _data_package(source: Path, name: str) -> str:
    """Return the package whose ``load_data`` provides the tools' data."""
    found = [
        file.parent.name
        for file in source.glob("*/__init__.py")
        if "def load_data" in file.read_text(encoding="utf-8")
    ]
    if len(found) != 1 or not (source / "tools").is_dir():
        raise UsageError(
            f"the example {name} has no tools that could call those of a rollout",
            remedy=f"{name} needs a folder tools/ and one package with load_data(), as retail_workflow has.",
        )
    return found[0]


def _run(
    *command: str | Path, fault: str, remedy: str = "", environment: dict[str, str] | None = None
) -> None:
    try:
        code = subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - no shell
    except OSError as error:
        raise UsageError(f"{fault}: {error}", remedy=remedy) from error
    if code != 0:
        raise UsageError(f"{fault} (exit code {code})", remedy=f"See its output above. {remedy}".strip())
