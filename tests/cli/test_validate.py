"""``reward-kit validate``: one line when all is well, findings by kind, on a terminal and in a pipe."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from command import run_command, run_on_terminal, run_patched
from flight_bundle import GOLD, TOOLS, Bundle

from reward_kit.cli import main, validate

GOLD_EARNS = "gold earns the reward in 1 of 1 row, doing nothing in none"
VALID = f"flight_task: 1 row, 3 tools: successfully validated; {GOLD_EARNS}\n"
NO_SEARCH = {"forbidden_calls": ["create_booking"], "criteria": ["The agent is brief"]}


@pytest.fixture
def folder(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(bundle.folder.parent)
    bundle.rows({"actions": GOLD})
    return bundle.folder


@pytest.fixture
def faulty(folder: Path, bundle: Bundle) -> Path:
    """A bundle with a row that breaks its own field, and with fields that have no effect."""
    bundle.rows({"actions": GOLD, **NO_SEARCH}, {"id": "other", "actions": GOLD, "criteria": ["It is kind"]})
    return folder


def on_terminal(*arguments: str | Path, columns: int = 80, **variables: str) -> list[str]:
    """The lines that a command shows on a terminal; it begins each anew after a return."""
    env = {**os.environ, **variables}
    written = run_on_terminal(*arguments, columns=columns, cwd=Path.cwd(), env=env)
    text = written.replace("\x1b[2K", "").replace("\r\n", "\n")
    return [line.rpartition("\r")[2] for line in text.split("\n")]


def plain(line: str) -> str:
    return re.sub(r"\x1b\[[\d;]*[mK]", "", line)


def test_a_valid_bundle_is_one_line(folder: Path) -> None:
    done = run_command("validate", folder)
    assert (done.code, done.out, done.err) == (0, VALID, "")
    assert run_command("validate", folder, "--quiet").out == ""
    as_json = run_command("validate", folder, "--json")
    assert (as_json.err, json.loads(as_json.out)["findings"]) == (VALID, [])
    assert json.loads(as_json.out)["verdict"] == VALID.rstrip()


def test_findings_are_told_by_kind_the_worst_first(faulty: Path) -> None:
    done = run_command("validate", faulty)
    assert done.code == 1
    heads = [line.partition(". ")[0] for line in done.out.splitlines() if line and not line.startswith("  ")]
    assert heads == [
        "error: broken-row (1 row)",
        "warning: no-effect (2 rows)",
        "flight_task: 2 rows, 3 tools: 1 error, 2 warnings",
    ]
    assert "criteria' has no effect: flight_task/reward.py does not take it (also in other)" in done.out
    assert "warning" not in run_command("validate", faulty, "--quiet").out.rpartition("\n\n")[0]


def test_strict_counts_warnings(faulty: Path) -> None:
    assert run_command("validate", faulty, "--rows", "other").code == 0
    strict = run_command("validate", faulty, "--rows", "other", "--strict")
    assert (strict.code, "error: no-effect (1 row)" in strict.out) == (1, True)
    assert run_command("validate", faulty, "--rows", "othr").code == 2


def test_agent_eval_spells_it_as_before(faulty: Path) -> None:
    command = ("agent-eval", "-d", faulty / "task.jsonl", "--validate-only", "--task-ids", "other")
    done = run_command(*command)
    assert (done.code, done.out.splitlines()[-1]) == (0, "Task bundle successfully validated.")
    assert run_command(*command, "--strict").code == 1


def test_audit_is_another_name_of_deep(folder: Path) -> None:
    audited, deep = (run_command(*command, folder) for command in (("audit",), ("validate", "--deep")))
    assert (audited.code, audited.out) == (deep.code, deep.out)
    assert "mutation score" in deep.out


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_lines_fit_and_grades_have_colours(faulty: Path, columns: int) -> None:
    lines = on_terminal("validate", faulty, columns=columns)
    assert max(len(plain(line)) for line in lines) <= columns
    assert any(line.startswith("\x1b[31m\x1b[1merror: broken-row (1 row)\x1b[0m. ") for line in lines), lines
    assert any("\x1b[33m" in line for line in lines)
    text = " ".join(" ".join(map(plain, lines)).split())
    assert "the gold actions break the row's own fields: called create_booking, which is forbidden" in text
    assert not any("\x1b[3" in line for line in on_terminal("validate", faulty, NO_COLOR="1"))


def test_progress_goes_to_stderr(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(validate, "PAUSE", (0.0, 0.0))
    assert main(["validate", str(folder), "--deep"]) == 0
    assert capsys.readouterr().err == "checking rows: 0 of 1 row\ntrying wrong calls: 0 of 1 row\n"
    assert main(["validate", str(folder), "--deep", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


PLAYED = """async def create_booking(flight_id, passenger, db):
    import os
    from pathlib import Path
    here = Path(__file__).parent
    with (here / "processes").open("a") as file:
        print(os.getpid(), file=file)
    if passenger == "Eve" and not (here / "crashed").exists():
        (here / "crashed").touch()
        os._exit(1)
    print("booking")
"""


@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two processors"
)
def test_many_rows_are_checked_in_other_processes_one_of_which_ends(folder: Path, bundle: Bundle) -> None:
    bundle.write("tools.py", TOOLS.replace("async def create_booking(flight_id, passenger, db):\n", PLAYED))
    eve = [{"name": "create_booking", "arguments": {"flight_id": 1, "passenger": "Eve"}}]
    bundle.rows(*[{"id": f"r{number}", "actions": eve if number % 5 == 1 else GOLD} for number in range(20)])
    room = "reward_kit.agent.checks.bundle_check"
    forked = run_patched({f"{room}.MANY": 3, f"{room}.BATCH": 2}, "validate", folder, "--json")
    at_once = run_command("validate", folder, "--json")
    assert forked.out == at_once.out
    findings = json.loads(forked.out)["findings"]
    assert [one["kind"] for one in findings] == ["gold-reward", "prints"]
    assert findings[0]["rows"] == ["r1", "r6", "r11", "r16"]
    processes = (folder / "processes").read_text().split()
    assert len(set(processes)) == 2 + min(10, len(os.sched_getaffinity(0)))
