"""Deep validation: each planted fault is found under its name, and a sound bundle has no finding."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import run_command

from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.agent.checks import ValidationReport, validate
from reward_kit.errors import BundleError

SEED = """\
CREATE TABLE users (user_id TEXT PRIMARY KEY, name TEXT, email TEXT, phone TEXT);
CREATE TABLE cards (card_id TEXT PRIMARY KEY, user_id TEXT, kind TEXT);
CREATE TABLE rooms (room_id TEXT PRIMARY KEY, view TEXT, price REAL);
CREATE TABLE stays (room_id TEXT PRIMARY KEY, user_id TEXT, card_id TEXT, nights INTEGER, seen TEXT);
CREATE TABLE log (line TEXT);
INSERT INTO users VALUES ('ann_1', 'Ann Lee', 'ann@example.com', '5551234'),
    ('bob_2', 'Bob Ray', 'bob@example.com', '5559876');
INSERT INTO cards VALUES ('card_11', 'ann_1', 'visa'), ('card_12', 'ann_1', 'paypal'),
    ('card_21', 'bob_2', 'visa');
INSERT INTO rooms VALUES ('R1', 'garden', 80.5), ('R2', 'sea', 120.25), ('R3', 'sea', 120.25),
    ('R4', 'hill', 95);
"""

TOOLS = """\
from reward_kit.agent import ToolError, ToolRegistry

R = ToolRegistry("hotel", tool_timeout=0.5)


@R.tool(description="The user with this email", parameters={"email": str})
async def find_user(email, db):
    found = await db.fetch_val("SELECT user_id FROM users WHERE email = :e", {"e": email})
    if found is None:
        raise ToolError("no such user")
    return found


@R.tool(description="The user with this phone number", parameters={"phone": str})
async def find_caller(phone, db):
    found = await db.fetch_val("SELECT user_id FROM users WHERE phone = :p", {"p": phone})
    if found is None:
        raise ToolError("no such user")
    return found


@R.tool(description="A user", parameters={"user_id": str})
async def get_user(user_id, db):
    user = await db.fetch_one("SELECT * FROM users WHERE user_id = :u", {"u": user_id})
    if user is None:
        raise ToolError("no such user")
    cards = await db.fetch_all("SELECT card_id, kind FROM cards WHERE user_id = :u", {"u": user_id})
    return {**dict(user), "cards": cards}


@R.tool(description="All rooms", parameters={})
async def list_rooms(db):
    return await db.fetch_all("SELECT * FROM rooms")


@R.tool(description="Book a room", parameters={"room_id": str, "user_id": str, "card_id": str, "nights": int})
async def book(room_id, user_id, card_id, nights, db):
    if not await db.fetch_val("SELECT count(*) FROM rooms WHERE room_id = :r", {"r": room_id}):
        raise ToolError("no such room")
    known = "SELECT count(*) FROM cards WHERE card_id = :c AND user_id = :u"
    if not await db.fetch_val(known, {"c": card_id, "u": user_id}):
        raise ToolError("no such card")
    await db.execute(
        "INSERT INTO stays (room_id, user_id, card_id, nights) VALUES (:r, :u, :c, :n)",
        {"r": room_id, "u": user_id, "c": card_id, "n": nights},
    )
    await db.execute("INSERT INTO log VALUES (:r)", {"r": room_id})
    return "booked"


@R.tool(description="Change the nights of a stay", parameters={"room_id": str, "nights": int})
async def set_nights(room_id, nights, db):
    await db.execute("UPDATE stays SET nights = :n WHERE room_id = :r", {"r": room_id, "n": nights})
    return "changed"
"""

HANG = """

@R.tool(description="Hang", parameters={})
async def hang():
    __import__("time").sleep(0.6)
    return "done"
"""

REWARD = """\
def evaluate(messages, *, db, gold_db, outputs=(), **kwargs):
    said = " ".join(m["content"] or "" for m in messages if m["role"] == "assistant")
    is_said = all(output in said for output in outputs)
    return {"score": float(db.equals(gold_db, ignore=("log",)) and is_said)}
