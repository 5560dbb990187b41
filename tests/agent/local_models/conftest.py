"""A model on disk, as far as it is looked at before a server reads it, and programs that serve it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# fake_server is importable from the tests beside it, which are no package.
sys.path.insert(0, str(Path(__file__).parent))

from fake_server import Behaviour, install
from model_files import model_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model as Hugging Face lays it out."""
    return model_folder(tmp_path / "models" / "tiny-chat")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A model in one file."""
    path = tmp_path / "tiny-q4.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    return path


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put a program on the PATH, where no other is; returns the record of its starts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    for name in list(os.environ):
        if name.startswith("REWARD_KIT_LOCAL_MODEL") or name.lower() in ("http_proxy", "all_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def put(name: str, **behaviour: Any) -> Path:
        return install(folder, name, Behaviour(**behaviour))

    return put
