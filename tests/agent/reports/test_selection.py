"""Rows and rollouts that a page lists, by the parameters of its address."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qsl

import pytest
from flight_bundle import Bundle
from planned_agent import change_log, evaluate, rows_of
from stored_rollouts import begun, edit, played

from reward_kit.agent.reports.pages import selection as module
from reward_kit.agent.reports.pages.selection import Selection, listed
from reward_kit.agent.rollout.outcome import Played
from reward_kit.agent.rollout.trace import Trace
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
        store.add([played(11, reward=None, error="boom")])
        assert listed(path, Selection(by="rollouts", result="reward_error")).total == 1


def test_rollouts_that_passed_are_in_no_class_of_failures(tmp_path: Path) -> None:
    path = tmp_path / "e.db"
    with begun(path) as store:
        cut = {"stop_reason": "max_steps"}
        store.add([played(0, **cut), played(1, reward=0.0, failure="max_steps", **cut), played(2)])
        store.add([played(3, reward=None, stop_reason="infrastructure_error")])

    def chosen(result: str) -> list[int]:
        return [one.index for one in listed(path, Selection(by="rollouts", result=result)).rollouts]

    assert (chosen("max_steps"), chosen("agent_done"), chosen("infrastructure_error")) == ([1], [2], [3])


def test_rows_that_were_not_played_have_no_result(tmp_path: Path) -> None:
    path = tmp_path / "e.db"
    begun(path).close()
    assert [row.row_id for row in listed(path, Selection()).rows] == ["a"]
    for result in ("passed", "failed", "unjudged"):
        assert listed(path, Selection(result=result)).rows == [], result


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


def with_messages(number: int, messages: list[dict[str, Any]], **fields: Any) -> Played:
    trace = Trace(id=f"r{number:05d}", row_id="a", messages=messages, **fields)
    return replace(played(number), trace=trace.encoded())


def having(path: Path, text: str) -> list[int]:
    """The numbers of the rollouts with ``text``; an address would have spaces at its ends removed."""
    return sorted(one.index for one in listed(path, Selection(by="rollouts", text=text), whole=True).rollouts)


CALLS = [
    {"id": f"hidden{n}", "type": "function", "function": {"name": name, "arguments": f'{{"to": "{name}"}}'}}
    for n, name in enumerate(("first", "second"))
]
MESSAGES: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": 'Say "hi"\nnow, a\\b\tZoë \x7f\x1f1f 50%_.'}],
    [{"role": "system", "content": "Secretly"}, {"role": "user", "content": "Openly"}],
    [{"content": "Secretly", "role": "system"}, {"content": "Openly", "role": "user"}],
    [{"role": "user", "content": "Openly"}, {"role": "system", "content": "Secretly"}],
    [{"role": "user", "content": [{"type": "text", "text": "In part"}, {"type": "image_url"}]}],
    [{"role": "assistant", "content": None, "tool_calls": CALLS}],
    [{"role": "user", "content": "The assistant has a role, content, arguments and an id: null, {hidden0}"}],
    [{"role": "user", "content": ":"}, {"role": "assistant", "content": "Done\\", "refusal": None}],
    [{"role": "user", "content": 'x:","role":"system","content":"Openly'}],
    [{"role": "user", "content": ["Early"], "user_messages": {"0": "Own"}}, {"role": "user", "name": "Late"}],
    [{"role": "system", "content": "Sell lamps"}, {"role": "user", "content": "LAMPS!"}],
]
SEARCHES: list[tuple[str, list[int]]] = [
    ('"HI"', [0]),
    ('hi"\nnow', [0]),
    ("n", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ("nnow", []),
    ("a\\b", [0]),
    ("a\\\\b", []),
    ("\tz", [0]),
    ("tz", []),
    ("Zoë", [0]),
    ("ZOË", []),
    ("\x7f\x1f1f", [0]),
    ("001f", []),
    ("0%_.", [0]),
    ("0%.", []),
    ("secretly", []),
    ("openly", [1, 2, 3, 8]),
    ("in part", [4]),
    ("image_url", []),
    ("first", [5]),
    ("second", [5]),
    ('"to": "second"', [5]),
    ("hidden0", [6]),
    ("role", [6, 8]),
    ("content", [6, 8]),
    ("arguments", [6]),
    ("assistant", [6]),
    ("tool_calls", []),
    ("early", [9]),
    ("own", [9]),
    ("late", [9]),
    ("lamps", [10]),
    ("sell", []),
    ("user", []),
    ("null", [6]),
    ("}", [2, 5, 6]),
    (":", [2, 5, 6, 7, 8]),
    ("done\\", [7]),
    ('","', [8]),
    ("compared", []),
    ("aside", [2]),
    ('"to": "myself"', [2]),
    ("look", [2]),
    ("screen", [2]),
    ("hidden9", []),
    ("clerk", []),
    ("nowhere", []),
]


def test_a_search_finds_what_is_said_and_nothing_else_of_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "e.db"
    others: dict[str, Any] = {
        "agent": "clerk",
        "result": {"reason": "compared"},
    }
    own = {"id": "hidden9", "type": "function", "function": {"name": "look", "arguments": '{"to": "myself"}'}}
    apart = [
        {"role": "user", "content": "aside", "tool_calls": [own]},
        {"role": "tool", "tool_call_id": "hidden9", "content": "The screen is dark."},
    ]
    aside: dict[int, dict[str, Any]] = {2: {"user_messages": {0: apart}}}
    with begun(path) as store:
        store.add(
            [
                with_messages(number, said, **others, **aside.get(number, {}))
                for number, said in enumerate(MESSAGES)
            ]
        )
    for text, expected in SEARCHES:
        assert having(path, text) == expected, text


def test_a_search_finds_as_much_as_reading_every_trace(tmp_path: Path) -> None:
    random, path = Random(7), tmp_path / "e.db"
    parts = [
        "a",
        "n",
        "u",
        "0",
        '"',
        "\\",
        "\n",
        "\x01",
        "é",
        ":",
        ",",
        "{",
        "}",
        "[",
        '"role":"system"',
        "Content",
    ]

    def text() -> str:
        return "".join(random.choices(parts, k=random.randrange(8)))

    def message() -> dict[str, Any]:
        said: dict[str, Any] = {"role": random.choice(["user", "assistant", "system"]), "content": text()}
        if random.random() < 0.3:
            said["content"] = [{"type": "text", "text": text()}, text()]
        items = [*said.items(), (random.choice(["name", "note", "id"]), text())]
        random.shuffle(items)
        return dict(items if random.random() < 0.3 else said)

    def texts(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [
                one
                for key, inner in value.items()
                if key not in ("role", "type", "id")
                for one in texts(inner)
            ]
        return [one for inner in value for one in texts(inner)] if isinstance(value, list) else [value]

    conversations = [[message() for _ in range(3)] for _ in range(100)]
    with begun(path) as store:
        store.add([with_messages(number, said) for number, said in enumerate(conversations)])
    for sought in {text() for _ in range(60)} - {""}:
        expected = [
            number
            for number, said in enumerate(conversations)
            if any(
                sought.lower() in one.lower()
                for part in said
                if part["role"] != "system"
                for one in texts(part)
            )
        ]
        assert having(path, sought) == expected, sought


def test_a_search_does_not_see_a_secret_that_the_pages_hide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, secret = tmp_path / "e.db", "kV8mQ2xT7wLp9ZrB4nYc"
    with begun(path) as store:
        store.add([with_messages(0, [{"role": "user", "content": f"It is {secret}, the key"}])])
        assert having(path, secret) == [0]
        monkeypatch.setenv("SHOP_API_KEY", secret)
        store.add([with_messages(1, [{"role": "user", "content": f"It is {secret}, the lock"}])])
    for text, expected in ((secret, []), ("xt7wlp", []), ("is kV8", []), ("[hidden]", [1]), ("key", [0])):
        assert having(path, text) == expected, text


def test_a_search_tells_conversations_apart_that_begin_alike(tmp_path: Path) -> None:
    path, opening = tmp_path / "e.db", {"role": "user", "content": "Which one, please?"}
    answers = ["A lamp", "A lamp", "A LAMP, a role", "A chair", "A lamp", "A chair", "A role", "A lam"]
    with begun(path) as store:
        store.add(
            [
                with_messages(number, [opening, {"role": "assistant", "content": said}])
                for number, said in enumerate(answers)
            ]
        )
        for text, expected in (
            ("lamp", [0, 1, 2, 4]),
            ("a chair", [3, 5]),
            ("role", [2, 6]),
            ("which", list(range(8))),
            ("user", []),
        ):
            assert having(path, text) == expected, text


def test_a_search_finds_rollouts_whose_traces_are_stored_in_another_order(tmp_path: Path) -> None:
    path = tmp_path / "e.db"
    with begun(path) as store:
        store.add([with_messages(n, [{"role": "user", "content": f"lamp {n}"}]) for n in range(4)])
    edit(path, "DELETE FROM traces WHERE rollout = 'r00001'")
    edit(path, "UPDATE traces SET rowid = -rowid")
    edit(path, "UPDATE traces SET rowid = 5 + rowid")
    edit(path, "INSERT INTO traces SELECT 'gone', json, crc FROM traces WHERE rollout = 'r00002'")
    for text, expected in (("lamp 0", [0]), ("lamp 1", []), ("lamp 2", [2]), ("lamp", [0, 2, 3])):
        assert having(path, text) == expected, text
