"""Checking a whole bundle: what is found, and in which words."""

import json
from pathlib import Path
from typing import Any

import pytest

from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.agent.checks import ValidationReport, validate_async

SEED = """\
CREATE TABLE seats (id INTEGER PRIMARY KEY, taken_by TEXT);
INSERT INTO seats VALUES (1, NULL), (2, 'Bob');
"""

TOOLS = """\
from reward_kit.agent.tools.registry import ToolError, ToolRegistry

R = ToolRegistry("seats")

@R.tool(description="Take a seat", parameters={"seat": int, "name": str})
async def take(seat, name, db):
    if await db.fetch_val("SELECT taken_by FROM seats WHERE id = :s", {"s": seat}) is not None:
        raise ToolError("seat taken")
    await db.execute("UPDATE seats SET taken_by = :n WHERE id = :s", {"n": name, "s": seat})
    return {"seat": {"id": seat}}

@R.tool(description="Break", parameters={})
async def broken(db):
    raise KeyError("oops")
"""

REWARD = """\
def evaluate(messages, *, db, end_goal_sql, **kwargs):
    return {"score": float(db.execute(end_goal_sql).scalar_one())}
"""

ALICE_SITS = "SELECT COUNT(*) FROM seats WHERE taken_by = 'Alice'"
NOBODY_NEW = "SELECT COUNT(*) = 1 FROM seats WHERE taken_by IS NOT NULL"


def take(seat: Any, name: str = "Alice") -> dict[str, Any]:
    return {"name": "take", "arguments": {"seat": seat, "name": name}}


TAKE_1, REFUSED = take(1), take(2)


def write(parent: Path, *rows: Any, seed: str = SEED, tools: str = TOOLS, reward: str = REWARD) -> Path:
    folder = parent / "seats_task"
    folder.mkdir()
    (folder / "seed.sql").write_text(seed)
    (folder / "tools.py").write_text(tools)
    if reward:
        (folder / "reward.py").write_text(reward)
    with (folder / "task.jsonl").open("w") as file:
        for number, row in enumerate(rows):
            said = [{"role": "user", "content": "hi"}]
            full = {"id": f"r{number}", "toolset": "seats_task.tools", "initial_messages": said, **row}
            file.write(json.dumps(full) + "\n")
    return folder


async def check(folder: Path, *rows: dict[str, Any], **files: str) -> ValidationReport:
    with TaskBundle.load(write(folder, *rows, **files)) as bundle:
        return await validate_async(bundle)


async def test_a_sound_bundle_is_told_in_one_line(tmp_path: Path) -> None:
    report = await check(
        tmp_path,
        {"end_goal_sql": ALICE_SITS, "actions": [TAKE_1]},
        {"end_goal_sql": ALICE_SITS},
        {"end_goal_sql": NOBODY_NEW, "actions": []},
        tools=TOOLS.partition('@R.tool(description="Break"')[0],
    )
    gold = "gold earns the reward in 2 of 2 rows, doing nothing in 1 (r2)"
    told = f"seats_task: 3 rows, 1 tool: successfully validated; {gold}"
    assert (report.ok, report.lines()) == (True, [told])
    assert (await validate_async(tmp_path / "seats_task")).lines() == [told]


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ([{"name": "tak", "arguments": {}}], "actions[0]: there is no tool 'tak' (did you mean 'take'?)"),
        ([{"name": "take", "arguments": {"seat": 1}}], "actions[0] (take) answered"),
        ([take(1, "Ann")], "the gold actions give reward 0, not 1"),
        ([], "the gold actions give reward 0, not 1"),
        ([take(2), take({"$result": [0, "seat", "id"]})], "actions[0] answered 'Error: seat taken'"),
    ],
)
async def test_gold_actions_without_success_are_errors(tmp_path: Path, actions: Any, expected: str) -> None:
    report = await check(tmp_path, {"end_goal_sql": ALICE_SITS, "actions": actions})
    assert not report.ok
    assert expected in "\n".join(map(str, report.errors))
    assert all(finding.place == "task.jsonl:1 r0" for finding in report.errors)


@pytest.mark.parametrize(
    ("actions", "fault"),
    [
        ([{**REFUSED, "refused": True}, TAKE_1], None),
        ([REFUSED, TAKE_1], "actions[0] (take) is refused by its tool, 'Error: seat taken'"),
        ([{**TAKE_1, "refused": True}], 'actions[0] (take) has "refused": true, but its tool carries it'),
    ],
)
async def test_a_refused_gold_action_is_one_the_row_marks(tmp_path: Path, actions: Any, fault: Any) -> None:
    report = await check(tmp_path, {"end_goal_sql": ALICE_SITS, "actions": actions})
    if fault is None:
        assert (report.ok, report.rewarded) == (True, 1)
    else:
        (error,) = report.errors
        assert (error.kind, error.text.startswith(fault)) == ("refused-gold", True)