"""
GOAL = "def evaluate(messages, db, **kwargs):\n    return {'score': float(db.execute('%s').scalar() or 0)}\n"
DEAF = "def evaluate(messages, *, db, gold_db, **kwargs):\n    return {'score': float(db.equals(gold_db))}\n"
ALICE = "You are Ann Lee, ann@example.com, phone 5551234. "
USER = ALICE + "You want room R4 for 2 nights, on your visa card."
NIGHTS = {n: {"name": "set_nights", "arguments": {"room_id": "R4", "nights": n}} for n in (3, 5)}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


FIND = call("find_user", email="ann@example.com")
BOOK = call("book", room_id="R4", user_id="ann_1", card_id="card_11", nights=2)
SOUND: dict[str, Any] = {"sim_user_prompt": USER, "actions": [FIND, call("get_user", user_id="ann_1"), BOOK]}
ANSWER = {
    "sim_user_prompt": ALICE + "You ask what R1 and R2 cost together, and want nothing booked.",
    "actions": [call("list_rooms")],
    "outputs": ["200.75"],
}


def write(parent: Path, *rows: dict[str, Any], tools: str = TOOLS, reward: str = REWARD) -> Path:
    folder = parent / "hotel_task"
    folder.mkdir()
    for name, text in (("seed.sql", SEED), ("tools.py", tools), ("reward.py", reward)):
        (folder / name).write_text(text)
    full = [{"id": f"r{number}", "toolset": "hotel_task.tools", **row} for number, row in enumerate(rows)]
    (folder / "task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in full))
    return folder


def report_of(folder: Path, **options: Any) -> ValidationReport:
    with TaskBundle.load(folder) as bundle:
        return validate(bundle, deep=True, **options)


def kinds(report: ValidationReport) -> set[str]:
    return {finding.kind for finding in report.findings}


def test_a_sound_bundle_has_no_finding(tmp_path: Path) -> None:
    nobody = {"sim_user_prompt": ALICE + "You want a castle, and nothing else.", "actions": []}
    report = report_of(write(tmp_path, SOUND, ANSWER, nobody))
    assert (report.findings, report.ok) == ([], True)
    assert report.mutants > 3
    assert report.mutation_score == 1.0


def changed(**fields: Any) -> list[dict[str, Any]]:
    """The sound actions with another booking."""
    return [*SOUND["actions"][:2], {**BOOK, "arguments": {**BOOK["arguments"], **fields}}]


def refused(actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**one, "refused": True} for one in actions]


UNHEARD = REWARD.replace("is_said)", "True)")
ANY_CARD, BY_SEA = USER.replace("visa card", "card"), USER.replace("room R4", "a room with a sea view")


@pytest.mark.parametrize(
    ("kind", "row", "reward", "words"),
    [
        ("refused-gold", {"actions": changed(room_id="R44")}, REWARD, "'Error: no such room'"),
        ("refused-gold", {"actions": refused(SOUND["actions"])}, REWARD, "carries it out"),
        ("no-op", {"actions": refused(changed(room_id="R44")[2:])}, REWARD, "gives 1"),
        ("no-op", {}, GOAL % "SELECT 1", "though the gold actions change data"),
        ("no-op", {"actions": SOUND["actions"][:2]}, REWARD, "gold only reads"),
        ("gold-reward", {}, GOAL % "SELECT 0", "the gold actions give reward 0"),
        ("gold-call", {"actions": [call("bok")]}, REWARD, "there is no tool 'bok'"),
        ("slow-tool", {"actions": [call("hang")]}, REWARD, "past its limit of 0.5 s"),
        ("unknown-ignored", {}, REWARD.replace("log", "logs"), "'logs', which is no table"),
        ("ignored-outputs", {"outputs": ["95"]}, UNHEARD, "does not look at 'outputs'"),
        (
            "unknown-literal",
            {"actions": [call("find_user", email="bob@example.com"), *SOUND["actions"][1:]]},
            REWARD,
            "email 'bob@example.com'",
        ),
        ("unknown-output", {**ANSWER, "outputs": ["7234.19"]}, REWARD, "no tool gives '7234.19'"),
        ("unknown-output", {**ANSWER, "outputs": ["Balcony"]}, REWARD, "no tool gives 'Balcony'"),
        ("unstated-fact", {"sim_user_prompt": USER.replace("phone 5551234", "")}, REWARD, "nothing of phone"),
        ("redundant-gold", {"actions": [*SOUND["actions"], *[NIGHTS[3]] * 2]}, REWARD, "actions[4]"),
        ("repeated-gold", {"actions": [FIND, *SOUND["actions"]]}, REWARD, "made twice"),
        (
            "order-dependence",
            {"actions": [*SOUND["actions"], *NIGHTS.values()]},
            REWARD,
            "actions[4] (set_nights) before actions[3] (set_nights)",
        ),
        ("ambiguous", {"sim_user_prompt": ANY_CARD}, REWARD, "'card_12' instead of 'card_11'"),
        ("ambiguous", {"sim_user_prompt": BY_SEA, "actions": changed(room_id="R2")}, REWARD, "'R3' instead"),
        (
            "unrewarded-gold",
            {"actions": [*SOUND["actions"], NIGHTS[3]]},
            GOAL % "SELECT COUNT(*) FROM stays",
            "without it the reward is 1 too",
        ),
        ("lenient-reward", {}, GOAL % "SELECT nights = 2 FROM stays", "with card_id 'card_12'"),
        ("lenient-reward", {}, GOAL % "SELECT MAX(room_id) = \\'R4\\' FROM stays", "the reward is 1 too"),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, kind: str, row: Any, reward: str, words: str) -> None:
    other = {"sim_user_prompt": ALICE + "You want R1 for 1 night on your paypal card.", "actions": []}
    tools = TOOLS + HANG if kind == "slow-tool" else TOOLS
    report = report_of(write(tmp_path, {**SOUND, **row}, other, tools=tools, reward=reward))
    found = [finding for finding in report.findings if finding.kind == kind and "r0" in finding.rows]
    assert found, [str(finding) for finding in report.findings]
    assert any(words in finding.text for finding in found), found


def test_strict_finds_the_same_and_grades_warnings_as_errors(tmp_path: Path) -> None:
    row = {**SOUND, "sim_user_prompt": ANY_CARD, "outputs": ["95"]}
    folder = write(tmp_path, row, reward=UNHEARD)
    report, strict = report_of(folder), report_of(folder, strict=True)
    assert {"ignored-outputs", "ambiguous"} <= {finding.kind for finding in report.warnings}
    assert strict.findings == [replace(finding, grade="error") for finding in report.findings]
    assert (strict.mutants, strict.mutation_score) == (report.mutants, report.mutation_score)


def test_a_row_keeps_back_the_findings_that_it_accepts(tmp_path: Path) -> None:
    row = {"actions": [FIND, *SOUND["actions"]], "metadata": {"audit": {"accept": ["repeated-gold"]}}}
    assert report_of(write(tmp_path, SOUND | row)).findings == []


@pytest.mark.parametrize("given", [[], {"accept": ["noop"]}, {"accept": "no-op"}])
def test_accepting_what_is_no_kind_is_an_error(tmp_path: Path, given: Any) -> None:
    with pytest.raises(BundleError, match=r"task\.jsonl:1 r0.*The kinds are seed, "):
        report_of(write(tmp_path, {**SOUND, "metadata": {"audit": given}}))


def test_rows_of_another_split_that_ask_for_the_same_are_found(tmp_path: Path) -> None:
    folder = write(tmp_path, SOUND, ANSWER, SOUND | {"sim_user_prompt": USER + " Please."})
    quick = {"sim_user_prompt": USER + " Be quick about it."}
    near = {"id": "t0", "toolset": "hotel_task.tools", **SOUND, **quick}
    train = [near, *({**near, "id": f"t{n}", "actions": [BOOK] * n} for n in range(2, 9))]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in train))
    found = [finding for finding in report_of(folder).findings if finding.kind == "near-duplicate"]
    assert [finding.text for finding in found] == ["asks for the same as row t0 of train.jsonl"]
    assert found[0].rows == ("r0", "r2")
    (folder / "copy.jsonl").write_text((folder / "task.jsonl").read_text())
    (version,) = report_of(folder, against=[folder / "copy.jsonl"]).findings
    assert (version.rows, version.grade) == ((), "note")
    assert "another version, not another split" in version.text
    with pytest.raises(BundleError, match="nowhere"):
        report_of(folder, against=[folder / "nowhere.jsonl"])


def test_the_same_question_on_other_data_is_another_row(tmp_path: Path) -> None:
    folder = write(tmp_path, SOUND, SOUND | {"now": "2020-01-01"})
    assert [one for one in report_of(folder).findings if one.kind == "near-duplicate"] == []


def test_rows_of_one_split_in_two_files_are_not_compared(tmp_path: Path) -> None:
    folder = write(tmp_path, SOUND | {"metadata": {"split": "test"}}, ANSWER)
    (folder / "older.jsonl").write_text((folder / "task.jsonl").read_text().splitlines()[0] + "\n")
    assert report_of(folder).findings == []
    edited = (folder / "older.jsonl").read_text().replace('"test"', '"train"')
    (folder / "older.jsonl").write_text(edited)
    assert [finding.kind for finding in report_of(folder).findings] == ["near-duplicate"]


AGENTS = """\
class Booking:
    def __init__(self, room):
        self.room = room

    async def respond(self, rollout):
        call = {"room_id": self.room, "user_id": "ann_1", "card_id": "card_11", "nights": 2}
        await rollout.call_tool("book", call)
        return "Booked."


