"""Fixtures for the tests that follow the documentation."""

import os
import sys
from pathlib import Path

import pytest

# pages is importable from the tests beside it, which are no package.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def environment(stub_llm: object) -> dict[str, str]:
    """For commands: those of this installation come first, and the only model server is the stub."""
    kept = {name: it for name, it in os.environ.items() if not name.startswith(("MODEL_", "REWARD_KIT_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "COLUMNS": "120"}
