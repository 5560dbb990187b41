"""``reward-kit play`` at the terminal: what it shows, rows without an answer, and ``--save-row``."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Finished, run_command

from reward_kit.agent.bundles.new_bundle import write_starter
from reward_kit.cli import main

DATASET = Path("lib/task.jsonl")
LEND = '/call lend_book {"book_id": 1, "member": "Di"}'
Play = Callable[..., Finished]
OPEN = """\
# waits for its answer
{"id": "open.1",
 "initial_messages": [{"role": "user", "content": "I am Di. Middlemarch, please."}]}
"""


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Play:
    """``play(ROW, option, typed=[...])`` in the bundle ``lib``, a new one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODEL_AGENT", raising=False)
    monkeypatch.delenv("MODEL_SIM", raising=False)
    write_starter(Path("lib"))

    def played(*arguments: str, typed: tuple[str, ...] = ()) -> Finished:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in typed)))
        capsys.readouterr()
        code = main(["play", "lib", *arguments])
        return Finished(code, *capsys.readouterr())

    return played


def fields(row_id: str, path: Path = DATASET) -> dict[str, object]:
    """The line of a saved row."""
    found = [json.loads(line) for line in path.read_text().splitlines() if f'"{row_id}"' in line]
    return dict(found[-1])


def test_a_person_plays_and_sees_changed_rows_and_the_reward(play: Play) -> None:
    ran = play("lend.1", typed=(LEND, "Here you are."))
    assert ran.code == 0
    assert ran.out.splitlines()[-6:] == [
        "agent> lent", "  loans #1: inserted (book_id=1, member='Di')",
        "agent> ", "=== the rollout is over: agent_done ===",
        "reward 0",
        "loans #1: unexpected row (book_id=1, member='Di'); loans #3: missing row (book_id=3, member='Ada')",
    ]  # fmt: skip


def test_a_new_row_is_what_the_person_said_and_did(play: Play) -> None:
    before = DATASET.read_text()
    asked = "I am Di. Lend me Middlemarch."
    ran = play("--save-row", "lend.9", typed=(asked, LEND, "Done.", "###STOP###"))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("=== the rollout is over: user_stop ===") == 1
    assert ran.out.splitlines()[-3:] == [
        "no reward: the row has no answer yet",
        "saved: row 'lend.9' in lib/task.jsonl, with 1 action",
        "  reward-kit validate lib/task.jsonl",
    ]
    ran = play("--save-row", "ask.9", typed=("Who wrote Middlemarch?", '/call find_books {"title": "Middle"}',
                                             "George Eliot.", "###STOP###"))  # fmt: skip
    assert "saved: row 'ask.9' in lib/task.jsonl, with 0 actions and the outputs 'George Eliot'" in ran.out
    assert fields("lend.9") == {
        "id": "lend.9",
        "initial_messages": [{"role": "user", "content": asked}],
        "actions": [{"name": "lend_book", "arguments": {"book_id": 1, "member": "Di"}}],
    }
    assert DATASET.read_text().startswith(before), "all else stays"
    checked = run_command("validate", "lib")
    assert (checked.code, "warning" in checked.out + checked.err) == (0, False), checked
    assert "gold earns the reward in 5 of 5 rows, doing nothing in none" in checked.out


def test_a_row_without_an_answer_gets_it_in_its_place(play: Play) -> None:
    Path("lib/reward.py").unlink()
    DATASET.write_text(f"{DATASET.read_text()}{OPEN}# the end\n")
    before = DATASET.read_text()
    refused = run_command("validate", "lib")
    assert (refused.code, "row 'open.1', field 'end_goal_sql': is missing" in refused.err) == (2, True)
    called = run_command("tools", "lib", "--row", "open.1", "--call", "find_books", '{"title": "x"}')
    assert (called.code, called.out) == (0, "find_books:\n[]\n")
    ran = play("open.1", "--save-row", "open.1", typed=(LEND, "Here you are."))
    assert (ran.code, ran.out.splitlines()[-3]) == (0, "no reward: the row has no answer yet")
    answer = ',\n "actions": [{"name": "lend_book", "arguments": {"book_id": 1, "member": "Di"}}]}'
    assert DATASET.read_text() == before.replace('please."}]}', f'please."}}]{answer}')
    assert run_command("validate", "lib").code == 0
    again = play("open.1", "--save-row", "open.1")
    assert (again.code, again.error) == (
        2, "Error: --save-row: row 'open.1' has actions, or empty outputs. Choose another id.\n",
    )  # fmt: skip