def right():
    return Booking("R4")


def wrong():
    return Booking("R1")
"""


def test_rows_that_every_agent_fails_alike_are_found_after_runs(tmp_path: Path) -> None:
    folder = write(tmp_path, SOUND)
    (tmp_path / "players.py").write_text(AGENTS)
    row = {"id": "r0", "toolset": "hotel_task.tools", **SOUND, "n_rollouts": 4}
    (folder / "task.jsonl").write_text(json.dumps(row) + "\n")
    for agent in ("right", "wrong"):
        arguments = ("--agent", f"players:{agent}", "--no-sim-user", "--eval-id", agent)
        done = run_command("agent-eval", "-d", "hotel_task", *arguments, cwd=tmp_path)
        assert done.code == 0, done.err
    command = ("validate", "--deep", "hotel_task", "--evaluation", "wrong")
    audited = run_command(*command, "--json", "found.json", cwd=tmp_path)
    assert audited.code == 0, audited.err
    found = json.loads((tmp_path / "found.json").read_text())["findings"]
    assert [one["kind"] for one in found if one["rows"] == ["r0"]] == ["never-passed", "agreed-failure"]
    assert len(found) == 2
    assert found[0]["text"] == "0 of 4 rollouts passed in 1 evaluation"
    alike = "4 of 4 failed rollouts end in one state that is not gold's: log: inserted"
    assert found[1]["text"].startswith(alike)
    assert "warning: never-passed (1 row). Read the failed" in audited.out
    both = run_command(*command, "--evaluation", "right", "--strict", cwd=tmp_path)
    assert (both.code, "never-passed" in both.out, "agreed-failure" in both.out) == (1, False, True)
    (folder / "task.jsonl").write_text(
        json.dumps({**row, "system_prompt": "Be clear.", "n_rollouts": 9}) + "\n"
    )
    repaired = run_command(*command, cwd=tmp_path)
    assert (repaired.code, "never-passed" in repaired.out, "agreed" in repaired.out) == (0, False, False)
    assert "warning: evaluation wrong: 1 row left out that have changed" in repaired.err
    (folder / "task.jsonl").write_text(json.dumps({**row, "metadata": {"audit": {}}}) + "\n")
    assert "never-passed" in run_command(*command, cwd=tmp_path).out
    missing = run_command("validate", "hotel_task", "--evaluation", "nobody", cwd=tmp_path)
    assert missing.code == 2
    assert "nobody" in missing.err


def test_the_exit_code_tells_of_errors(tmp_path: Path) -> None:
    write(tmp_path, {**SOUND, "actions": changed(room_id="R44")}, ANSWER)
    assert run_command("validate", "hotel_task", "--deep", cwd=tmp_path).code == 1
    assert run_command("validate", "hotel_task", "--deep", "--rows", "r1", cwd=tmp_path).code == 0
    assert run_command("validate", "hotel_task", "--deep", "--rows", "r7", cwd=tmp_path).code == 2
    assert run_command("validate", "--deep", "nowhere", cwd=tmp_path).code == 2


def test_a_gold_call_that_deletes_is_examined_like_others(tmp_path: Path) -> None:
    folder = tmp_path / "visits_task"
    folder.mkdir()
    (folder / "seed.sql").write_text(
        "CREATE TABLE visits (id INTEGER PRIMARY KEY); INSERT INTO visits VALUES (1);"
    )
    (folder / "tools.py").write_text(
        "from reward_kit.agent import ToolRegistry\n\n"
        'R = ToolRegistry("visits")\n\n\n'
        '@R.tool(description="Cancel a visit", parameters={"id": int})\n'
        "async def cancel(id, db):\n"
        '    await db.execute("DELETE FROM visits WHERE id = ?", [id])\n'
    )
    said = [{"role": "user", "content": "Cancel visit 1"}]
    actions = [{"name": "cancel", "arguments": {"id": 1}}]
    row = {"id": "a", "toolset": ".tools", "initial_messages": said, "actions": actions}
    (folder / "task.jsonl").write_text(json.dumps(row))
    with TaskBundle.load(folder) as bundle:
        assert validate(bundle, deep=True).errors == []
