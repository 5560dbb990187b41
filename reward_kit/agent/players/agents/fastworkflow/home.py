"""FastWorkflow's own environment: it needs one, since its requirements conflict with common packages."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

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
