"""The mistakes of a first day, planted in a small bundle: each has one message, with its remedy."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reward_kit.agent import TaskBundle, validate
from reward_kit.errors import BundleError

SEED = """\
PRAGMA foreign_keys = ON;
CREATE TABLE specialties (code TEXT PRIMARY KEY);
CREATE TABLE doctors (id INTEGER PRIMARY KEY, name TEXT, specialty TEXT REFERENCES specialties(code));
CREATE TABLE visits (id INTEGER PRIMARY KEY, doctor INTEGER REFERENCES doctors(id), minutes INTEGER, reason TEXT);
INSERT INTO specialties VALUES ('PED');
INSERT INTO doctors VALUES (1, 'Ruiz', 'PED'), (2, 'Okafor', 'PED');
"""
TOOLS = '''\
from reward_kit.agent import ToolRegistry

R = ToolRegistry("clinic")


@R.tool
async def doctors(*, db) -> list:
    """All doctors."""
    return await db.fetch_all("SELECT * FROM doctors")


@R.tool
async def book(doctor: int, minutes: int, reason: str, *, db) -> dict:
    """Book a visit."""
    sql = "INSERT INTO visits (doctor, minutes, reason) VALUES (:d, :m, :r)"
    await db.execute(sql, {"d": doctor, "m": minutes, "r": reason})
    return {"visit_id": await db.fetch_val("SELECT max(id) FROM visits"), "fee": 140.0}


@R.tool(terminal=True)
async def call_ambulance(*, db) -> str:
    """Call an ambulance, which ends the conversation."""
    return "on its way"
'''
BOOK: dict[str, Any] = {"name": "book", "arguments": {"doctor": 1, "minutes": 30, "reason": "headache"}}
AMBULANCE = {
    "id": "fall",
    "sim_user_prompt": "You have fallen badly.",
    "actions": [{"name": "call_ambulance"}],
}
VISIT = {
    "id": "visit",
    "sim_user_prompt": "You want half an hour with Dr Ruiz for your headache.",
    "actions": [BOOK],
}
ASK = {**VISIT, "actions": [{"name": "doctors"}, BOOK], "outputs": ["40"]}
DATA = """\
def evaluate(messages, *, db, gold_db, **kwargs):
    return {"score": float(db.equals(gold_db, ignore=("visits.reason",)))}
"""
BY_CALLS = """\
from reward_kit.agent.rewards import all_of, calls_made


def evaluate(messages, *, db, rollout, required_calls=(), **kwargs):
    return all_of({"calls": calls_made(rollout.tool_calls, required=required_calls)})
"""
PASSED_ON = """\
from reward_kit.agent.rewards.default import evaluate as by_fields


def evaluate(messages, *, db, **kwargs):
    return by_fields(messages, db=db, **kwargs)
"""
SKELETON = (
    TOOLS
    + '''

@R.tool
async def cancel(visit_id: int, *, db) -> str:
    """Cancel a visit."""
    raise ToolError("cancel is not written yet")
'''.replace("ToolError(", "__import__('reward_kit').agent.ToolError(")
)
DUMP = SEED.replace("PRAGMA foreign_keys = ON;", "PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;") + "COMMIT;\n"
FREE, LOOSE = (
    "the reward compares visits.reason, which holds reason of book",
    "the output '40' counts as said in '140.0'",
)
SAYS_40 = """\
def evaluate(messages, *, db, gold_db, outputs=(), **kwargs):
    said = " ".join(m["content"] or "" for m in messages if m["role"] == "assistant")
    return {"score": float(db.equals(gold_db) and all(output in said for output in outputs))}
