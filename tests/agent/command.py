"""``python -m reward_kit`` and ``python -c`` as processes of their own, without the slow imports.

One process that has made these imports forks for each command of all processes that run tests. Anything that
depends on how Python begins (its options and variables, Ctrl-C meanwhile) is tested with a new Python.
"""

import atexit
import gc
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from forked_command import ask, connected
from thorough import THOROUGH

IMPORTED = (
    "anyio._backends._asyncio",
    "reward_kit.agent.after.export",
    "reward_kit.agent.bundles.bundle",
    "reward_kit.agent.bundles.new_bundle",
    "reward_kit.agent.checks.deep_check",
    "reward_kit.agent.comparison.compare",
    "reward_kit.agent.database.overlay_store",
    "reward_kit.agent.database.recorder",
    "reward_kit.agent.database.sqlalchemy_api",
    "reward_kit.agent.evaluation.in_process",
    "reward_kit.agent.evaluation.run",
    "reward_kit.agent.evaluation.workers",
    "reward_kit.agent.players.agents.replay",
    "reward_kit.agent.players.agents.http_agent",
    "reward_kit.agent.reports.console",
    "reward_kit.agent.reports.pages.site",
    "reward_kit.agent.base.printing",
    "reward_kit.agent.scoring.sequential",
    "reward_kit.agent.scoring.user_faults",
    "reward_kit.agent.servers.app",
    "reward_kit.agent.tools.registry",
    "reward_kit.cli.agent_eval",
    "reward_kit.cli.bundle",
    "reward_kit.cli.compare",
    "reward_kit.cli.db",
    "reward_kit.cli.export",
    "reward_kit.cli.judging",
    "reward_kit.cli.play",
    "reward_kit.cli.port",
    "reward_kit.cli.serving",
    "reward_kit.cli.show",
    "reward_kit.cli.validate",
    "reward_kit.typed_interface",
    "starlette.middleware.trustedhost",
    "uvicorn.lifespan.on",
    "uvicorn.loops.asyncio",
    "uvicorn.protocols.http.h11_impl",
)
WITH_LITELLM = {"COMMANDS_WITH": "LiteLLM"}
"""In the environment of commands that import LiteLLM, which takes seconds: another process forks them."""
IDLE = 5.0
"""Seconds after which the process that forks ends, once nobody is connected."""


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


Command = Callable[..., Finished]
"""A command with these arguments, run to its end."""
Starter = Callable[..., "subprocess.Popen[str]"]
"""A command with these arguments, started."""


def run_command(
    *arguments: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] = os.environ,
    timeout: float = 100,
    typed: str = "",
) -> Finished:
    """Run ``reward-kit`` with these arguments to its end; ``typed`` is all of its standard input."""
    return _run(["-m", "reward_kit", *map(str, arguments)], cwd, env, timeout, typed)


def run_patched(constants: Mapping[str, object], *arguments: str | Path, **options: Any) -> Finished:
    """Run ``reward-kit`` with other values of these constants, such as a shorter time limit."""
    lines = ["import importlib, sys", "from reward_kit.cli import main"]
    for path, value in constants.items():
        module, _, name = path.rpartition(".")
        lines.append(f"setattr(importlib.import_module({module!r}), {name!r}, {value!r})")
    lines.append(f"sys.exit(main({[*map(str, arguments)]!r}))")
    return run_python("\n".join(lines), **options)


def run_python(code: str, cwd: Path | None = None, env: Any = os.environ, timeout: float = 100) -> Finished:
    """Run a program to its end, with nothing on its standard input."""
    return _run(["-c", code], cwd, env, timeout)


