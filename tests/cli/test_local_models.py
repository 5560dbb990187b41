"""``--model /path`` from a person's side: whatever becomes of the evaluation, no server stays behind."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command import wait_for
from flight_bundle import Bundle

# fake_server and model_files are importable from here as well.
sys.path.insert(0, str(Path(__file__).parents[1] / "agent" / "local_models"))

from fake_server import Behaviour, all_gone, install, starts
from model_files import model_folder


@pytest.fixture
def model(bundle: Bundle) -> Path:
    return model_folder(bundle.folder / "tiny-chat")


@pytest.fixture
def installed(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Put a program on the PATH; whatever a failed test leaves running is ended."""
    folder = bundle.folder / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("TMPDIR", str(bundle.folder))
    records = []

    def put(name: str = "vllm", **behaviour: Any) -> Path:
        records.append(install(folder, name, Behaviour(**behaviour)))
        return records[-1]

    yield put
    for start in [start for record in records for start in starts(record)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(start["pid"], signal.SIGKILL)


@pytest.mark.parametrize(
    ("way", "moment"),
    [("SIGTERM", "loading"), ("SIGKILL", "loading"), ("SIGINT", "playing"), ("SIGKILL", "playing")],
)
def test_no_server_outlives_a_command(start: Any, model: Path, installed: Any, way: str, moment: str) -> None:
    slow = {"content": "Let me see.", "delay": 120}
    record = installed(never=moment == "loading", answers=["Hello.", slow], child=True)
    process = start("-d", "task.jsonl", "--model", model, "--sim-model", model)
    try:
        wait_for(lambda: starts(record), process)
        if moment == "playing":
            assert process.stderr is not None
            wait_for(lambda: "evaluation " in process.stderr.readline(), process)
        process.send_signal(signal.Signals[way])
        process.wait(60)
        assert all_gone(record)
    finally:
        process.kill()
        process.communicate()
