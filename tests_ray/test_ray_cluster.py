"""Rollouts on the nodes of a Ray cluster: what comes out is what one process gives, also when nodes are lost.

Needs Ray: ``make test-ray``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import Bundle
from ray.cluster_utils import Cluster

from reward_kit.agent import EvaluationResult, evaluate, load_rollout
from reward_kit.errors import ModelSetupError, RewardKitError, UsageError

Player = Callable[[str], str]


def comparable(result: EvaluationResult) -> list[Any]:
    """What must not depend on where it was played, the final databases included."""
    found = []
    for outcome in result.outcomes:
        record = load_rollout(result.folder / outcome.file)
        calls = [(call.name, call.arguments, call.content, call.changes) for call in record.tool_calls]
        kept = outcome.database is not None and (result.folder / outcome.database).is_file()
        key = outcome.row_id, outcome.index
        found.append((key, outcome.seed, outcome.reward, record.messages, calls, kept, record.failure))
    found.sort(key=lambda one: one[0])
    return [found, result.passes, dict(result.failures), result.status]


@pytest.mark.parametrize("keep", [None, "delta"])
def test_two_nodes_give_what_one_process_gives(
    cluster: Cluster, bundle: Bundle, player: Player, marks: Path, keep: str | None
) -> None:
    options = {"agent": player("books"), "user": "none", "keep_db": keep}
    one = evaluate(bundle.dataset, output_dir="one", **options)
    many = evaluate(bundle.dataset, output_dir="many", ray=cluster.address, **options)
    assert comparable(many) == comparable(one)
    assert many.pass_power[1].value == pytest.approx(2 / 3)
    assert list(marks.glob("played-*")), "on the nodes, not here"
    assert files_of("many") == files_of("one")


def files_of(folder: str) -> list[str]:
    """The files of a runs folder, with rollouts and evaluations named alike; nodes cache nothing there."""
    names = []
    for path in Path(folder).rglob("*"):
        if ".cache" in path.parts:
            continue
        ending = path.name.partition(".")[2]
        alike = path.name.startswith("roll_") or path.parent.name == "evals"
        names.append(f"{path.parent.relative_to(folder)}/{f'*.{ending}' if alike else path.name}")
    return sorted(names)


def test_the_code_of_the_working_directory_goes_along(
    cluster: Cluster, bundle: Bundle, player: Player, marks: Path, tmp_path: Path
) -> None:
    evaluate(bundle.dataset, agent=player("books"), user="none", n_rollouts=1, ray=cluster.address)
    played, companion = map(Path, (marks / "code").read_text().split())
    assert played.name == f"{bundle.players}.py"
    for file in (played, companion):
        assert not file.is_relative_to(tmp_path)


def test_what_the_cluster_of_the_environment_began_one_process_can_end(
    cluster: Cluster, bundle: Bundle, player: Player, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    options = {"agent": player("books"), "user": "none", "eval_id": "both"}
    first = evaluate(bundle.dataset, ray="default", n_rollouts=1, **options)
    raylets = {str(node.all_processes["raylet"][0].process.pid) for node in cluster.list_all_nodes()}
    assert {path.name.split("-")[1] for path in marks.glob("played-*")} <= raylets
    assert len(first.outcomes) == 3
    whole = evaluate(bundle.dataset, **options)
    assert len(whole.outcomes) == 9
    assert {outcome.id for outcome in first.outcomes} < {outcome.id for outcome in whole.outcomes}


def test_models_are_asked_with_the_key_of_this_machine_which_is_written_nowhere(
    cluster: Cluster, bundle: Bundle, stub_llm: Any, tmp_path: Path
) -> None:
    from stub_server import call

    script = [
        call("create_booking", flight_id=1, passenger="Alice"),
        call("pay_booking", booking_id="none"),
        "Done.",
    ]
    stub_llm.script("gpt-4o-mini", script)
    result = evaluate(bundle.dataset, model="openai/gpt-4o-mini", user="none", ray=cluster.address)
    assert (len(result.outcomes), result.complete) == (9, True)
    key = os.environ["OPENAI_API_KEY"]
    assert {headers["Authorization"] for headers in stub_llm.request_headers} == {f"Bearer {key}"}
    session = Path(cluster.head_node.get_session_dir_path())
    assert any(session.rglob("*.log"))
    for folder in (session, tmp_path / "runs"):
        for path in folder.rglob("*"):
            assert not path.is_file() or key.encode() not in path.read_bytes(), path


def test_a_refused_key_stops_all_actors(cluster: Cluster, bundle: Bundle, stub_llm: Any) -> None:
    from stub_server import Answer

    stub_llm.script("gpt-4o-mini", [Answer(status=401, error="Incorrect API key")])
    with pytest.raises(ModelSetupError, match="refuses the key") as raised:
        evaluate(bundle.dataset, model="openai/gpt-4o-mini", user="none", ray=cluster.address)
    assert raised.value.remedy is not None


def test_no_more_begin_once_the_money_is_spent(cluster: Cluster, bundle: Bundle, player: Player) -> None:
    result = evaluate(
        bundle.dataset,
        agent=player("Spends"),
        user="none",
        ray=cluster.address,
        max_concurrency=2,
        max_cost=1.0,
    )
    assert result.status == "budget"
    assert 2 <= len(result.outcomes) < 9
    assert result.usage["agent"].cost == 0.5 * len(result.outcomes)


def test_a_rollout_that_kills_its_actor_costs_itself_alone(
    cluster: Cluster, bundle: Bundle, player: Player
) -> None:
    result = evaluate(bundle.dataset, agent=player("dies"), user="none", ray=cluster.address, retries=1)
    (lost,) = [outcome for outcome in result.outcomes if outcome.stop_reason == "agent_error"]
    assert (lost.row_id, lost.index, lost.reward) == ("row-1", 0, 0.0)
    assert (lost.stop_detail or "").startswith("its process was lost: The actor")
    assert (lost.stop_detail or "").endswith(" in its agent or user, twice")
    assert sum(outcome.scored for outcome in result.outcomes) == 9
    assert load_rollout(result.folder / lost.file).messages == []


def test_an_actor_that_is_killed_loses_nothing(
    cluster: Cluster, bundle: Bundle, player: Player, marks: Path
) -> None:
    result = evaluate(bundle.dataset, agent=player("dies_once"), user="none", ray=cluster.address)
    assert (marks / "died").exists()
    assert (len(result.outcomes), result.complete) == (9, True)


def test_an_agent_that_never_gives_up_control_is_ended(
    cluster: Cluster, bundle: Bundle, player: Player, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reward_kit.agent.evaluation.workers.HANG_GRACE", 1.0)
    result = evaluate(
        bundle.dataset,
        agent=player("blocks"),
        user="none",
        ray=cluster.address,
        retries=0,
        timeout=1.0,
        n_rollouts=2,
    )
    lost = [outcome for outcome in result.outcomes if outcome.stop_reason == "agent_error"]
    assert [(outcome.row_id, outcome.index) for outcome in lost] == [("row-0", 1)]
    assert "stopped answering" in (lost[0].stop_detail or "")
    wait_until(lambda: not processes_with(str(marks)))


def test_what_a_lost_node_was_playing_is_played_elsewhere(
    cluster: Cluster, third_node: Any, bundle: Bundle, player: Player, marks: Path
) -> None:
    raylet = third_node.all_processes["raylet"][0].process.pid
    with ThreadPoolExecutor(1) as background:
        evaluation = background.submit(
            evaluate,
            bundle.dataset,
            agent=player("waits"),
            user="none",
            ray=cluster.address,
            workers=3,
            n_rollouts=4,  # more than two nodes play at a time
        )
        try:
            wait_until(lambda: len(list(marks.glob("began-*"))) == 12)
            lost = {int(path.name.split("-")[2]) for path in marks.glob(f"began-{raylet}-*")}
            assert len(lost) == 1
            cluster.remove_node(third_node, allow_graceful=False)
            wait_until(lambda: not any(map(runs, lost)))
        finally:
            (marks / "go").touch()
        result = evaluation.result(timeout=200)
    assert (len(result.outcomes), result.complete) == (12, True)
    assert len(list(marks.glob("began-*"))) > 12


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_command_leaves_a_cluster_that_was_there_before(
    cluster: Cluster, bundle: Bundle, player: Player, marks: Path, number: int
) -> None:
    with command(bundle, player("waits"), "--ray", cluster.address, "--workers", "2") as ran:
        wait_until(lambda: len(list(marks.glob("began-*"))) == 9)
        actors = {int(path.name.split("-")[2]) for path in marks.glob("began-*")}
        os.killpg(ran.pid, number)
        _, said = ran.communicate(timeout=100)
    assert ran.returncode == (-9 if number == signal.SIGKILL else 130), said
    assert ("--resume stopped" in said) == (number == signal.SIGINT)
    wait_until(lambda: not any(map(runs, actors)))
    assert cluster.head_node.any_processes_alive()
    (marks / "go").touch()
    again = evaluate(bundle.dataset, agent=player("waits"), user="none", eval_id="stopped")
    assert (len(again.outcomes), again.complete) == (9, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_cluster_of_our_own_ends_with_the_command(
    bundle: Bundle, player: Player, marks: Path, number: int
) -> None:
    with command(bundle, player("waits"), "--ray", "--workers", "2") as ran:
        wait_until(lambda: len(list(marks.glob("began-*"))) == 9)
        session = [one for one in processes_with(str(marks)) if one != ran.pid]
        assert len(session) > 2
        os.kill(ran.pid, number)
        _, said = ran.communicate(timeout=100)
    assert ran.returncode == (-9 if number == signal.SIGKILL else 130), said
    wait_until(lambda: not any(map(runs, session)))


def test_an_address_where_nothing_is(bundle: Bundle, player: Player) -> None:
    with command(bundle, player("books"), "--ray", "127.0.0.1:1") as ran:
        _, said = ran.communicate(timeout=100)
    assert ran.returncode == 2, said
    assert "Error: --ray 127.0.0.1:1: the Ray cluster cannot be reached" in said
    assert "Traceback" not in said
    assert not Path("runs").exists()  # nothing was begun


def test_what_the_nodes_cannot_do_is_refused(cluster: Cluster, bundle: Bundle, player: Player) -> None:
    for options in ({"agent": "human"}, {"agent": player("books"), "cache": True}):
        with pytest.raises(UsageError, match="--ray"):
            evaluate(bundle.dataset, user="none", ray=cluster.address, **options)


def test_tools_that_cannot_be_imported_there(
    cluster: Cluster, bundle: Bundle, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (bundle.folder / "tools.py").read_text()
    (bundle.folder / "tools.py").write_text(f"import os\nassert 'ONLY_HERE' in os.environ\n{text}")
    monkeypatch.setenv("ONLY_HERE", "1")
    with pytest.raises(RewardKitError, match="AssertionError"):
        evaluate(bundle.dataset, agent=player("books"), user="none", ray=cluster.address)


@contextmanager
def command(bundle: Bundle, agent: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command line, running; it does not outlive the test."""
    words = [sys.executable, "-m", "reward_kit", "agent-eval", "-d", str(bundle.dataset), "--agent", agent]
    words += ["--user", "none", "--eval-id", "stopped", *options]
    ran = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield ran
    finally:
        ran.kill()
        ran.wait()


def wait_until(holds: Callable[[], bool], seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def processes_with(text: str) -> list[int]:
    """The processes that have ``text`` in the environment they were started with."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            if text.encode() in environment and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found
