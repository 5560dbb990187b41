"""The adapters of examples/adapters with the real packages, each where it is installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ADAPTERS = Path(__file__).parents[1] / "examples" / "adapters"
LEND = {"name": "lend_book", "arguments": {"book_id": 3, "member": "Ada"}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "reward_kit", "init", "library_task"], check=True)
    return tmp_path


def adapter(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ADAPTERS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_every_adapter_has_less_than_sixty_lines_of_code() -> None:
    for path in ADAPTERS.glob("*.py"):
        text = path.read_text()
        code = [line for line in text.partition('"""\n\nfrom')[2].splitlines() if line.strip()]
        assert len(code) < 60, path.name


def test_gymnasium() -> None:
    pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import check_env

    env = adapter("gymnasium_env").BundleEnv("library_task", row="lend.1")
    check_env(env, skip_render_check=True)
    text, info = env.reset(seed=1)
    assert "borrow Kindred" in text
    assert [tool["function"]["name"] for tool in info["tools"]] == ["find_books", "lend_book"]
    assert env.step(json.dumps(LEND)) == ("lent", 0.0, False, False, {})
    assert env.step("Here you are.")[1:4] == (1.0, True, False)
    env.reset(seed=1)
    assert env.step("No.")[1] == 0.0
    env.close()


def test_trl() -> None:
    pytest.importorskip("transformers")
    from transformers.utils import get_json_schema

    parts = adapter("trl_environment").TrlBundle("library_task")
    assert parts.rows[0]["row_id"] == "lend.1"
    solved, idle = parts.environment(), parts.environment()
    schema = get_json_schema(solved.lend_book)["function"]
    assert schema["parameters"]["properties"]["book_id"]["type"] == "integer"
    assert schema["parameters"]["required"] == ["book_id", "member"]
    for environment in (solved, idle):
        environment.reset(row_id="lend.1")
    assert solved.lend_book(**LEND["arguments"]) == "lent"
    said = [{"role": "assistant", "content": "Done."}]
    assert parts.reward(completions=[said, said], environments=[solved, idle]) == [1.0, 0.0]
    parts.bundle.close()


def test_inspect() -> None:
    pytest.importorskip("inspect_ai")
    from inspect_ai import eval as run_eval
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    call = ModelOutput.for_tool_call("mockllm", LEND["name"], LEND["arguments"])
    said = ModelOutput.from_content("mockllm", "Here you are.")
    for output in (call, said):  # without usage it counts tokens by a file from the network
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    task = adapter("inspect_task").bundle_task("library_task")
    model = get_model("mockllm/model", custom_outputs=[call, said, said])
    (log,) = run_eval(task, model=model, limit=2, max_samples=1, display="none", log_dir="logs")
    assert log.status == "success", log.error
    assert {one.id: next(iter(one.scores.values())).value for one in log.samples} == {
        "lend.1": 1.0,
        "ask.1": 0.0,
    }


def test_verifiers() -> None:
    pytest.importorskip("verifiers")
    done: Any = subprocess.run(
        [sys.executable, Path(__file__).with_name("play_verifiers.py"), ADAPTERS],
        capture_output=True,
        text=True,
    )
    assert {"ask.1 0.0", "lend.1 1.0"} <= {*done.stdout.splitlines()}, done.stdout + done.stderr
