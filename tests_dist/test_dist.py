"""The built distributions: their files, and a fresh environment in which the wheel is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CONSUMER = """
from reward_kit import EvaluateResult, Message, RewardOutput, reward_function
from reward_kit.agent import EvaluationResult, evaluate

result: EvaluationResult = evaluate("tau_retail_task", agent="gold", n_rollouts=2)
print(result.pass_power[1].value)


@reward_function
def judge(messages: list[Message], *, strict: bool = False, **kwargs: object) -> EvaluateResult:
    return EvaluateResult(score=float(strict))


print(judge([], strict=True).score)
print(RewardOutput(1.0, {"paid": {"score": 1.0, "reason": "in full"}, "steps": 7}).metrics["paid"].score)
"""
WRONG = """
from consumer import judge
from reward_kit.agent import evaluate

judge([], strict="yes")
evaluate("tau_retail_task", agent="gold", n_rollout=2)
"""


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="session")
def wheel() -> Path:
    (path,) = DIST.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("environment")
    assert run(sys.executable, "-m", "venv", folder, folder=folder).returncode == 0
    pip = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        ROOT / "constraints.txt",
    ]
    done = run(*pip, wheel, "mypy", "pyright", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def test_the_wheel_holds_the_two_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"reward_kit", "tau_retail_task"}
    assert {Path(name).suffix for name in names if ".dist-info/" not in name} <= {
        ".css", ".html", ".js", ".jsonl", ".md", ".py", ".sql", ".svg", ".txt", ".typed", ".j2", ".example",
    }  # fmt: skip
    assert {"reward_kit/py.typed", "tau_retail_task/seed.sql"} <= {*names}
    assert sorted(Path(name).name for name in names if "/licenses/" in name) == ["LICENSE", "NOTICE"]


def test_the_source_distribution_holds_no_results_and_no_caches() -> None:
    (path,) = DIST.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = ["/".join(name.split("/")[1:]) for name in archive.getnames()]
    assert not [name for name in names if {"__pycache__", ".venv"} & {*name.split("/")} or ".db" in name]
    assert {"README.md", "LICENSE", "NOTICE", "Makefile", "tests/conftest.py"} <= {*names}


def test_the_retail_bundle_is_installed(installed: Path, tmp_path: Path) -> None:
    done = run(
        installed / "reward-kit", "agent-eval", "-d", "tau_retail_task", "--agent", "gold", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "115 of 115 judged rollouts passed" in done.stdout


@pytest.mark.parametrize("checker", [("mypy", "--strict"), ("pyright",)])
def test_a_type_checker_sees_the_types(installed: Path, tmp_path: Path, checker: tuple[str, ...]) -> None:
    (tmp_path / "consumer.py").write_text(CONSUMER)
    (tmp_path / "wrong.py").write_text(WRONG)
    command = [installed / checker[0], *checker[1:]]
    if checker == ("pyright",):
        command += ["--pythonpath", installed / "python"]
    right = run(*command, "consumer.py", folder=tmp_path)
    assert right.returncode == 0, right.stdout + right.stderr
    wrong = run(*command, "wrong.py", folder=tmp_path)
    assert wrong.returncode == 1
    assert "n_rollout" in wrong.stdout
    assert '"strict"' in wrong.stdout
