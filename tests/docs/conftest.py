"""Fixtures for the tests that follow the documentation."""

import os
import sys
from pathlib import Path

import pytest
from command import stand_in

# pages is importable from the tests beside it, which are no package.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def environment(stub_llm: object, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """For commands: those of this installation come first, and the only model server is the stub."""
    kept = {name: it for name, it in os.environ.items() if not name.startswith(("MODEL_", "REWARD_KIT_"))}
    folders = [tmp_path_factory.mktemp("bin"), Path(sys.executable).parent, os.environ["PATH"]]
    stand_in(folders[0])
    slow = "-p no:langsmith_plugin -p no:hypothesispytest"  # plugins of pytest
    return {**kept, "PATH": os.pathsep.join(map(str, folders)), "COLUMNS": "120", "PYTEST_ADDOPTS": slow}
