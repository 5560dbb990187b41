"""A stand-in for the programs that serve models, put on the PATH under their names by ``install``.

It writes down how it was called, takes its time, and answers like an OpenAI-compatible server; or it
misbehaves.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from command import gone

HELP = "Usage: transformers serve [OPTIONS] [FORCE_MODEL]"


@dataclass
class Behaviour:
    """What the fake does.

    ``delay``: seconds until it is ready, and as long it answers 503. ``dies``: its last words; it ends before
    it is ready. ``never``: it is never ready. ``stubborn``: SIGTERM does not end it. ``child``: it has a
    child process. ``answers``: as in ``StubServer.script``.
    """

    delay: float = 0.0
    never: bool = False
    dies: str | None = None
    stubborn: bool = False
    child: bool = False
    answers: Any = field(default_factory=lambda: ["Hello."])


def install(folder: Path, name: str, behaviour: Behaviour) -> Path:
    """Write the program ``name`` into ``folder``; returns the file that gets a line per start."""
    folder.mkdir(exist_ok=True)
    record = folder / f"{name}.starts"
    program = folder / name
    here = Path(__file__).parent
    settings = json.dumps(asdict(behaviour))
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        f"sys.path[:0] = [{str(here)!r}, {str(here.parent)!r}]\n"
        "import fake_server\n"
        f"fake_server.main(fake_server.Behaviour(**json.loads({settings!r})), {str(record)!r})\n"
    )
    program.chmod(0o755)
    return record


def starts(record: Path) -> list[dict[str, Any]]:
    """How a program was started: its arguments, its process and that of its child."""
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def all_gone(record: Path) -> bool:
    """Wait until everything that was started has ended; whether that came true within a generous time."""
    pids = [pid for start in starts(record) for pid in (start["pid"], start["child"]) if pid]
    deadline = time.monotonic() + 30
    while not all(map(gone, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def main(behaviour: Behaviour, record: str) -> None:
    if "--help" in sys.argv:
        print(HELP)
        return
    child = subprocess.Popen(["sleep", "1000"]).pid if behaviour.child else None
    with Path(record).open("a") as file:
        file.write(json.dumps({"arguments": sys.argv[1:], "pid": os.getpid(), "child": child}) + "\n")
    if behaviour.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour.dies is not None:
        print("loading weights\r\x1b[32m100%\x1b[0m", file=sys.stderr)
        sys.exit(behaviour.dies)
    if behaviour.never:
        time.sleep(1000)
    port = int(after("--port"))
    load(port, behaviour.delay)
    serve(port, behaviour)


def load(port: int, seconds: float) -> None:
    """Say 503 to everybody for some time."""

    class Loading(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(503, "Loading model")

        def log_message(self, *arguments: Any) -> None:
            pass

    if seconds:
        with HTTPServer(("127.0.0.1", port), Loading) as server:
            Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            time.sleep(seconds)
            server.shutdown()


def serve(port: int, behaviour: Behaviour) -> None:
    from stub_server import StubServer

    StubServer(port).script(served_name(), behaviour.answers)
    signal.pause()


def served_name() -> str:
    """The name under which the real programs would know the model."""
    for flag in ("--served-model-name", "--alias", "--force-model"):
        if flag in sys.argv:
            return after(flag)
    return sys.argv[2]


def after(flag: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1]