async def test_a_tool_that_refuses_invented_arguments_by_its_schema_is_not_warned_of(tmp_path: Path) -> None:
    schema = {"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"}
    tools = TOOLS.replace('"Break", parameters={}', f'"Break", parameters={{"code": {schema}}}')
    tools = tools.replace("broken(db)", "broken(code, db)")
    report = await check(tmp_path, {"end_goal_sql": ALICE_SITS, "actions": [TAKE_1]}, tools=tools)
    assert report.findings == []


async def test_a_fault_of_several_rows_is_told_once_with_the_rows(tmp_path: Path) -> None:
    row = {"end_goal_sql": ALICE_SITS, "actions": [REFUSED, TAKE_1]}
    report = await check(tmp_path, row, {"end_goal_sql": ALICE_SITS, "actions": [TAKE_1]}, row, row)
    (error,) = report.errors
    assert error.rows == ("r0", "r2", "r3")
    assert str(error).startswith("error: refused-gold: task.jsonl:1 r0: ")
    assert str(error).endswith(" (also in r2, r3)")


IGNORING = """\
def evaluate(messages, *, db, gold_db, **kwargs):
    return {"score": float(db.equals(gold_db, ignore=%r))}
"""


@pytest.mark.parametrize(
    ("ignored", "unknown"),
    [("seats.id *.TAKEN_BY seats", []), ("seats.takenby *.id", ["seats.takenby"]), ("chairs", ["chairs"])],
)
async def test_what_a_reward_ignores_is_in_the_tables(tmp_path: Path, ignored: str, unknown: Any) -> None:
    report = await check(tmp_path, {"actions": [TAKE_1]}, reward=IGNORING % (ignored.split(),))
    texts = [finding.text for finding in report.errors if finding.kind == "unknown-ignored"]
    assert [text.split(", ")[0] for text in texts] == [f"the reward ignores {name!r}" for name in unknown]


async def test_an_async_tool_that_sleeps_through_its_time_limit_is_an_error(tmp_path: Path) -> None:
    slow = TOOLS.replace('ToolRegistry("seats")', 'ToolRegistry("seats", tool_timeout=0.2)')
    slow = slow.replace("    await db.execute", "    __import__('time').sleep(0.6)\n    await db.execute")
    report = await check(tmp_path, {"end_goal_sql": ALICE_SITS, "actions": [TAKE_1]}, tools=slow)
    assert any("past its limit of 0.2 s" in finding.text for finding in report.errors), report.lines()


@pytest.mark.parametrize("strict", [False, True])
async def test_a_misspelt_field_is_an_error_if_strict(tmp_path: Path, strict: bool) -> None:
    folder = write(tmp_path, {"end_goal_sql": ALICE_SITS, "action": []})
    with TaskBundle.load(folder) as bundle:
        report = await validate_async(bundle, strict=strict)
    (finding,) = [one for one in (report.errors if strict else report.warnings) if one.kind == "field"]
    assert "did you mean 'actions'?" in finding.text
    assert report.ok is not strict


async def test_a_gold_action_whose_tool_breaks_is_an_error(tmp_path: Path) -> None:
    broken = {"name": "broken", "arguments": {}}
    report = await check(tmp_path, {"end_goal_sql": ALICE_SITS, "actions": [broken, TAKE_1]})
    (error,) = report.errors
    remedy = "a tool that refuses a call raises ToolError"
    assert error.text == f"actions[0] (broken) raised tools.py:14: KeyError: 'oops'; {remedy}"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("db.execute('DELETE FROM seats')\n    return {}", "was never awaited: an await is missing"),
        ("return db.fetch_all('SELECT * FROM seats')", "an await is missing"),
    ],
)
async def test_a_forgotten_await_is_an_error(tmp_path: Path, body: str, told: str) -> None:
    tools = f"""
from reward_kit.agent import ToolRegistry

R = ToolRegistry("seats")


@R.tool(parameters={{"seat": int, "name": str}})
async def take(seat, name, db):
    {body}
"""
    report = await check(tmp_path, {"end_goal_sql": "SELECT 1", "actions": [TAKE_1]}, tools=tools)
    assert told in "\n".join(map(str, report.errors))


