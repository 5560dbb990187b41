"""A page of the documentation as a reader follows it: files are written, commands run, output compared.

The word after a fence's language says what a block is::

    ```python title="my_task/tools.py"   a file to write
    ```bash                              commands to run, which succeed (``python`` likewise)
    ```bash fails                        commands to run, which do not
    ```bash server                       a command that goes on running, on port 8000
    ```text                              lines that the output of the block before has, in any order
"""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from command import Finished, free_port, listening, run_command, run_python, wait_for

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)(?: ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"[|<>&;$`*()]")
"""Signs of a block that only a shell can run."""
SECONDS = 90


@dataclass(frozen=True)
class Block:
    """A fenced block; its ``note`` is what follows the language."""

    language: str
    note: str
    text: str

    @property
    def title(self) -> str | None:
        """The file that the block is the content of."""
        found = re.fullmatch(r'title="(.+)"', self.note)
        return found[1] if found else None


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page that name a language."""
    return [Block(*match.groups("")) for match in FENCE.finditer(page.read_text(encoding="utf-8"))]


def files(page: Path) -> dict[str, str]:
    """The files that a page has, as they are at its end."""
    return {block.title: block.text for block in blocks(page) if block.title}


def table(text: str) -> list[list[str]]:
    """The cells of the first table in a text, without its header."""
    rows = re.search(r"^\|(?:.*\n)\|[-:| ]+\n((?:\|.*\n?)*)", text, re.MULTILINE)
    assert rows is not None, text[:200]
    return [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in rows[1].splitlines()]


def write_files(page: Path, folder: Path) -> None:
    """Write the files that a page has, and make their folders."""
    for title, text in files(page).items():
        (folder / title).parent.mkdir(parents=True, exist_ok=True)
        (folder / title).write_text(text, encoding="utf-8")


def follow(page: Path, folder: Path, environment: dict[str, str]) -> None:
    """Do in ``folder`` what the page says, block by block."""
    output = ""
    port = free_port()
    with ExitStack() as running:
        for block in blocks(page):
            text = block.text.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
            if block.title:
                (folder / block.title).write_text(text, encoding="utf-8")
            elif block.note == "server":
                running.enter_context(serving(f"{text.strip()} --port {port}", folder, environment, port))
            elif block.language == "text":
                missing = [line for line in text.splitlines() if plain(line) not in plain(output)]
                assert not missing, f"{missing} not in:\n{output}"
            elif block.language in ("python", "bash"):
                output = run(Block(block.language, block.note, text), folder, environment)


def run(block: Block, folder: Path, environment: dict[str, str]) -> str:
    """Run a block; returns what it printed."""
    code, output = 0, ""
    for done in _commands(block, folder, environment):
        code, output = done.code, f"{output}{done.out}{done.err}"
        if code != 0:
            break
    assert (code != 0) == (block.note == "fails"), f"{block.text}\n{output}"
    return output


def _commands(block: Block, folder: Path, environment: dict[str, str]) -> Iterator[Finished]:
    """Run a program, or the lines of a block one after the other; a shell runs what only it can."""
    if block.language == "python":
        yield run_python(block.text, folder, environment, SECONDS)
        return
    text = re.sub(r"(?m)(^|\s)# .*", "", block.text.replace("\\\n", ""))  # shlex takes that of ROW#1 for one
    lines = [shlex.split(line) for line in text.splitlines()]
    lines = [line for line in lines if line]
    if SHELL.search(block.text) or any(line[0] != "reward-kit" for line in lines):
        done = subprocess.run(
            ["bash", "-ec", block.text],
            cwd=folder, env=environment, text=True, timeout=SECONDS, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        yield Finished(done.returncode, done.stdout, "")
        return
    for line in lines:
        yield run_command(*line[1:], cwd=folder, env=environment, timeout=SECONDS)


def plain(text: str) -> str:
    """Table rules and columns do not count, nor how wide they are."""
    return " ".join(re.sub(r"[│|┃]", " | ", text).split())


@contextmanager
def serving(command: str, folder: Path, environment: dict[str, str], port: int) -> Iterator[None]:
    """``command`` in the background, from the moment that it answers on ``port``."""
    log = (folder / "server.log").open("wb")
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    try:
        wait_for(lambda: process.poll() is not None or listening(port))
        assert process.poll() is None, (folder / "server.log").read_text()
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
        log.close()
