"""Tiny models that the tests make themselves, served by the real programs, and evaluated.

``make test-local-models`` brings an environment with transformers and torch, and names it in
``LOCAL_MODELS_ENV``. ``llama-server`` is tested where it is on the PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = Path(os.environ.get("LOCAL_MODELS_ENV", ".venv-local-models")).absolute()
FILES = {
    "seed.sql": "CREATE TABLE seats (number INTEGER PRIMARY KEY, passenger TEXT);\n"
    "INSERT INTO seats (number) VALUES (1), (2), (3);\n",
    "tools.py": '''from reward_kit.agent import ToolRegistry

R = ToolRegistry("seat_tools")


@R.tool
async def take_seat(number: int, passenger: str, db) -> str:
    """Reserve a seat for a passenger."""
    await db.execute("UPDATE seats SET passenger = :p WHERE number = :n", {"n": number, "p": passenger})
    return "reserved"
''',
    "reward.py": '''from reward_kit import RewardOutput, reward_function


@reward_function
def evaluate(messages, *, db, end_goal_sql, **kwargs):
    """1.0 if Alice has the seat."""
    return RewardOutput(score=float(db.execute(end_goal_sql).scalar_one() or 0), reason="looked up")
''',
    "task.jsonl": json.dumps(
        {
            "id": "seat.1",
            "toolset": "seat_task.tools",
            "n_rollouts": 3,
            "initial_messages": [{"role": "user", "content": "Seat 2 for Alice, please."}],
            "end_goal_sql": "SELECT passenger = 'Alice' FROM seats WHERE number = 2",
        }
    ),
}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the models."""
    folder = tmp_path_factory.mktemp("models")
    program = Path(__file__).with_name("make_models.py")
    subprocess.run([ENVIRONMENT / "bin" / "python", program, folder], check=True, timeout=300)
    return folder


@pytest.fixture
def agent_eval(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Evaluate in the folder of a small bundle; returns the results, with what was said on the way."""
    folder = tmp_path / "seat_task"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)

    def run(*arguments: str | Path, path: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "reward_kit", "agent-eval", "-d", "task.jsonl", *map(str, arguments)]
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PATH": path, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not list(tmp_path.glob("reward-kit-model-*")), "the server's folder is cleared away"
        (results,) = (folder / "runs" / "evals").glob("*.json")
        return {**json.loads(results.read_text()), "said": done.stderr}

    return run


def processes_with(path: Path) -> list[str]:
    """Command lines of running processes that name ``path``."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(path) in line]


def test_transformers_serve_plays_whole_rollouts_with_tool_calls(
    models: Path, agent_eval: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    path = f"{ENVIRONMENT / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"
    found = agent_eval("--model", models / "seat-taker", "--temperature", "0", path=path)
    assert found["pass_power"]["1"]["value"] == 1.0
    assert [rollout["stop_reason"] for rollout in found["rows"][0]["rollouts"]] == ["agent_done"] * 3
    usage = found["usage"]["agent"]
    assert (usage["calls"], usage["cost"], usage["unpriced_calls"]) == (6, 0.0, 0)
    assert usage["input_tokens"] > 0
    assert "starting a server for seat-taker (transformers)" in found["said"]
    assert not processes_with(tmp_path)


@pytest.mark.skipif(shutil.which("llama-server") is None, reason="llama-server is not on the PATH")
def test_llama_server_plays_whole_rollouts(models: Path, agent_eval: Callable[..., dict[str, Any]]) -> None:
    limit = ("--model-arg", "max_tokens=8")
    found = agent_eval("--model", models / "random.gguf", *limit, path=os.environ["PATH"])
    assert found["status"] == "complete"
    assert [rollout["stop_reason"] for rollout in found["rows"][0]["rollouts"]] == ["agent_done"] * 3
    usage = found["usage"]["agent"]
    assert (usage["calls"], usage["output_tokens"]) == (3, 24)
    assert not processes_with(models)
