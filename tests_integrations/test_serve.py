"""``reward-kit serve`` with the clients of OpenEnv and NeMo Gym, each where it is installed.

``make test-integrations`` installs them, in several environments.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TO_BO = {"book_id": 1, "member": "Bo"}
USERS = """
def bo(rollout):
    return "Thanks! ###STOP###" if rollout.lines else "I am Bo. Middlemarch, please."

def leaves(rollout):
    return "###STOP###" if rollout.lines else "I want Middlemarch. Can you lend it to me?"

def fails(rollout):
    raise RuntimeError("the user is down")
"""
MASKED = {"leaves": "user_error", "fails": "user_error"}


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a new bundle in the working directory, beside a module with users."""
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "reward_kit", "init", "library"], check=True, capture_output=True)
    Path("library_users.py").write_text(USERS)
    return "library"


@contextmanager
def served(bundle: str, *options: str) -> Iterator[str]:
    """The address of a running server."""
    line = [sys.executable, "-m", "reward_kit", "serve", bundle, "--port", "0", *options]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        try:
            assert "http://" in said, process.wait(30)
            yield said.split()[0]
        finally:
            process.terminate()
            process.wait(30)


def test_openenv_validates_the_server(bundle: str) -> None:
    validation: Any = pytest.importorskip("openenv.cli._validation")
    with served(bundle, "--user", "none") as url:
        line = [Path(sys.executable).with_name("openenv"), "validate", "--url", url]
        done: Any = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        report = validation.validate_running_environment(url)
    assert report["passed"], report
    assert (report["mode"], report["standard_profile"]) == ("simulation", "openenv-http/1.x")


def test_an_episode_passes_the_runtime_checks_of_openenv(bundle: str) -> None:
    """Those of its validation of a package, which need no container."""
    basic: Any = pytest.importorskip("openenv.validation.graders.runtime.basic")
    from openenv.validation.runtime.collector import collect_runtime_evidence
    from openenv.validation.runtime.contracts import RuntimePlan

    say = {"type": "call_tool", "tool_name": "say_to_user", "arguments": {"text": "It is yours."}}
    actions = [
        {"type": "list_tools"},
        {"type": "call_tool", "tool_name": "lend_book", "arguments": TO_BO},
        say,
    ]
    reset = {"episode_id": "probe", "seed": 1, "options": {"row": "lend.2"}}
    plan = RuntimePlan(plan_schema_version="1", reset=reset, actions=actions)
    with served(bundle, "--user", "library_users:bo") as url:
        evidence = collect_runtime_evidence(url, plan, episode_timeout_s=60)
    reward = SimpleNamespace(range=(0.0, 1.0))
    subject = SimpleNamespace(runtime_evidence=evidence, manifest=SimpleNamespace(reward=reward))
    for name in ("RewardWellFormedGrader", "ObservationSchemaGrader", "StateContractGrader"):
        result = getattr(basic, name)().run(subject)
        assert result.status.value == "pass", (name, result.evidence)


@pytest.mark.parametrize("user", ["bo", *MASKED])
def test_a_client_of_openenv_talks_with_a_user(bundle: str, user: str) -> None:
    pytest.importorskip("openenv", minversion="0.10")
    from openenv.core.generic_client import GenericEnvClient

    def call(name: str, **arguments: Any) -> Any:
        return env.step({"type": "call_tool", "tool_name": name, "arguments": arguments})

    with served(bundle, "--user", f"library_users:{user}") as url, GenericEnvClient(url).sync() as env:
        begun = env.reset(row="lend.2", seed=1, episode_id="first")
        if user != "fails":
            assert not begun.done
            assert begun.observation["messages"][-1]["role"] == "user"
            assert [tool["name"] for tool in begun.observation["tools"]][-1] == "say_to_user"
        if user == "bo":
            lent = call("lend_book", **TO_BO)
            assert (lent.observation["result"], lent.done, lent.reward) == ("lent", False, 0.0)
        end = begun if begun.done else call("say_to_user", text="Shall I look for it?")
        assert (end.done, end.reward) == (True, 1.0 if user == "bo" else None)
        assert end.metadata["failure_kind"] == MASKED.get(user)
        assert env.state()["episode_id"] == "first"


def test_the_tool_client_of_openenv(bundle: str) -> None:
    pytest.importorskip("openenv", minversion="0.10")
    from openenv.core.mcp_client import MCPToolClient

    with served(bundle, "--user", "library_users:bo") as url, MCPToolClient(url).sync() as env:
        assert [tool.name for tool in env.list_tools()] == ["find_books", "lend_book", "say_to_user"]
        env.reset(row="lend.2")
        assert env.call_tool("lend_book", **TO_BO) == "lent"
        assert env.call_tool("say_to_user", text="It is yours.") == "The conversation is over."


@pytest.mark.parametrize(
    ("user", "shown"),
    [
        ("none", {"lend.1 1.0 False None", f"mean {1 / 3}"}),
        ("library_users:bo", {"lend.2 1.0 False None"}),
        ("library_users:leaves", {"lend.2 0.0 True reward_kit:user_error"}),
        ("library_users:fails", {"lend.2 0.0 True reward_kit:user_error", "mean None"}),
    ],
)
def test_the_simple_agent_of_nemo_gym(bundle: str, user: str, shown: set[str]) -> None:
    """In an environment of its own: the packages that it needs and ours do not fit together."""
    environment = os.environ.get("NEMO_GYM_ENVIRONMENT")
    if environment is None:
        pytest.skip("NEMO_GYM_ENVIRONMENT names no environment with nemo-gym: make test-integrations")
    script = Path(__file__).with_name("play_nemo_gym.py")
    with served(bundle, "--user", user) as url:
        line = [ROOT / environment / "bin" / "python", script, url]
        done: Any = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown <= {*done.stdout.splitlines()}, done.stdout
