"""The helper modules: those beside this file, and the stub server of the other tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "tests" / "agent")]


@pytest.fixture
def stub_llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """An OpenAI-compatible server that the environment points at."""
    from stub_server import served

    yield from served(monkeypatch)