def run_on_terminal(*arguments: str | Path, columns: int, cwd: Path, env: Mapping[str, str]) -> str:
    """Run ``reward-kit`` on a terminal of this width and 24 lines; returns all that it wrote there."""
    import fcntl  # not on Windows
    import termios

    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
    line = ["-m", "reward_kit", *map(str, arguments)]
    told = ask(_connection(), line, str(cwd), {**env, "TERM": "xterm-256color"}, [slave] * 3)
    next(told)
    os.close(slave)
    written = b""
    with suppress(OSError):  # the end of a terminal
        while part := os.read(master, 65536):
            written += part
    os.close(master)
    list(told)
    return written.decode()


def new_python(*arguments: str | Path, **options: Any) -> Finished:
    """Run a Python that has imported nothing to its end; ``options`` are those of ``subprocess.run``."""
    line = [sys.executable, *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, **{"timeout": 60, **options})
    return Finished(done.returncode, done.stdout, done.stderr)


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Start ``reward-kit``; its output and errors can be read. In a thorough run it is a new Python."""
    kind = subprocess.Popen if THOROUGH or not _can_fork(options.get("env") or os.environ) else Forked
    line = [sys.executable, "-m", "reward_kit", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return kind(line, text=True, **{**pipes, **options})


class Forked(subprocess.Popen[str]):
    """A command that another process has forked, used like a child of this process."""

    def _execute_child(self, args: list[str], *given: Any) -> None:
        cwd, env, (typed, _, _, out, _, err) = given[4], given[5], given[9:15]
        _connection()
        self._asked = connected(_address())
        files = [number if file == -1 else file for number, file in enumerate((typed, out, err))]
        self._told = ask(self._asked, args[1:], str(cwd or Path.cwd()), env or os.environ, files)
        self.pid = next(self._told)
        self._close_pipe_fds(*given[9:15])

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not select.select([self._asked], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = next(self._told)
            self._asked.close()
        return self.returncode

    def _internal_poll(self, *_: Any) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode


@contextmanager
def serving(*arguments: str, **options: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``reward-kit`` with these arguments while it runs, and the address that it has printed."""
    process = start(*arguments, **options)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[0]
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listening(port: int) -> bool:
    """Somebody listens on this port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for(happened: Callable[[], Any], process: subprocess.Popen[Any] | None = None) -> None:
    """Return when this has happened, or fail: after a minute, or when the process has ended before."""
    end = time.monotonic() + 60
    while not happened():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended. On Linux."""
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    """True if a process has ended, whoever has yet to take notice of it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self").exists():
            return True
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False
    return state == "Z"


def _run(
    line: list[str], cwd: Path | None, env: Mapping[str, str], timeout: float, typed: str = ""
) -> Finished:
    if not _can_fork(env):
        alone = {"cwd": cwd, "env": env, "input": typed, "errors": "replace"}
        return new_python(*line, timeout=timeout, **alone)
    with (
        tempfile.TemporaryFile() if typed else Path(os.devnull).open("rb") as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        if typed:
            given.write(typed.encode())
            given.seek(0)
        connection = _connection(env.get(*WITH_LITELLM, ""))
        connection.settimeout(None)
        files = [file.fileno() for file in (given, out, err)]
        told = ask(connection, line, str(cwd or Path.cwd()), env, files)
        command = next(told)
        connection.settimeout(timeout)
        try:
            code = next(told)
        except TimeoutError:
            os.killpg(command, signal.SIGKILL)
            _connection.cache_clear()
            raise subprocess.TimeoutExpired(line, timeout) from None
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
    return Finished(code, *said)


def _can_fork(env: Mapping[str, str]) -> bool:
    return hasattr(os, "fork") and _of_python(env) == _of_python(os.environ)


def _of_python(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python looks at when it begins."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


def stand_in(folder: Path) -> None:
    """Write programs ``reward-kit`` and ``python`` for shells, which have their commands forked."""
    _connection()
    begin = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nimport forked_command\n"
    for name, arguments in (("reward-kit", ("-m", "reward_kit")), ("python", ())):
        program = folder / name
        called = (_address(), *arguments)
        program.write_text(f"#!{sys.executable} -IS\n{begin}forked_command.stand_in(*{called!r})\n")
        program.chmod(0o755)


def _address(more: str = "") -> str:
    """The socket of the process that forks; it is another one for each run of the tests."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    return str(Path(tempfile.gettempdir(), f"commands-{run[:16]}{more}"))