async def test_a_reward_for_doing_nothing_is_an_error_where_gold_changes_data(tmp_path: Path) -> None:
    report = await check(tmp_path, {"end_goal_sql": "SELECT 1", "actions": [TAKE_1]})
    (error,) = report.errors
    assert error.text == "doing nothing gives reward 1, though the gold actions change data"


async def test_a_reward_that_does_not_look_at_outputs_is_a_warning(tmp_path: Path) -> None:
    reward = (
        "def evaluate(messages, *, db, outputs, **kwargs):\n"
        "    taken = db.execute(\"SELECT COUNT(*) FROM seats WHERE taken_by = 'Alice'\").scalar_one()\n"
        "    said = [m['content'] or '' for m in messages if m['role'] == 'assistant' and {heeds}]\n"
        "    return {{'score': float(taken and ({heeds} == False or outputs[0] in said[-1]))}}\n"
    )
    row = {"actions": [TAKE_1], "outputs": ["seat 1"]}
    (tmp_path / "deaf").mkdir()
    deaf = await check(tmp_path / "deaf", row, reward=reward.format(heeds=False))
    (warning,) = [one for one in deaf.warnings if one.kind == "ignored-outputs"]
    assert "saying nothing gives 1 too: the reward does not look at 'outputs'" in warning.text
    heeding = await check(tmp_path, row, reward=reward.format(heeds=True))
    assert (heeding.errors, [one.kind for one in heeding.warnings]) == ([], ["untried-tool"])


async def test_sql_that_does_not_run_is_told_with_its_row(tmp_path: Path) -> None:
    wrong = {"end_goal_sql": "SELECT nonsense FROM seats"}
    report = await check(tmp_path, wrong, {"end_goal_sql": ALICE_SITS})
    (error,) = report.errors
    assert str(error).startswith("error: goal: task.jsonl:1 r0: end_goal_sql does not run: ")
    assert "no such column: nonsense" in error.text


async def test_a_seed_that_does_not_load_is_told_once_with_its_line(tmp_path: Path) -> None:
    seed = SEED + "INSERT INTO chairs VALUES (1);\n"
    report = await check(tmp_path, *[{"end_goal_sql": ALICE_SITS}] * 2, seed=seed)
    (error,) = report.errors
    assert str(error).startswith("error: seed: seed of row 'r0': seats_task/seed.sql:3: ")
    assert "no such table: chairs" in error.text


async def test_a_dump_that_does_not_enforce_its_foreign_keys_is_warned_of(tmp_path: Path) -> None:
    dump = (
        f"PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;\n{SEED}CREATE TABLE t (s REFERENCES seats);\nCOMMIT;\n"
    )
    for name, seed, warned in (("a", dump, 1), ("b", f"{dump}PRAGMA foreign_keys = ON;\n", 0)):
        (tmp_path / name).mkdir()
        report = await check(tmp_path / name, {"end_goal_sql": ALICE_SITS}, seed=seed)
        told = [one for one in report.warnings if one.kind == "foreign-keys"]
        assert len(told) == warned


async def test_a_reward_that_raises_is_an_error(tmp_path: Path) -> None:
    reward = "def evaluate(messages, *, db, **kwargs):\n    return 1 / db.execute('SELECT 0').scalar()\n"
    report = await check(tmp_path, {"end_goal_sql": ALICE_SITS, "actions": [TAKE_1]}, reward=reward)
    texts = "\n".join(finding.text for finding in report.errors)
    assert "the gold actions cannot be judged: " in texts
    assert "the reward fails when nothing was done: " in texts
    assert "reward.py:2: ZeroDivisionError" in texts


TIMED = """\
CREATE TABLE bookings (id INTEGER PRIMARY KEY, name TEXT, made TEXT DEFAULT CURRENT_TIMESTAMP, day TEXT);
CREATE TABLE log (line TEXT, at TEXT DEFAULT (strftime('%s', 'now')));
"""
BOOKS = """\
from reward_kit.agent.tools.registry import ToolRegistry

R = ToolRegistry("seats")

@R.tool(description="Book", parameters={"name": str})
async def book(name, db):
    await db.execute("INSERT INTO bookings (name, day) VALUES (:n, date('now'))", {"n": name})
    await db.execute("INSERT INTO log (line) VALUES ('booked')")
"""
BOOK = {"name": "book", "arguments": {"name": "Ann"}}


