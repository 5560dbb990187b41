"""An evaluation that is read in brief says the same as one that is read whole, and takes far less memory."""

import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import pytest
from stored_rollouts import KEY, begun, edit, outcome

from reward_kit.agent.after.explainer import NOTE, Explanation
from reward_kit.agent.base.encoding import as_json
from reward_kit.agent.bundles.seed import Seed
from reward_kit.agent.reports import facts
from reward_kit.agent.reports.listings import evaluation_cells, group_notes, groups_table
from reward_kit.agent.rollout.outcome import Played
from reward_kit.agent.rows.task_row import TaskRow
from reward_kit.agent.store.layout import read_evaluation
from reward_kit.agent.store.results import EvaluationResult
from reward_kit.agent.store.resume import PlannedRow, Run
from reward_kit.agent.store.writer import Store

REWARDS = [1.0, 1.0, 1.0, 0.0, 0.25, 0.5, -0.5, 1.5, 2.0, None]
STOPS = ["user_stop", "agent_done", "max_steps", "timeout", "budget", "agent_error", "user_error"]
USER_FAULTS = [None, [], [], ["speaks_as_agent"], ["speaks_as_agent", "stop_token_in_text"]]
TOOL_FAULTS = [None, None, {"pay": {"calls": 2, "first": "tools.py:3: KeyError: 'x'"}}]
TOOL_FAULTS += [{"pay": {"calls": 1, "first": "other"}, "the agent": {"calls": 1, "first": "blocked"}}]
RULES = [None, {}, {"paid": [], "told": []}, {"paid": [{"id": 1}], "told": []}]
METRICS = [None, {}, {"tone": 0.25}, {"tone": 1.0, "length": 3.0}]


def played(random: Random, stops: list[str], number: int, row_id: str, index: int, attempt: int) -> Played:
    reward, stop, is_plain = random.choice(REWARDS), random.choice(stops), len(stops) < len(STOPS)
    one = outcome(
        number,
        row_id=row_id,
        index=index,
        attempt=attempt,
        reward=reward,
        stop_reason=stop,
        stop_detail=random.choice([None, "stopped", *["went away"] * 4]),
        error=random.choice([None, "KeyError", "went away"]) if reward is None else None,
        failure=None if reward is None or reward >= 1 else random.choice([None, "wrong_tool", "other"]),
        failure_detail=f"detail {number}",
        steps=random.randrange(9),
        turns=random.randrange(5),
        turn_of_success=random.choice([None, 1, 2, 3]) if reward is not None and reward >= 1 else None,
        seconds=random.random(),
        model_seconds=random.random(),
        waited_seconds=random.random(),
        timed_calls=random.choice([None, 2]),
        user_faults=[] if is_plain else random.choice(USER_FAULTS),
        tool_faults=None if is_plain else random.choice(TOOL_FAULTS),
        metrics=random.choice(METRICS),
        violations=None if is_plain else random.choice(RULES),
        base=KEY,
    )
    return Played(one, "{}")


def stored(path: Path, random: Random, rows: int, rollouts: int, **options: Any) -> None:
    """An evaluation whose rollouts came in any order, some of them twice; the last row was left out later."""
    planned = [
        PlannedRow(
            TaskRow(f"r{number}", "t.tools"),
            Seed(KEY),
            rollouts + 1,
            {"id": f"r{number}", "metadata": {"domain": f"d{number % 2}", "size": [number % 3, 7]}},
            {"row": "1"},
        )
        for number in range(rows)
    ]
    places = [(f"r{row}", index) for row in range(rows - 1) for index in range(rollouts)] * 2
    random.shuffle(places)
    places = places[: len(places) * 3 // 4]
    with Store(path) as store:
        store.begin_run(Run(path.stem, {"model": "m", **options}, {"python": "3"}, {}, {}, planned))
        stops = random.choice([STOPS, STOPS[2:3], STOPS[5:]])  # so that half have a fault
        store.add(
            [played(random, stops, at, *place, places[:at].count(place)) for at, place in enumerate(places)]
        )
    edit(path, "UPDATE rows SET n_rollouts = 0 WHERE row_id = 'r1'")


def explain(path: Path, random: Random) -> None:
    """Explain every second failure."""
    with Store(path) as store:
        store.run = 1
        for one in read_evaluation(path).outcomes:
            if one.scored and not one.success and random.random() < 0.5:
                fault = random.choice(["wrong_tool", "other"])
                made = Explanation(one.id, one.row_id, one.index, "m", "1", "agent", fault, f"why {one.id}")
                store.add_note(NOTE, as_json(made), one.id)
        store.add_note("results", {"explanations": {"model": "m", "reason": None}})


def said(result: EvaluationResult) -> list[Any]:
    """All that pages and lists say of an evaluation."""
    plain = result.members()
    groups = result.by("metadata.domain")
    return [
        {name: value for name, value in plain.items() if name != "rows"},
        [(row, row.rewards, row.failures, row.unjudged, len(row.outcomes)) for row in result.rows],
        facts.title_line(result),
        [*facts.facts_of(result)],
        [(line, first and first.id) for line, first in facts.tool_faults(result)],
        [*facts.interval_lines(result), *facts.left_out_lines(result), facts.means_line(result.rows)],
        evaluation_cells(result),
        groups_table(result, "metadata.domain", groups),
        [*group_notes(result, groups)],
        result.explanations,
    ]


@pytest.mark.parametrize("seed", range(24))
def test_reports_of_an_evaluation_in_brief_are_those_of_the_whole(tmp_path: Path, seed: int) -> None:
    random, path = Random(seed), tmp_path / "e.db"
    rows, rollouts = random.choice([(3, 2), (9, 5), (150, 2), (3, 60)])
    stored(path, random, rows, rollouts, errors_as_failures=bool(seed % 2), agent="tool-calling")
    if seed % 3 == 0:
        explain(path, random)
    whole, brief = read_evaluation(path), read_evaluation(path, brief=True)
    for one, other in zip(said(whole), said(brief), strict=True):
        assert repr(one) == repr(other)


def test_the_memory_of_a_brief_evaluation_does_not_grow_with_its_rollouts(tmp_path: Path) -> None:
    path, took = tmp_path / "e.db", []
    with begun(path, 4000) as store:
        for first in (0, 2000):
            ends = [{}, {"reward": 0.0, "failure": "wrong_tool"}]
            store.add(
                [
                    Played(outcome(first + at, base=KEY, seconds=at / 7, **ends[at % 2]), "{}")
                    for at in range(2000)
                ]
            )
            tracemalloc.start()
            kept = read_evaluation(path, brief=True)
            took.append(tracemalloc.get_traced_memory()[0])
            tracemalloc.stop()
            assert len(kept.outcomes) == first + 2000
            assert kept.averages.seconds[50] == read_evaluation(path).averages.seconds[50]
    assert took[1] - took[0] < 2000 * 100
