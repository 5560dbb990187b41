"""The contenders: the packages and the command of each, in separate virtual environments."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "harnesses"
FOLDER = Path(os.environ.get("PEERS_FOLDER", CHECKOUT / ".venv-peers")).resolve()
"""Folder of the environments, which take about 2 GB and minutes to make."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A harness as it is run.

    ``variant`` is what sets a second way of running it apart from the first. ``durable`` says what is on the
    disk once a rollout is over.
    """

    distribution: str
    version: str
    package: str
    command: str
    script: str
    durable: str
    variant: str = ""
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.distribution} {self.version}{', ' + self.variant if self.variant else ''}"

    @property
    def environment(self) -> Path:
        return FOLDER / f"{self.distribution}-{self.version}".replace(" ", "-")

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def run_line(self, *options: str) -> list[str]:
        """The command line of a run of its script."""
        return [str(self.python), str(SCRIPTS / self.script), *self.options, *options]

    def import_line(self) -> list[str]:
        """The command line that imports the package and ends."""
        return [str(self.python), "-c", f"import {self.package}"]

    def help_line(self) -> list[str]:
        """The command line that prints the help of its command; without one, nothing can be timed."""
        return [str(self.environment / "bin" / self.command), "--help"]


OURS = "this checkout"
_STORE = "outcome, trajectory, final state: SQLite, synced for each group of rollouts"
_ROW = "row with its messages: SQLite, not synced before the checkpoint"
CONTENDERS = (
    Contender("reward-kit", OURS, "reward_kit", "reward-kit", "with_reward_kit.py", _STORE),
    Contender(
        *("reward-kit", OURS, "reward_kit", "reward-kit", "with_reward_kit.py", _STORE),
        variant="--workers 2",
        options=("--workers", "2"),
    ),
    Contender(
        *("verifiers", "0.3.1", "verifiers", "vf-eval", "with_verifiers.py"),
        durable="a line of JSON with the messages, not synced",
    ),
    Contender(
        *("verifiers", "0.4.0", "verifiers", "", "with_verifiers_v1.py"),
        durable="an episode as a line of JSON, not synced",
    ),
    Contender(
        *("inspect-ai", "0.3.285", "inspect_ai", "inspect", "with_inspect.py"),
        durable="sample in a zip archive, for each 100 samples, not synced",
    ),
    Contender(
        *("eval-protocol", "0.3.33", "eval_protocol", "eval-protocol", "with_eval_protocol.py"),
        durable=_ROW + ", anew for each message",
    ),
    Contender(
        *("eval-protocol", "0.3.33", "eval_protocol", "eval-protocol", "with_eval_protocol.py"),
        durable=_ROW + ", when it begins, ends and is judged",
        variant="rows stored at the end",
        options=("--rows-at-end",),
    ),
    Contender(
        *("pydantic-evals", "2.62.0", "pydantic_evals", "", "with_pydantic_evals.py"),
        durable="nothing; the report as one JSON file at the end, by the script",
    ),
)


def make_environment(contender: Contender) -> str | None:
    """Make the environment unless it is there; the last line of what went wrong if it cannot be made."""
    ready = contender.environment / ".ready"
    if ready.exists():
        return None
    print(f"making {contender.environment}", file=sys.stderr)
    venv.create(contender.environment, with_pip=True, clear=True)
    install = [str(contender.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if contender.version == OURS:
        install += ["--constraint", str(CHECKOUT / "constraints.txt"), "--editable", str(CHECKOUT)]
    else:
        install += [f"{contender.distribution}=={contender.version}"]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    ready.touch()
    return None
