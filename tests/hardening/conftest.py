"""Hostile bundles, and ``reward-kit agent-eval`` as a real process on them."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # hostile.py: no test folder is a package

from command import run_command
from flight_bundle import GOLD, TOOLS, Bundle, flight_bundle
from hostile import Ran, indented

_FROM_OUTSIDE = ("MODEL_AGENT", "MODEL_SIM", "OPENAI_API_BASE", "OPENAI_BASE_URL", "OPENAI_API_KEY")


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """The folder that a hostile bundle may look at and must not change; it is its home as well."""
    folder = tmp_path / "world"
    folder.mkdir()
    (folder / "secret.txt").write_text("the-secret-of-the-neighbour")
    return folder


@pytest.fixture
def bundle(world: Path) -> Bundle:
    """A flight bundle whose gold actions are right, with two rollouts of one row."""
    made = flight_bundle(world)
    made.rows({"actions": GOLD, "n_rollouts": 2})
    return made


@pytest.fixture
def agent_eval(world: Path, bundle: Bundle) -> Callable[..., Ran]:
    """Run ``reward-kit agent-eval`` in the bundle's folder to its end."""

    def run(*arguments: str, timeout: float = 60, **variables: str) -> Ran:
        before = set(_files(world))
        environment = {name: value for name, value in os.environ.items() if name not in _FROM_OUTSIDE}
        environment.update(HOME=str(world), TMPDIR=str(world.parent), **variables)
        ran = run_command("agent-eval", *arguments, cwd=bundle.folder, env=environment, timeout=timeout)
        runs = bundle.folder / "runs"
        outside = [path for path in _files(world) if path not in before and runs not in path.parents]
        found = [path for path in runs.glob("evals/*.json") if ".explain" not in path.name]
        results = [json.loads(path.read_text()) for path in found]
        return Ran(ran.code, ran.out, ran.err, [str(path) for path in outside], results)

    return run


@pytest.fixture
def tools(bundle: Bundle) -> Callable[..., None]:
    """Write ``tools.py``: the flight tools with ``before`` and ``after`` around them."""

    def write(before: str = "", after: str = "") -> None:
        bundle.write("tools.py", f"{before}\n{TOOLS}\n{after}\n")

    return write


@pytest.fixture
def reward(bundle: Bundle) -> Callable[[str], None]:
    """Write ``reward.py``: ``evaluate`` with this body."""

    def write(body: str) -> None:
        bundle.write("reward.py", f"def evaluate(messages, *, db, **kwargs):\n{indented(body)}\n")

    return write


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
