"""``python -m reward_kit`` and ``python -c`` as processes of their own, without the slow imports.

A process that has made these imports, one for each that runs tests, forks for each command. Anything that
depends on how Python begins (its options and variables, Ctrl-C meanwhile) is tested with a new Python.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

IMPORTED = (
    "reward_kit.agent.agents.gold",
    "reward_kit.agent.bundles.bundle",
    "reward_kit.agent.comparison.compare",
    "reward_kit.agent.database.overlay_store",
    "reward_kit.agent.database.recorder",
    "reward_kit.agent.database.sqlalchemy_api",
    "reward_kit.agent.runner.evaluation",
    "reward_kit.agent.runner.in_process",
    "reward_kit.agent.reports.console",
    "reward_kit.agent.reports.tables",
    "reward_kit.agent.tools.registry",
    "reward_kit.agent.servers.app",
    "reward_kit.cli_commands.agent_eval",
    "reward_kit.cli_commands.compare",
    "reward_kit.cli_commands.export",
    "reward_kit.cli_commands.rescore",
    "reward_kit.cli_commands.show",
    "reward_kit.typed_interface",
)
STREAMS = {1: "out", 2: "err"}


@dataclass
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one message: everything on stderr, which must hold no traceback."""
        assert "Traceback" not in self.err, self.err
        return self.err


def run_command(
    *arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] = os.environ, timeout: float = 100
) -> Finished:
    """Run ``reward-kit`` with these arguments to its end, with nothing on its standard input."""
    return _run(["-m", "reward_kit", *map(str, arguments)], cwd, env, timeout)


def run_python(code: str, cwd: Path | None = None, env: Any = os.environ, timeout: float = 100) -> Finished:
    """Run a program to its end, with nothing on its standard input."""
    return _run(["-c", code], cwd, env, timeout)


def new_python(*arguments: str | Path, **options: Any) -> Finished:
    """Run a Python that has imported nothing to its end; ``options`` are those of ``subprocess.run``."""
    line = [sys.executable, *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, **{"timeout": 60, **options})
    return Finished(done.returncode, done.stdout, done.stderr)


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Start ``reward-kit`` in a Python of its own, whose output and errors can be read."""
    line = [sys.executable, "-m", "reward_kit", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(line, text=True, **{**pipes, **options})


def _run(line: list[str], cwd: Path | None, env: Mapping[str, str], timeout: float) -> Finished:
    if not hasattr(os, "fork") or _of_python(env) != _of_python(os.environ):
        alone = {"cwd": cwd, "env": env, "stdin": subprocess.DEVNULL, "errors": "replace"}
        return new_python(*line, timeout=timeout, **alone)
    with tempfile.TemporaryDirectory() as folder:
        asked = {"line": line, "cwd": str(cwd or Path.cwd()), "env": dict(env), "output": folder}
        code = _ready().run(asked, timeout)
        out, err = (Path(folder, name).read_text(errors="replace") for name in STREAMS.values())
    return Finished(code, out, err)


def _of_python(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python looks at when it begins."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


class _Ready:
    """The process that forks; it is asked for one command after the other."""

    def __init__(self) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen([sys.executable, __file__], bufsize=0, **pipes)
        atexit.register(self._process.communicate)

    def run(self, asked: dict[str, Any], timeout: float) -> int:
        given, answers = self._process.stdin, self._process.stdout
        assert given is not None
        assert answers is not None
        given.write(json.dumps(asked).encode() + b"\n")
        given.flush()
        command = int(answers.readline())
        if not select.select([answers], [], [], timeout)[0]:
            os.killpg(command, signal.SIGKILL)
            answers.readline()
            raise subprocess.TimeoutExpired(asked["line"], timeout)
        return int(answers.readline())


@cache
def _ready() -> _Ready:
    return _Ready()


def _serve() -> list[str]:
    """Fork for each command; returns, in each process that is to be one, its command line."""
    for module in IMPORTED:
        importlib.import_module(module)
    gc.freeze()
    for text in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            os.setsid()
            os.write(1, b"%d\n" % os.getpid())
            asked = json.loads(text)
            _become(asked)
            line: list[str] = asked["line"]
            return line
        _, status = os.waitpid(child, 0)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(asked: dict[str, Any]) -> None:
    for number, name in STREAMS.items():
        file = os.open(Path(asked["output"], name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 - the one before has read ahead
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    sys.path[0] = asked["cwd"]
    time.tzset()


if __name__ == "__main__":
    option, program, *arguments = _serve()
    sys.argv[1:] = arguments
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), module.__dict__)