@cache
def _connection(more: str = "") -> socket.socket:
    """A connection to the process that forks, which the first to need it starts; ``more`` it imports, too."""
    import fcntl  # not on Windows

    with Path(__file__).open() as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        with suppress(OSError):
            return connected(_address(more))
        line = [sys.executable, __file__, _address(more), more]
        # Pipes: a stream that Python has found seekable once must not become one that is not.
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        server = subprocess.Popen(line, **pipes)
        assert server.stdout is not None
        said = server.stdout.readline()
        assert said == b"ready\n", said + server.stdout.read()
        return connected(_address(more))


def _serve(address: str, more: str) -> list[str]:
    """Fork for each command; returns, in each process that is to be one, its command line."""
    gc.disable()
    for module in IMPORTED:
        importlib.import_module(module)
    if more:
        importlib.import_module("reward_kit.agent.models.litellm_library").import_litellm()
    if importlib.util.find_spec("mcp") is not None:
        importlib.import_module("reward_kit.agent.servers.mcp_server")
    adapter_of = sys.modules["reward_kit.agent.base.encoding"].adapter_of  # made once, at their first use
    adapter_of(sys.modules["reward_kit.agent.rollout.trace"].Trace)
    adapter_of(sys.modules["reward_kit.agent.rows.task_row"].TaskRow)
    importlib.import_module("reward_kit.agent.base.versions").versions()  # likewise
    gc.freeze()
    gc.enable()
    Path(address).unlink(missing_ok=True)
    served: list[int] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        listener.settimeout(IDLE)
        os.write(1, b"ready\n")
        while True:
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                served.append(os.fork())
                if served[-1] == 0:
                    listener.close()
                    return _fork_for(connection)
                connection.close()
                continue
            served = [child for child in served if os.waitpid(child, os.WNOHANG)[0] == 0]
            if not served:
                Path(address).unlink()
                os._exit(0)


def _fork_for(connection: socket.socket) -> list[str]:
    """Serve a connection with one command after the other, as ``_serve`` does."""
    with suppress(ConnectionError):  # it is closed while a command runs
        while files := socket.recv_fds(connection, 1, 3)[1]:
            with connection.makefile("rb") as request:
                asked = json.loads(request.readline())
            child = os.fork()
            if child == 0:
                os.setsid()
                os.write(connection.fileno(), b"%d\n" % os.getpid())
                connection.close()
                _become(asked, files)
                line: list[str] = asked["line"]
                return line
            for file in files:
                os.close(file)
            _, status = os.waitpid(child, 0)
            connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(asked: dict[str, Any], files: list[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    sys.path[0] = asked["cwd"]
    time.tzset()


def _exit_soon(code: object) -> None:
    """Exit as Python does, but for taking all modules apart, which takes longer than most commands.

    Returns, so that Python itself exits, in a thorough run and where its exit says more than a number.
    """
    if THOROUGH or not isinstance(code, int | None):
        return
    threading._shutdown()  # type: ignore[attr-defined] # as Python does at its end
    atexit._run_exitfuncs()
    gc.collect()  # whose garbage may have something to say
    with suppress(OSError, ValueError):
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    option, *arguments = _serve(*sys.argv[1:])
    program = arguments.pop(0) if option in ("-m", "-c") else option
    sys.argv[1:] = arguments
    try:
        if option == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        elif option != "-c":
            runpy.run_path(program, run_name="__main__")
        else:
            module = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(program, "<string>", "exec"), module.__dict__)
    except SystemExit as ended:
        _exit_soon(ended.code)
        raise
    _exit_soon(0)
