"""``reward-kit rescore``: a changed reward on what a finished evaluation has left."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import Command
from flight_bundle import GOLD, REWARD, Bundle
from stored_rollouts import query

from reward_kit.agent import (
    Completion,
    EvaluationResult,
    Usage,
    agent_eval,
    compare,
    load_evaluation,
    load_rollout,
    rescore,
)
from reward_kit.agent.store.evaluation_file import read_gold_calls
from reward_kit.agent.store.writer import Store, writer_of
from reward_kit.errors import UsageError

ROWS = [{"id": row_id, "actions": GOLD, "n_rollouts": 2} for row_id in "ab"]
STRICT = REWARD.replace("score=1.0 if ok else 0.0", "score=0.25").replace("Task completed", "Judged strictly")


TIMED = """
{way} evaluate(messages, db, gold_db, **kwargs):
    asked = "SELECT datetime('now')"
    now = {asked}
    rows = len(db.changes())
    same = now == "2025-05-19 09:00:00" and rows == len(gold_db.changes())
    return {{"score": float(same), "reason": f"{{now}} and {{rows}} row"}}
"""


@pytest.fixture
def finished(bundle: Bundle) -> EvaluationResult:
    return agent_eval(bundle.dataset, agent="gold", eval_id="first")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_reward_that_is_the_same_changes_nothing(finished: EvaluationResult, command: Command) -> None:
    before = files(finished.folder)
    ran = command(finished.log_path)
    assert (ran.code, ran.error) == (0, "")
    assert "first: 4 rollouts judged again" in ran.out
    assert "0 rewards changed" in ran.out
    assert files(finished.folder) == before


def test_a_changed_reward_shows_before_and_now_and_writes_nothing(
    bundle: Bundle, finished: EvaluationResult, command: Command
) -> None:
    before = files(finished.folder)
    bundle.write("reward.py", STRICT)
    ran = command(finished.log_path)
    assert (ran.code, ran.error) == (0, "")
    assert "Pass^1     1.000   0.000" in ran.out
    assert "reward     1.000   0.250" in ran.out
    assert "4 rewards changed:\n  a #1: 1 -> 0.25  Judged strictly" in ran.out
    assert files(finished.folder) == before


def test_the_results_can_become_an_evaluation_of_their_own(
    bundle: Bundle, finished: EvaluationResult, command: Command, tmp_path: Path
) -> None:
    before = files(finished.folder)
    bundle.write("reward.py", STRICT)
    ran = command(finished.log_path, "--eval-id", "strict")
    assert ran.code == 0
    assert "runs/evals/strict.json" in ran.out
    kept = files(finished.folder)
    assert {name: kept[name] for name in before} == before
    plain = json.loads((finished.folder / "evals" / "strict.json").read_text())
    old = json.loads(finished.results_path.read_text())
    assert plain.keys() == old.keys()
    assert plain["pass_power"]["1"]["value"] == 0.0
    assert plain["averages"]["reward"]["value"] == 0.25
    assert plain["configuration"]["rescored_from"].endswith("first.db")
    assert [row["id"] for row in plain["rows"]] == ["a", "b"]
    outcome = plain["rows"][0]["rollouts"][0]
    detail = "data and outputs are as expected, but the reward is not"
    assert (outcome["failure"], outcome["failure_detail"]) == ("other", detail)
    with load_rollout(finished.folder / outcome["file"]) as record:
        assert (record.reward, record.eval_id) == (0.25, "strict")
        assert record.result is not None
        assert record.reward_arguments()["db"].execute("SELECT count(*) FROM bookings").scalar_one() == 1
    assert writer_of(finished.log_path) is None
    stored = finished.folder / "evals" / "strict.db"
    assert read_gold_calls(stored, "a") == read_gold_calls(finished.log_path, "a") != ([], False)
    own = "SELECT count(*) FROM states WHERE kind = 'gold'"
    assert query(stored, own) == query(finished.log_path, own)


def test_metrics_and_failures_are_those_of_now(bundle: Bundle, command: Command) -> None:
    source = (
        "def evaluate(messages, **kwargs):\n"
        "    return {'score': SCORE, 'metrics': {'NAME': {'score': SCORE, 'reason': ''}}}\n"
    )
    bundle.write("reward.py", source.replace("SCORE", "1.0").replace("NAME", "old"))
    bundle.rows({"id": "a", "actions": [GOLD[0]]})
    first = agent_eval(bundle.dataset, agent="gold", eval_id="first", n_rollouts=1)
    bundle.write("reward.py", source.replace("SCORE", "0.5").replace("NAME", "new"))
    bundle.rows({"id": "a", "actions": [GOLD[0]], "outputs": ["4711"]})
    assert command(first.log_path, "--eval-id", "again").code == 0
    (outcome,) = load_evaluation("again").outcomes
    assert (outcome.metrics, outcome.failure) == ({"new": 0.5}, "missing_output")


def test_the_new_evaluation_can_be_continued_rescored_and_replayed(
    bundle: Bundle, finished: EvaluationResult, command: Command
) -> None:
    bundle.write("reward.py", STRICT)
    assert command(finished.log_path, "--eval-id", "strict").code == 0
    log = finished.folder / "evals" / "strict.db"
    more = agent_eval(resume="strict", n_rollouts=3)
    assert [outcome.reward for outcome in more.outcomes] == [0.25] * 6
    assert command(log).code == 0
    again = agent_eval(bundle.dataset, agent=f"replay:{log}")
    assert again.compared_with is not None
    assert (again.compared_with.compared, again.compared_with.differences) == (4, ())


def test_json_holds_both_rewards_of_every_rollout(
    bundle: Bundle, finished: EvaluationResult, command: Command, tmp_path: Path
) -> None:
    bundle.write("reward.py", STRICT)
    assert command(finished.log_path, "--json", tmp_path / "out.json").code == 0
    plain = json.loads((tmp_path / "out.json").read_text())
    names = ("row_id", "index", "reward_before", "reward")
    assert [tuple(one[name] for name in names) for one in plain["rollouts"]] == [
        ("a", 0, 1.0, 0.25), ("a", 1, 1.0, 0.25), ("b", 0, 1.0, 0.25), ("b", 1, 1.0, 0.25)
    ]  # fmt: skip
    assert (plain["pass_power_before"]["1"]["value"], plain["pass_power"]["1"]["value"]) == (1.0, 0.0)
    assert (plain["reward_before"], plain["reward"]) == (1.0, 0.25)
    to_output = command(finished.log_path, "--json", "-")
    assert json.loads(to_output.out)["changed"] == 4
    assert "4 rewards changed" in to_output.err


@pytest.mark.parametrize("keep", ["full", "delta"])
@pytest.mark.parametrize("way", ["def", "async def"])
def test_clock_and_changes_are_those_of_the_rollout(bundle: Bundle, keep: str, way: str) -> None:
    ways = {"def": "db.execute(asked).scalar_one()", "async def": "await db.fetch_val(asked)"}
    bundle.write("reward.py", TIMED.format(way=way, asked=ways[way]))
    bundle.rows({"actions": GOLD, "n_rollouts": 1, "now": "2025-05-19T09:00:00"})
    played = agent_eval(bundle.dataset, agent="gold", eval_id="timed", keep_db=keep)
    assert [outcome.reward for outcome in played.outcomes] == [1.0]
    done = rescore("timed")
    assert [(one.now.reward, one.reason) for one in done.rollouts] == [(1.0, "2025-05-19 09:00:00 and 1 row")]


def test_rows_are_as_they_are_now(bundle: Bundle, finished: EvaluationResult, command: Command) -> None:
    goal = "SELECT COUNT(*) > 0 FROM bookings WHERE passenger = 'Bob'"
    bundle.rows({"id": "a", "actions": GOLD, "end_goal_sql": goal}, {"id": "b", "actions": GOLD})
    ran = command(finished.log_path)
    assert "2 rewards changed:\n  a #1: 1 -> 0  Task incomplete\n  a #2: 1 -> 0" in ran.out


def test_what_cannot_be_judged_is_told_and_the_rest_is_judged(bundle: Bundle, command: Command) -> None:
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 1})
    agent_eval(bundle.dataset, agent="gold", eval_id="first", keep_db="none")
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 2})
    result = agent_eval(bundle.dataset, agent="gold", eval_id="first")
    bundle.write("reward.py", STRICT)
    ran = command(result.log_path)
    assert ran.code == 1
    assert "1 reward changed:\n  a #2: 1 -> 0.25" in ran.out
    assert "1 rollout could not be judged:\n  a #1: 1 -> none" in ran.out
    assert "the final database was not kept" in ran.out


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        ("def evaluate(messages, **kwargs):\n    raise KeyError('seat')\n", "reward.py:2: KeyError: 'seat'"),
        ("import time\ndef evaluate(messages, **kwargs):\n    time.sleep(2)\n", "took longer than 0.1 s"),
    ],
    ids=["raises", "hangs"],
)
def test_a_faulty_reward_is_told_for_each_rollout(
    bundle: Bundle, finished: EvaluationResult, command: Command, reward: str, told: str
) -> None:
    bundle.write("reward.py", reward)
    ran = command(finished.log_path, "--timeout", "0.1" if "sleep" in reward else "60")
    assert ran.code == 1
    assert "Traceback" not in ran.err
    assert "4 rollouts could not be judged:" in ran.out
    assert ran.out.count(told) == 4


def test_changed_gold_actions_are_refused_where_the_reward_looks_at_them(
    bundle: Bundle, finished: EvaluationResult, command: Command
) -> None:
    bundle.rows({"id": "a", "actions": GOLD[:1]}, {"id": "b", "actions": GOLD})
    ran = command(finished.log_path)
    assert ran.code == 0
    assert ran.err.count("row a: its gold actions have changed since") == 1
    bundle.write("reward.py", STRICT.replace("*, db,", "*, db, gold_db,"))
    ran = command(finished.log_path)
    assert ran.code == 1
    assert "2 rollouts could not be judged:" in ran.out
    assert "its gold actions have changed" in ran.out


def test_a_new_evaluation_is_there_when_it_is_whole(bundle: Bundle, finished: Any, monkeypatch: Any) -> None:
    """Killed halfway, it leaves nothing that could be resumed as if models had to play the rest."""
    path = finished.log_path.with_name("second.db")
    there = []
    add = Store.add

    def seen(self: Store, played: Any) -> None:
        add(self, played)
        there.append(query(path, "SELECT count(*) AS runs FROM evaluation")[0]["runs"])

    monkeypatch.setattr(Store, "add", seen)
    rescore(finished.log_path, eval_id="second")
    assert set(there) == {0}
    names = sorted(one.name for one in path.parent.iterdir())
    assert names == [f"{name}.{end}" for name in ("first", "second") for end in ("db", "json", "lock")]


def test_an_unfinished_evaluation_stays_so_with_all_its_rows(bundle: Bundle) -> None:
    """A row that has left the dataset keeps its fields, and a row without rollouts its plan."""
    bundle.rows(*ROWS)
    model = {"agent": lambda _messages: Completion({"role": "assistant", "content": "No."}, Usage(cost=1.0))}
    first = agent_eval(
        bundle.dataset, eval_id="first", models=model, user="none", max_cost=0.5, max_concurrency=1
    )
    assert (first.status, [len(row.outcomes) for row in first.rows]) == ("budget", [1, 0])
    bundle.rows(ROWS[1])
    done = rescore("first", eval_id="again").written
    assert done is not None
    assert (done.status, done.planned, done.complete) == ("budget", first.planned, False)
    assert done.fingerprints["a"] == first.fingerprints["a"]
    assert next(done.records()).row.id == "a"


def test_states_count_from_the_seed_of_their_rollout_whatever_ran_since(
    bundle: Bundle, finished: EvaluationResult
) -> None:
    seed = bundle.folder / "seed.sql"
    seed.write_text(f"{seed.read_text()}UPDATE flights SET origin = 'LAX';\n")
    agent_eval(bundle.dataset, agent="gold", eval_id="second")
    for record in finished.records():
        changes = record.reward_arguments()["db"].changes()
        assert {change.table for change in changes} <= {"bookings", "flights"}
        assert "origin" not in str(changes.lines())


@pytest.mark.parametrize(
    ("file", "change", "told"),
    [
        ("tools.py", ("'reserved'", "'open'"), "flight_task/tools.py has changed"),
        ("seed.sql", ("VALUES (1, 'SFO', 'JFK'", "VALUES (2, 'SFO', 'JFK'"), "its seed has changed"),
        ("task.jsonl", ("a traveller.", "a pilot."), "sim_user_prompt was"),
    ],
)
def test_rollouts_that_were_played_otherwise_are_not_mixed_with_those_judged_again(
    bundle: Bundle,
    finished: EvaluationResult,
    command: Command,
    file: str,
    change: tuple[str, str],
    told: str,
) -> None:
    before = (bundle.folder / file).read_text()
    assert change[0] in before
    bundle.write(file, before.replace(*change))
    bundle.write("reward.py", STRICT)
    assert command(finished.log_path, "--eval-id", "strict").code == 0
    assert [outcome.reward for outcome in load_evaluation("strict").outcomes] == [0.25] * 4
    with pytest.raises(UsageError, match=told) as caught:
        agent_eval(resume="strict", n_rollouts=3)
    assert "reward.py" not in str(caught.value)
    found = compare("first", "strict")
    assert (len(found.rows), [*found.code]) == (2, ["flight_task/reward.py"])
    rows = "SELECT row_id, n_rollouts, base FROM rows ORDER BY row_id"
    strict = finished.folder / "evals" / "strict.db"
    assert query(strict, rows) == query(finished.log_path, rows)
    bundle.write(file, before)
    assert [one.reward for one in agent_eval(resume="strict", n_rollouts=3).outcomes] == [0.25] * 6
