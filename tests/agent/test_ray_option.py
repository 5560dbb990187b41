"""What ``--ray`` does before there is a cluster; rollouts on one are tested by ``make test-ray``."""

from __future__ import annotations

import io
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle, flight_bundle

from reward_kit.agent import agent_eval
from reward_kit.agent.bundle import TaskBundle
from reward_kit.agent.evaluation_config import EvaluationConfig
from reward_kit.agent.executors.ray_cluster import RayCluster
from reward_kit.agent.executors.ray_shipment import forwarded_environment, pack
from reward_kit.agent.executors.ray_worker import RayWorker
from reward_kit.agent.executors.worker_processes import ProcessDiedError
from reward_kit.agent.schedule import Job
from reward_kit.agent.tally import Tally
from reward_kit.errors import UsageError


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    made = flight_bundle(tmp_path)
    made.rows({"actions": GOLD})
    monkeypatch.chdir(tmp_path)
    return made


def test_without_ray_the_error_says_how_to_get_it(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # also where it is installed
    with pytest.raises(UsageError) as raised:
        agent_eval(bundle.dataset, agent="gold", ray="default")
    assert str(raised.value) == "--ray needs Ray, which is not installed. pip install 'reward-kit[ray]'"
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"agent": "human", "user": "none"}, "--ray goes with no person at the terminal"),
        ({"agent": "gold", "cache": True}, "--ray does not go with --cache"),
    ],
)
def test_what_it_does_not_go_with_is_said_before_anything_is_written(
    bundle: Bundle, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        agent_eval(bundle.dataset, ray="default", **options)
    assert not Path("runs").exists()


def test_a_replay_is_refused_before_its_evaluation_begins(bundle: Bundle) -> None:
    recorded = agent_eval(bundle.dataset, agent="gold", eval_id="recorded")
    with pytest.raises(UsageError, match="--ray goes with no replay"):
        agent_eval(bundle.dataset, agent=f"replay:{recorded.log_path}", ray="default")
    assert [path.name for path in Path("runs/evals").glob("*.jsonl")] == ["recorded.jsonl"]


def shipped(config: EvaluationConfig, root: Path) -> set[str]:
    with TaskBundle.load(config.dataset):
        names = zipfile.ZipFile(io.BytesIO(pack(config).data)).namelist()
    return {str(Path("/", name).relative_to(root)) for name in names}


def test_the_bundle_goes_to_the_nodes_without_secrets_and_results(bundle: Bundle, tmp_path: Path) -> None:
    bundle.write(".env", "OPENAI_API_KEY=sk-0123456789abcdef")
    for folder in ("runs", ".git", "__pycache__", "data"):
        (bundle.folder / folder).mkdir()
        (bundle.folder / folder / "file.txt").touch()
    (tmp_path / "beside.txt").touch()
    config = EvaluationConfig(dataset=str(bundle.dataset), output_dir=str(bundle.folder / "runs"))
    names = ["data/file.txt", "reward.py", "seed.sql", "task.jsonl", "tools.py"]
    assert shipped(config, tmp_path) == {f"flight_task/{name}" for name in names}


def test_modules_of_the_working_directory_go_along(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "ray_test_package"
    (package / "prompts").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "prompts" / "hello.txt").touch()
    (tmp_path / "ray_test_module.py").touch()
    (tmp_path / "never_imported.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "ray_test_package", __import__("ray_test_package"))
    monkeypatch.setitem(sys.modules, "ray_test_module", __import__("ray_test_module"))
    names = shipped(EvaluationConfig(dataset=str(bundle.dataset)), tmp_path)
    assert {"ray_test_package/prompts/hello.txt", "ray_test_module.py"} <= names
    assert "never_imported.py" not in names


def test_a_bundle_that_is_too_big_is_refused(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reward_kit.agent.executors.ray_shipment.LARGEST", 100)
    with TaskBundle.load(bundle.dataset), pytest.raises(UsageError, match="can be sent to Ray's nodes"):
        pack(EvaluationConfig(dataset=str(bundle.dataset)))


def test_an_actor_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    actor = RayWorker()
    assert len(list(tmp_path.iterdir())) == 1
    actor.end()
    assert list(tmp_path.iterdir()) == []


def test_only_settings_of_models_and_telemetry_leave_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = (
        "OPENAI_API_KEY",
        "AZURE_API_BASE",
        "HF_TOKEN",
        "REWARD_KIT_AGENT_TOKEN",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    for name in settings:
        monkeypatch.setenv(name, "sent")
    for name in ("GITHUB_TOKEN", "DATABASE_PASSWORD", "PATH_TO_API_KEY_FILE"):
        monkeypatch.setenv(name, "kept")
    sent = forwarded_environment()
    assert set(settings) <= sent.keys()
    assert "kept" not in sent.values()


class Dying(RayCluster):
    """Its actors die as they are told to: each after so many of its rollouts have begun (None: it lives)."""

    def __init__(self, *begun_before_death: int | None) -> None:
        self.played: list[tuple[str, int]] = []
        self.given_up: list[tuple[str, int]] = []
        self._deaths = iter(begun_before_death)
        self._config = EvaluationConfig(dataset="x", retries=0)
        self._tally = Tally("x", planned=2)
        self._environment = {}

    def _bases(self) -> list[str]:
        return []

    async def _one_actor(self, setup: Any, places: Any, left: Any, begun: dict[Any, float]) -> None:
        deadly = next(self._deaths)
        if deadly is not None:
            begun.update(dict.fromkeys(places[:deadly], 0.0))
            raise ProcessDiedError("it was killed")
        self.played += places
        for place in places:
            del left[place]

    async def _give_up(self, job: Job, attempt: int, why: str) -> None:
        self.given_up.append(job.place)


@pytest.mark.parametrize(
    ("deaths", "given_up"),
    [
        ([2, 2, 0, None, None], []),  # the third before the rollout that was under suspicion began
        ([2, 2, 1, 0, None], [("a", 0)]),
        ([2, 2, 0, 1, 1], [("a", 0), ("a", 1)]),
        ([1, 1, None, None], []),
    ],
)
async def test_a_rollout_that_had_not_begun_is_not_to_blame(
    deaths: list[int | None], given_up: list[tuple[str, int]], bundle: Bundle
) -> None:
    bundle.rows({"id": "a", "n_rollouts": 2})
    with TaskBundle.load(str(bundle.dataset)) as loaded:
        cluster = Dying(*deaths)
        await cluster._see_through([Job(loaded.tasks[0], 0), Job(loaded.tasks[0], 1)], 2)
    assert cluster.given_up == given_up
    assert {*cluster.given_up, *cluster.played} == {("a", 0), ("a", 1)}