@pytest.mark.parametrize("given", ['"outputs": []', '"outputs": null', '"actions": null'])
def test_a_row_with_an_empty_answer_is_refused_before_anything_is_played(play: Play, given: str) -> None:
    Path("lib/reward.py").unlink()
    DATASET.write_text(f"{DATASET.read_text()}{OPEN.rstrip().removesuffix('}')}, {given}}}\n")
    ran = play("open.1", "--save-row", "open.1", typed=(LEND, "Here you are."))
    assert (ran.code, "row 'open.1' has actions, or empty outputs" in ran.error) == (2, True)


def test_a_copy_of_a_row_can_go_to_another_file(play: Play) -> None:
    ran = play("lend.1", "--save-row", "lend.8", "--out", "lib/more.jsonl", typed=(LEND, "Here you are."))
    assert "saved: row 'lend.8' in lib/more.jsonl" in ran.out
    more = Path("lib/more.jsonl")
    saved = fields("lend.8", more)
    assert (saved["toolset"], saved["system_prompt"], saved["n_rollouts"]) == (".tools", "file:policy.md", 4)
    assert saved["initial_messages"][0]["content"].startswith("I am Ada")
    assert run_command("validate", more).code == 0
    play("lend.1", "--save-row", "lend.7", "--out", str(more), typed=(LEND, "Here you are."))
    assert len(more.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((), "ROW: no row is named. Name a row of the bundle, or the id of a new one with --save-row."),
        (("lend.*",), "ROW: 'lend.*' names 2 rows; play takes one"),
        (("lend.3",), "ROW: there is no row 'lend.3' (did you mean 'lend.2'?). The dataset has 3 rows; give"),
        (("lend.1", "--save-row", "Ask.1"), "task.jsonl: has a row 'Ask.1' already. Choose another id."),
        (("lend.1", "--save-row", "a b"), "field 'id': got \"a b\" (a string), expected a folder name"),
        (("lend.1", "--out", "x.jsonl"), "--out: names the file for --save-row, which is not given"),
        (("lend.2",), "the simulated user needs a model. Name one with --user-model, or be both: --as both."),
        (
            ("lend.1", "--as", "user"),
            "the agent needs a model. Name one with --model, or be both: --as both.",
        ),
    ],
)
def test_a_fault_is_told_before_anything_is_played(play: Play, arguments: list[str], fault: str) -> None:
    ran = play(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.error.startswith(f"Error: {fault}")


def test_a_row_that_fills_a_table_without_a_primary_key_is_saved(play: Play) -> None:
    seed = Path("lib/seed.sql")
    seed.write_text(seed.read_text().replace("book_id INTEGER PRIMARY KEY", "book_id INTEGER"))
    ran = play("--save-row", "lend.9", typed=("Middlemarch for Di.", LEND, "Done.", "###STOP###"))
    assert (ran.code, "saved: row 'lend.9' in lib/task.jsonl, with 1 action" in ran.out) == (0, True), ran


def test_a_person_who_leaves_saves_nothing(play: Play) -> None:
    before = DATASET.read_text()
    ran = play("--save-row", "lend.9", typed=("I am Di.",))
    assert (ran.code, "nobody is there to play" in ran.error) == (2, True)
    assert DATASET.read_text() == before


def test_a_packed_bundle_is_not_written_to(play: Play) -> None:
    run_command("pack", "lib")
    refused = run_command("play", "lib.tar.gz", "lend.1", "--save-row", "x")
    assert refused.error == "Error: --save-row: the bundle is packed. Name a file with --out.\n"