"""


def write(
    parent: Path, *rows: dict[str, Any], seed: str | None = SEED, tools: str = TOOLS, reward: str = ""
) -> Path:
    folder = parent / "clinic_task"
    folder.mkdir()
    for name, text in (("seed.sql", seed), ("tools.py", tools), ("reward.py", reward)):
        if text:
            (folder / name).write_text(text)
    full = [{"toolset": ".tools", **row} for row in rows]
    (folder / "task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in full))
    return folder


def told(folder: Path, *, deep: bool = False) -> list[str]:
    with TaskBundle.load(folder) as bundle:
        return [str(finding) for finding in validate(bundle, deep=deep).findings]


def test_the_bundle_itself_is_right(tmp_path: Path) -> None:
    ambulance = {**AMBULANCE, "required_calls": ["call_ambulance"]}
    assert told(write(tmp_path, VISIT, ambulance, reward="")) == []


NO_EFFECT = (
    "warning: no-effect: task.jsonl:1 visit: field {!r} has no effect: clinic_task/reward.py does not take it"
)
# ruff: noqa: ISC004, E501 - one message a line
MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "required call without effect": (
        {"required_calls": ["book"]}, {"reward": DATA}, [NO_EFFECT.format("required_calls")]
    ),
    "criteria without effect": ({"criteria": ["Is kind"]}, {"reward": DATA}, [NO_EFFECT.format("criteria")]),
    "a field that the reward takes": ({"required_calls": ["book"]}, {"reward": BY_CALLS}, []),
    "fields that are passed on": ({"required_calls": ["book"]}, {"reward": PASSED_ON}, []),
    "gold makes a forbidden call": (
        {"forbidden_calls": ["book"]},
        {"reward": DATA},
        [
            "error: broken-row: task.jsonl:1 visit: the gold actions break the row's own fields: called book, "
            "which is forbidden",
            NO_EFFECT.format("forbidden_calls"),
        ],
    ),
    "gold misses its own goal": (
        {"end_goal_sql": "SELECT 0"},
        {"reward": DATA},
        [
            "error: broken-row: task.jsonl:1 visit: end_goal_sql is not true after the gold actions",
            NO_EFFECT.format("end_goal_sql"),
        ],
    ),
    "an answer of 5 MB": (
        {},
        {"tools": TOOLS.replace('"fee": 140.0', '"fee": "x" * 5_000_000')},
        [
            "warning: large-answer: task.jsonl:1 visit: book answers 5,000,026 characters (the model gets the first "
            "1,000,000, about 250,000 tokens)"
        ],
    ),
    "foreign keys off after a dump": (
        {},
        {"seed": DUMP},
        [
            "warning: foreign-keys: seed clinic_task/seed.sql: the tables declare foreign keys that are not "
            "enforced"
        ],
    ),
    "no seed": (
        {},
        {"seed": None},
        [
            "error: seed: task.jsonl:1 visit: there is no seed.sql or seed.py in clinic_task: the database is "
            "empty"
        ],
    ),
    "a reference to no row": (
        {},
        {"seed": SEED.replace("'Ruiz', 'PED'", "'Ruiz', 'PEDX'")},
        [
            "error: seed: seed of row 'visit': clinic_task/seed.sql:6: FOREIGN KEY constraint failed: "
            "doctors.specialty 'PEDX' is in no row of specialties.code, in: INSERT INTO doctors VALUES (1, 'Ruiz', "
            "'PEDX'), (2, 'Okafor', 'PED');"
        ],
    ),
    "a wrong table in a tool": (
        {},
        {"tools": TOOLS.replace("FROM visits", "FROM visit")},
        [
            "error: gold-call: task.jsonl:1 visit: actions[0] (book) raised tools.py:17: no such table: visit "
            "(there is visits)"
        ],
    ),
    "a wrong table in the goal": (
        {"end_goal_sql": "SELECT count(*) FROM visit"},
        {},
        [
            "error: goal: task.jsonl:1 visit: end_goal_sql does not run: no such table: visit (there is visits)"
        ],
    ),
    "a missing await": (
        {},
        {"tools": TOOLS.replace("    await db.execute(sql", "    db.execute(sql")},
        ["error: gold-call: task.jsonl:1 visit: actions[0] (book) raised tools.py:16: "],
    ),
    "a reference to a wrong key": (
        {"actions": [BOOK, {**BOOK, "arguments": {**BOOK["arguments"], "doctor": {"$result": [0, "id"]}}}]},
        {},
        [
            'error: gold-call: task.jsonl:1 visit: actions[1] cannot be made: gold reference [0, "id"]: '
            'actions[0] answers no "id" (it has visit_id, fee)'
        ],
    ),
    "parameters without a type": (
        {},
        {"tools": TOOLS.replace("reason: str", "reason")},
        [
            "warning: toolset: tools.py:12 book: parameters without a type, taken for text: reason. Write "
            "reason: str"
        ],
    ),
    "a tool that prints": (
        {},
        {"tools": TOOLS.replace("    sql =", "    print('HELLO', doctor)\n    sql =")},
        ["warning: prints: tools.py:15 book: prints 'HELLO 1' to standard output"],
    ),
    "a tool that is not written": (
        {},
        {"tools": SKELETON},
        [
            "warning: untried-tool: tools.py:26 cancel: has never run: no gold action calls it, and an example "
            "answers 'Error: cancel is not written yet'"
        ],
    ),
    "a tool that does not exist": (
        {"actions": [{**BOOK, "name": "bok"}]},
        {},
        [
            "error: gold-call: task.jsonl:1 visit: actions[0]: there is no tool 'bok' (did you mean 'book'?)",
        ],
    ),
    "a field that is misspelt": (
        {"action": []},
        {},
        ["warning: field: task.jsonl:1 visit: field 'action': is kept as a field of your own; did you mean 'actions'?"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("row", "files", "expected"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_has_one_message(tmp_path: Path, row: Any, files: Any, expected: list[str]) -> None:
    found = told(write(tmp_path, {**VISIT, **row}, **files))
    assert len(found) == len(expected), found
    for line, start in zip(found, expected, strict=True):
        assert line.startswith(start)
        assert start.endswith(": ") or line == start
        assert "raises ToolError" not in line


DEEP: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "a gold of one terminal tool": (
        AMBULANCE,
        {},
        [
            "note: no-op: task.jsonl:1 fall: doing nothing gives 1: nothing asks for call_ambulance, "
            '"required_calls": ["call_ambulance"] would'
        ],
    ),
    "free text that is compared": (
        VISIT,
        {},
        [f"warning: free-text: task.jsonl:1 visit: {FREE}: an agent fails that words it otherwise"],
    ),
    "an output inside a number": (
        ASK, {"reward": SAYS_40.replace("gold_db)", "gold_db, ignore=('visits.reason',))")},
        [f"warning: loose-output: task.jsonl:1 visit: {LOOSE}"],
    ),
    "a sum in cents": ({**ASK, "outputs": ["2.80"]}, {"reward": SAYS_40, "tools": TOOLS.replace("140.0", "280")}, []),
}  # fmt: skip


@pytest.mark.parametrize(("row", "files", "expected"), DEEP.values(), ids=DEEP)
def test_a_mistake_that_only_deep_validation_finds(
    tmp_path: Path, row: Any, files: Any, expected: Any
) -> None:
    ours = ("no-op", "free-text", "loose-output", "unknown-output")
    found = [line for line in told(write(tmp_path, row, **files), deep=True) if line.split(": ")[1] in ours]
    assert [line for line in found if FREE not in line or "free" in str(expected)] == expected


def as_database(folder: Path) -> None:
    (folder / "seed.sql").unlink()
    with closing(sqlite3.connect(folder / "seed.sql")) as connection:
        connection.executescript(SEED)


def in_circle(folder: Path) -> None:
    (folder / "helper.py").write_text("from clinic_task.tools import R\n")
    (folder / "tools.py").write_text("from clinic_task.helper import NAMES\n" + TOOLS)


def as_dump(text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / "seed.sql").write_text(text)


def in_openai_form(folder: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "book", "arguments": "{}"}}
    (folder / "task.jsonl").write_text(json.dumps({**VISIT, "toolset": ".tools", "actions": [call]}))


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (as_database, "is an SQLite database, not text. Write it as SQL: sqlite3 seed.sql .dump > seed.sql"),
        (as_dump("PGDMP\1"), "is an archive of pg_dump, not text. Write it as SQL: pg_restore -a"),
        (in_circle, "helper.py:1: cannot import 'R': clinic_task.tools and this module import each other"),
        (
            in_openai_form,
            "task.jsonl:1: row 'visit', field 'actions[0]': is in OpenAI's form of a call; "
            'write {"name": "book", "arguments": {…}}',
        ),
    ],
)
def test_a_bundle_that_cannot_be_read_has_one_error(tmp_path: Path, plant: Any, expected: str) -> None:
    folder = write(tmp_path, VISIT)
    plant(folder)
    with pytest.raises(BundleError) as raised:
        TaskBundle.load(folder)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("dump", "expected"),
    [
        ("SELECT pg_catalog.set_config('search_path', '', false);\n", "This is a dump of PostgreSQL"),
        ("CREATE TABLE t (id int AUTO_INCREMENT) ENGINE=InnoDB;\n", "This is a dump of MySQL"),
    ],
)
def test_a_dump_of_another_database_is_named(tmp_path: Path, dump: str, expected: str) -> None:
    (finding,) = told(write(tmp_path, VISIT, seed=dump))
    assert expected in finding


def test_the_name_of_a_bundle_that_is_meant(tmp_path: Path) -> None:
    folder = write(tmp_path, VISIT)
    with pytest.raises(
        BundleError, match=r"no installed bundle of that name \(did you mean 'clinic_task'\?\)"
    ):
        TaskBundle.load(folder.with_name("clinic_tsk"))
