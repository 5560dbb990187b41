"""The page about local models, followed word by word, with a stand-in for vLLM."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pages import ROOT, follow, write_files

# fake_server and model_files are importable from here as well.
sys.path.insert(0, str(ROOT / "tests" / "agent" / "local_models"))

from fake_server import Behaviour, all_gone, install, starts
from model_files import model_folder

from reward_kit.agent.models.local import backends, guard, recognise, server
from reward_kit.agent.models.local.recognise import LocalFile

PAGE = ROOT / "docs" / "local-models.md"
SEATED = [
    {"tool_calls": [{"name": "take_seat", "arguments": {"number": 2, "passenger": "Alice"}}]},
    "Alice has seat 2.",
]


@pytest.mark.timeout(300)
def test_every_command_does_what_the_page_says(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "seat_task").mkdir()
    write_files(ROOT / "README.md", tmp_path)
    model_folder(tmp_path / "models" / "Qwen3-0.6B")
    record = install(tmp_path / "bin", "vllm", Behaviour(answers=SEATED))
    places = [Path(sys.executable).parent, tmp_path / "bin", "/usr/bin", "/bin"]
    follow(PAGE, tmp_path, {**environment, "PATH": os.pathsep.join(map(str, places))})
    assert len(starts(record)) == 1
    assert all_gone(record)


def test_every_program_is_named_with_how_to_get_it() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| a ")]
    assert len(rows) == len(backends.BACKENDS)
    for row, backend in zip(rows, backends.BACKENDS, strict=True):
        assert f"| `{backend.name}` | " in row
        assert backend.install in row
        assert row.startswith("| a folder" if backend.kind == "folder" else "| a `.gguf` file")


def test_the_command_lines_are_those_of_the_code(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", template="<tool_call>")
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(recognise.GGUF_MAGIC)
    text = PAGE.read_text()
    for backend in backends.BACKENDS:
        file = LocalFile.find(str(folder if backend.kind == "folder" else gguf))
        line = backend.command(["/none"], file, tmp_path / "link", 1)
        for argument in (argument for argument in line if argument.startswith("--")):
            assert f"{argument} " in text or f"{argument}`" in text, argument


def test_every_variable_and_number_is_there() -> None:
    text = PAGE.read_text()
    for variable in (backends.SERVER, backends.ARGUMENTS, server.TIMEOUT):
        assert f"| `{variable}` |" in text
    assert f"default {server.DEFAULT_TIMEOUT:g}" in text
    assert f"a line every {server.SECONDS_BETWEEN_NOTES:g} seconds" in text
    assert f"SIGKILL after {guard.GRACE:g} seconds" in text
    for sign, parser in backends.TOOL_CALLS_IN_TEMPLATE:
        assert f"`{sign}`: `{parser}`" in " ".join(text.split())