@pytest.mark.parametrize(
    ("ignored", "told"),
    [
        ((), "write the time (bookings.made, log)"),
        (("bookings.made", "log.at"), "write the day (bookings.day)"),
    ],
)
async def test_a_reward_that_depends_on_the_time_is_an_error_and_on_the_day_a_warning(
    tmp_path: Path, ignored: Any, told: str
) -> None:
    """The check itself is quick enough for it to pass otherwise, and each agent that takes a second fails."""
    files = {"seed": TIMED, "tools": BOOKS, "reward": IGNORING % (ignored,)}
    report = await check(tmp_path, {"actions": [BOOK]}, **files)
    assert report.ok is bool(ignored), report.lines()
    found = report.warnings if report.ok else report.errors
    (text,) = [finding.text for finding in found if "gold actions write the" in finding.text]
    assert told in text


@pytest.mark.parametrize("frozen", [True, False])
async def test_frozen_times_and_those_that_are_not_compared_are_fine(tmp_path: Path, frozen: bool) -> None:
    ignored = () if frozen else ("bookings.made", "bookings.day", "log.at")
    files = {"seed": TIMED, "tools": BOOKS, "reward": IGNORING % (ignored,)}
    row = {"actions": [BOOK], **({"now": "2025-05-19T08:00:00Z"} if frozen else {})}
    report = await check(tmp_path, row, **files)
    assert report.ok, report.lines()
    assert not [finding for finding in report.warnings if "gold actions write" in finding.text]


@pytest.mark.parametrize(("row", "warned"), [({}, True), ({"now": "2025-05-19"}, False)])
async def test_a_seed_that_is_another_each_day_is_warned_of(tmp_path: Path, row: Any, warned: bool) -> None:
    seed = SEED + "CREATE TABLE days (day TEXT); INSERT INTO days VALUES (date('now'));"
    report = await check(tmp_path, {"end_goal_sql": ALICE_SITS, "actions": [TAKE_1], **row}, seed=seed)
    assert report.ok
    told = [finding.text for finding in report.warnings if "row 'r0' has no `now`" in finding.text]
    assert len(told) == warned


async def test_what_no_model_is_told_of_a_tool_is_a_warning(tmp_path: Path) -> None:
    tools = f"""{TOOLS}
@R.tool
async def move(seat, to=None, by: int = 1, fast=False, *, db):
    await db.execute("SELECT 1")
"""
    report = await check(tmp_path, {"end_goal_sql": ALICE_SITS, "actions": [TAKE_1]}, tools=tools)
    (told, types) = [str(one) for one in report.warnings if one.kind == "toolset"]
    assert told == "warning: toolset: tools.py:16 move: no description"
    assert types.startswith("warning: toolset: tools.py:16 move: parameters without a type, taken for text: ")
    assert types.endswith("taken for text: seat, to. Write seat: str")


@pytest.mark.parametrize("terminal", [True, False])
async def test_a_terminal_tool_that_writes_is_named_once_gold_lacks_it(tmp_path: Path, terminal: Any) -> None:
    tools = f"""{TOOLS}
@R.tool(description="Leave", parameters={{}}, terminal={terminal})
async def leave(db):
    await db.execute("UPDATE seats SET taken_by = NULL WHERE id = 2")
    return "gone"
"""
    row = {"actions": [TAKE_1, {"name": "leave", "arguments": {}}]}
    report = await check(tmp_path, row, tools=tools, reward=IGNORING % ((),))
    told = [finding.text for finding in report.errors]
    cause = (
        "actions[1] (leave) changes seats, but gold_db is without it: terminal tools are not run there; "
        "let another tool write, or leave it out of what the reward compares"
    )
    assert told[1:] == ([cause] if terminal else [])
    assert bool(told) == terminal


COUNTING = """
CALLS = []
""" + TOOLS.replace("    if await db", "    CALLS.append(name)\n    if await db")


@pytest.mark.parametrize(("answer", "least", "most"), [("seat", 20, 29), ("len(CALLS)", 60, 60)])
async def test_calls_are_played_twice_until_their_tool_has_proved_to_repeat_them(
    tmp_path: Path, answer: str, least: int, most: int
) -> None:
    tools = COUNTING.replace('{"id": seat}', answer)
    folder = write(tmp_path, *[{"end_goal_sql": ALICE_SITS, "actions": [TAKE_1]}] * 60, tools=tools)
    with TaskBundle.load(folder) as bundle:
        report = await validate_async(bundle)
        calls = bundle.tasks[0].registry.tools["take"].function.__globals__["CALLS"]
    assert (report.ok, report.rewarded) == (True, 60)
    assert least <= len(calls) - 60 <= most
