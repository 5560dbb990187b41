"""Rows and rollouts that a page lists, by the parameters of its address."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from flight_bundle import Bundle
from planned_agent import change_log, evaluate, rows_of
from stored_rollouts import begun, edit, played

from reward_kit.agent.reports.pages import selection as module
from reward_kit.agent.reports.pages.selection import Selection, listed
from reward_kit.agent.rollout.outcome import Played
from reward_kit.errors import UsageError

FILE = Path("runs/evals/first.db")


@pytest.fixture
def evaluated(bundle: Bundle) -> None:
    """Rows a (passed), b (once), c (never; not judged the first time)."""
    plan = {"a": [1, 1], "b": [1, 0], "c": [0, 0]}
    rows = rows_of(plan, system_prompt="Always be 100% polite.")
    result = evaluate(bundle, "first", plan, rows=rows)
    for row_id, cost in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        change_log(result, row_id, cost=cost)
    edit(
        FILE,
        "UPDATE rollouts SET reward = NULL, failure = NULL, error = 'broken' WHERE row_id = 'c' AND idx = 0",
    )


def found(**query: str) -> list[str]:
    chosen = listed(FILE, Selection.from_query(query))
    return [row.row_id for row in chosen.rows] + [f"{one.row_id}{one.index + 1}" for one in chosen.rollouts]


CHOICES: list[tuple[dict[str, str], str]] = [
    ({}, "c b a"),
    ({"by": "rollouts"}, "a1 a2 b1 b2 c1 c2"),
    ({"row": "B"}, "b"),
    ({"row": "_"}, ""),
    ({"kind": "always"}, "a"),
    ({"kind": "never", "by": "rollouts"}, "c1 c2"),
    ({"result": "passed"}, "b a"),
    ({"result": "failed"}, "c b"),
    ({"result": "failed", "by": "rollouts"}, "b2 c1 c2"),
    ({"result": "unjudged", "by": "rollouts"}, "c1"),
    ({"result": "partially_completed", "by": "rollouts"}, "b2 c2"),
    ({"result": "agent_done", "by": "rollouts", "row": "a"}, "a1 a2"),
    ({"tool": "create_booking", "by": "rollouts"}, "a1 a2 b1"),
    ({"tool": "create"}, ""),
    ({"text": "sorry", "by": "rollouts"}, "b2 c1 c2"),
    ({"text": '"passenger": "Alice"', "by": "rollouts"}, "a1 a2 b1"),
    ({"text": "100% polite"}, ""),
    ({"text": "s%y"}, ""),
    ({"text": "assistant"}, ""),
    ({"sort": "cost"}, "b c a"),
    ({"sort": "-cost"}, "a c b"),
    ({"sort": "-passed"}, "a b c"),
    ({"sort": "reward", "by": "rollouts"}, "b2 c2 a1 a2 b1 c1"),
    ({"unknown": "x", "page": "9"}, "c b a"),
]


@pytest.mark.usefixtures("evaluated")
def test_parameters_choose_and_sort() -> None:
    for query, expected in CHOICES:
        assert found(**query) == expected.split(), query
        chosen = Selection.from_query(query)
        assert Selection.from_query(dict(parse_qsl(chosen.query().removeprefix("?")))) == chosen


@pytest.mark.usefixtures("evaluated")
def test_a_search_finds_texts_that_an_earlier_one_did_not_read() -> None:
    for text, expected in (("nowhere", ""), ('"passenger": "alice"', "a1 a2 b1"), ("sorry.", "b2 c1 c2")):
        assert found(by="rollouts", text=text) == expected.split()


@pytest.mark.parametrize(
    "query",
    [{"sort": "tokens"}, {"by": "users"}, {"kind": "x"}, {"page": "0"}, {"page": "-1"}, {"page": "9" * 99}],
)
def test_a_wrong_parameter_is_named(query: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=next(iter(query))):
        Selection.from_query(query)


def test_pages_follow_each_other_and_new_rollouts_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 4)
    path = tmp_path / "e.db"
    with begun(path) as store:
        store.add([played(number, reward=number % 2) for number in range(9)])
        pages = [listed(path, Selection(by="rollouts", page=page)) for page in (1, 2, 3, 4)]
        shown = [[one.index for one in page.rollouts] for page in pages]
        assert shown == [[0, 1, 2, 3], [4, 5, 6, 7], [8], [8]]
        assert {(page.total, page.pages) for page in pages} == {(9, 3)}
        store.add([played(9)])
        assert listed(path, Selection(by="rollouts")).total == 10
        store.add([played(10, index=0, id="again", reward=0.0)])
        failed = listed(path, Selection(by="rollouts", result="failed"))
        assert failed.rollouts[0].id == "again"  # it replaces the first
        assert failed.total == 5


def test_a_search_reads_what_was_stored_since_and_no_other_file_of_the_name(tmp_path: Path) -> None:
    path = tmp_path / "e.db"

    def saying(number: int, text: str) -> Played:
        messages = json.dumps({"messages": [{"role": "user", "content": text}]})
        return replace(played(number), trace=messages)

    def told(text: str) -> list[int]:
        return [one.index for one in listed(path, Selection(by="rollouts", text=text)).rollouts]

    with begun(path) as store:
        store.add([saying(0, "A lamp"), saying(1, "a chair"), replace(played(2), trace="{")])
        assert (told("lamp"), told("CHAIR"), told("%")) == ([0], [1], [])
        store.add([saying(3, "two lamps")])
        assert told("lamp") == [0, 3]
    path.unlink()
    with begun(path) as store:
        store.add([saying(0, "a table")])
        assert (told("lamp"), told("table")) == ([], [0])
