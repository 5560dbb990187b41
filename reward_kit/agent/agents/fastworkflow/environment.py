"""Where FastWorkflow lives: an environment of its own, since its requirements clash with everybody's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HOME_VARIABLE = "REWARD_KIT_FASTWORKFLOW"
VERSION = "2.30"
PACKAGES = ("fastworkflow[training]==2.30.*", "dspy==3.4.1", "litellm==1.106.2")
"""What is installed. DSPy and LiteLLM are pinned: the worker relies on the one, and pip would try dozens of
releases of the other, 37 MB each, before it finds one that fits.
"""
PYTHON = ((3, 11), (3, 13))
"""Oldest and newest Python that the package takes."""

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
"""Settings that FastWorkflow cannot do without and nobody wants to choose; the environment overrides them."""


@dataclass(frozen=True, slots=True)
class FastWorkflowHome:
    """The folder that ``reward-kit fastworkflow setup`` fills: ``venv/`` and ``workflows/NAME/``."""

    folder: Path

    @classmethod
    def find(cls, folder: str | Path | None = None) -> FastWorkflowHome:
        """``folder``, or what ``REWARD_KIT_FASTWORKFLOW`` names, or the place in the user's cache."""
        given = folder or os.environ.get(HOME_VARIABLE)
        if given:
            return cls(Path(given).expanduser().absolute())
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return cls(Path(cache) / "reward-kit" / "fastworkflow")

    @property
    def venv(self) -> Path:
        return self.folder / "venv"

    @property
    def python(self) -> Path:
        """The interpreter of the environment, whether it is there or not."""
        if os.name == "nt":
            return self.venv / "Scripts" / "python.exe"
        return self.venv / "bin" / "python"

    @property
    def version(self) -> str | None:
        """The installed version of FastWorkflow; None where there is none."""
        for pattern in ("lib/python3.*/site-packages", "Lib/site-packages"):
            for found in self.venv.glob(f"{pattern}/fastworkflow-*.dist-info"):
                return found.name.removesuffix(".dist-info").partition("-")[2]
        return None

    @property
    def package(self) -> Path | None:
        """The folder of the installed package."""
        for pattern in ("lib/python3.*/site-packages", "Lib/site-packages"):
            for found in self.venv.glob(f"{pattern}/fastworkflow"):
                return found
        return None

    @property
    def workflows(self) -> Path:
        return self.folder / "workflows"

    def workflow(self) -> Path | None:
        """The prepared workflow; where there are several, the retail one, else the first by name."""
        names = sorted(path.name for path in self.workflows.glob("*") if (path / "_commands").is_dir())
        if DEFAULT_WORKFLOW in names:
            return self.workflows / DEFAULT_WORKFLOW
        return self.workflows / names[0] if names else None

    @property
    def has_right_version(self) -> bool:
        version = self.version
        return version is not None and version.split(".")[:2] == VERSION.split(".")


def commands_of(workflow: Path) -> set[str]:
    """The commands that a workflow folder declares, each by the name that the agent uses for it."""
    folder = workflow / "_commands"
    return {
        path.stem for path in folder.rglob("*.py") if not path.name.startswith("_") and path.stem != "startup"
    }
