"""``reward-kit show``: the evaluations there are, a report again, a rollout to read."""

import json
import os
import re
import shutil
import sqlite3
from pathlib import Path

import pytest
from command import Command, run_command
from flight_bundle import Bundle
from planned_agent import evaluate
from stored_rollouts import change_trajectory, edit

from reward_kit.agent import EvaluationResult, load_evaluation, load_rollout
from reward_kit.agent.reports.pages.site import page_at
from reward_kit.agent.store.writer import Store

PLAN = {"a": [1, 1], "b": [1, 0]}


@pytest.fixture
def finished(bundle: Bundle) -> EvaluationResult:
    return evaluate(bundle, "first", PLAN, usage={"calls": 1, "input_tokens": 9, "cost": 0.5})


def test_evaluations_are_listed_by_age(bundle: Bundle, finished: EvaluationResult, command: Command) -> None:
    evaluate(bundle, "a-later-one", {"a": [1]})
    ran = command()
    assert (ran.code, ran.error) == (0, "")
    heading, second, first = ran.out.splitlines()
    assert " ".join(heading.split()) == "evaluation dataset rollouts Pass^1 cost status started agent (model)"
    line = r"first +flight_task +4/4 +0\.750 +\$2\.00 +complete +[\d-]{10} \d\d:\d\d +planned_agent:Planned"
    assert re.fullmatch(line, first)
    assert re.fullmatch(r"a-later-one .* 1/1 +1\.000 +- +complete .* planned_agent:Planned", second)
    assert command("runs").out == ran.out
    assert command("--output-dir", "runs").out == ran.out


def test_the_status_says_what_became_of_an_evaluation(finished: EvaluationResult, command: Command) -> None:
    evals = finished.log_path.parent
    for name in ("running", "killed", "whole"):
        shutil.copy(finished.log_path, evals / f"{name}.db")
        edit(evals / f"{name}.db", "UPDATE evaluation SET status = 'running'")
    for name in ("running", "killed"):
        edit(evals / f"{name}.db", "DELETE FROM rollouts WHERE seq = 4")
    (evals / "killed.lock").touch()  # a killed process leaves its lock behind
    (evals / "damaged.db").write_text("hello\nworld\n" * 100)
    with Store(evals / "running.db"):
        ran = command()
        found = {line.split()[0]: line for line in ran.out.splitlines()[1:]}
        assert [*sorted(found)] == ["damaged:", "first", "killed", "running", "whole"]
        assert " 3/4 " in found["running"]
        for name, status in (("running", "running"), ("killed", "interrupted"), ("whole", "complete")):
            assert f" {status} " in found[name]
        assert "is damaged, or not the file of an evaluation" in found["damaged:"]
        assert f"(still running, by process {os.getpid()} on" in " ".join(command("running").out.split())
    assert " interrupted " in next(line for line in command().out.splitlines() if "running" in line)


def test_the_report_of_an_evaluation_has_what_was_printed_and_more(bundle: Bundle, command: Command) -> None:
    bundle.rows({"id": "a"}, {"id": "b"})
    Path("mine.py").write_text("def answer(message):\n    return 'Sorry.'\n")
    agent = ("--agent", "mine:answer", "--no-sim-user")
    printed = run_command("agent-eval", "-d", bundle.dataset, *agent, "--eval-id", "first")
    assert printed.code == 0, printed.err
    sqlite3.connect("runs/evals/foreign.db").executescript("CREATE TABLE t (x)")  # is newer
    for name in ("first", "latest", "runs/evals/first.db", "runs/evals/first.json"):
        ran = command(name)
        assert (ran.code, ran.error) == (0, "")
        assert ran.out == f"{load_evaluation('first').report(80, whole=True)}\n"
        title, *_, row, _, _, _, browse = printed.out.splitlines()[1:]
        assert title.rpartition(",")[0] in ran.out  # the time is that of the store, which was closed later
        assert row in ran.out
        assert browse in ran.out


def test_its_commands_name_the_folder_that_was_read(finished: EvaluationResult, command: Command) -> None:
    finished.folder.rename("moved")
    assert command("first", "-o", "moved").out.endswith("  reward-kit view first -o moved\n")


def test_a_rollout_is_shown_by_its_file_id_or_prefix(finished: EvaluationResult, command: Command) -> None:
    outcome = next(one for one in finished.outcomes if not one.success)
    file = f"runs/{outcome.file}"
    shown = command(file)
    assert (shown.code, shown.error) == (0, "")
    assert shown.out.startswith("first b#2: failed, reward 0\n")
    assert "ASSISTANT (step 1)\n  Sorry.\n" in shown.out
    assert shown.out.endswith(f"id: {outcome.id}\n")
    for name in (outcome.id, outcome.id[:20], f"roll_{outcome.id}"):
        assert command(name).out == shown.out


@pytest.mark.parametrize("named", [["first", "b#2"], ["first b#2"]])
def test_a_rollout_is_named_in_two_words_or_one(
    finished: EvaluationResult, command: Command, named: list[str]
) -> None:
    assert command(*named).out.startswith("first b#2: failed")
    for verb, *after in (["changes"], ["open", ".tables"], ["export", "out.db", "--force"]):
        assert run_command("db", verb, *named, *after).code == 0


@pytest.mark.parametrize("name", ["a-copy", "z-copy"])
def test_a_copy_of_an_evaluation_hides_no_rollout(
    finished: EvaluationResult, command: Command, name: str
) -> None:
    one, other, *_ = finished.outcomes
    shutil.copy(finished.log_path, finished.log_path.with_stem(name))
    for id_ in (one.id, one.id[:12]):
        assert command(id_).out.startswith(f"first a#{one.index + 1}: "), command(id_).err
    page = page_at(finished.folder, f"a/roll_{one.id}.html")
    assert (page.status, f"{name}.html" in page.html) == (200, False)
    finished.log_path.unlink()
    assert command(one.id).out.startswith("first a#1: ")
    edit(finished.log_path.with_stem(name), "UPDATE rollouts SET id = 'same-1' WHERE id = ?", one.id)
    edit(finished.log_path.with_stem(name), "UPDATE rollouts SET id = 'same-2' WHERE id = ?", other.id)
    told = "same: 2 rollouts have such an id: same-1, same-2. Give more of the id."
    assert told in command("same").error


def test_text_of_models_cannot_drive_the_terminal(finished: EvaluationResult, command: Command) -> None:
    path = finished.folder / finished.outcomes[0].file
    foreign = "\x1b]0;title\x07\x1b[2Jall\tgone\r\x00\u202e"
    change_trajectory(path, lambda plain: plain["messages"][-1].update(content=foreign))
    ran = command(path)
    assert "all\tgone" in ran.out
    assert all(line.replace("\t", "").isprintable() for line in ran.out.splitlines())


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        (["nothing"], "there is no evaluation 'nothing'. There are: first."),
        (["runs/a/roll_x.json"], "there is no such file"),
        (["half.json"], "is a damaged trace of a rollout, or none"),
        (["bad.json"], "is a damaged trace of a rollout"),
        (["odd.json", "--as-row", "r"], "is a damaged trace of a rollout"),
        (["late.json"], "is a damaged trace of a rollout"),
        (["deep.json"], "is not the file of an evaluation"),
        (["x" * 3000], "File name too long"),
        (["-o", "nowhere"], "there are no evaluations in this folder"),
    ],
)
def test_faults_are_a_line(finished: EvaluationResult, command: Command, what: list[str], fault: str) -> None:
    record = load_rollout(finished.folder / finished.outcomes[0].file).to_json()
    Path("bad.json").write_text(json.dumps({**record, "messages": [1]}))
    odd = {"role": "assistant", "content": None, "tool_calls": 2.5}
    Path("odd.json").write_text(json.dumps({**record, "messages": [odd]}))
    Path("late.json").write_text(json.dumps({**record, "started": 1e30}))
    Path("deep.json").write_text("[" * 9000)
    Path("half.json").write_text(json.dumps({"format": record["format"]}))
    ran = command(*what)
    assert ran.code == 2
    assert fault in ran.error
    assert ran.error.startswith("Error: ")
    assert ran.error.count("\n") == 1


def test_a_dot_in_a_name_does_not_lead_to_another_evaluation(
    finished: EvaluationResult, command: Command
) -> None:
    for name in ("gpt-4", "gpt-4.1"):
        finished.log_path.with_name(f"{name}.db").write_bytes(finished.log_path.read_bytes())
    for path in ("runs/evals/gpt-4.1", "runs/evals/gpt-4.1.json", "gpt-4.1"):
        assert command(path).out.endswith("reward-kit view gpt-4.1\n")
    assert "there is no evaluation 'runs/evals/gpt-4.2'" in command("runs/evals/gpt-4.2").error


@pytest.mark.parametrize("words", [("show",), ("branch",), ("db", "open"), ("db", "changes")])
def test_an_empty_name_names_nothing(finished: EvaluationResult, words: tuple[str, ...]) -> None:
    done = run_command(*words, "")
    assert (done.code, done.out) == (2, "")
    assert re.match("Error: (cannot be read: |there is no such )", done.err)


def test_similar_names_are_offered(bundle: Bundle, finished: EvaluationResult, command: Command) -> None:
    log = finished.log_path.read_bytes()
    for age, name in enumerate(["zoo", "old", "begun", "fourth", "third", "second"]):
        path = finished.log_path.with_name(f"{name}.db")
        path.write_bytes(log)
        os.utime(path, (1_000_000 + age, 1_000_000 + age))
    evaluate(bundle, "booking", {"flight.book": [1]})
    fault = "runs/evals: there is no evaluation 'thrd'. Did you mean 'third'? The newest of 8: booking, "
    ran = command("thrd")
    assert (ran.code, ran.out) == (2, "")
    assert ran.error == f"Error: {fault}first, second, third, fourth.\n"
    assert "Did you mean the row 'flight.book'? " in command("flight.bok").error


def test_scores_are_printed_by_group(finished: EvaluationResult, command: Command) -> None:
    ran = command("first", "--by", "id")
    assert (ran.code, ran.error) == (0, "")
    assert ran.out.startswith("planned_agent:Planned: 3 of 4 judged rollouts passed, 2 rows")
    assert [line.split() for line in ran.out.splitlines()[2:5]] == [
        ["id", "rows", "judged", "Pass^1", "Pass^2", "reward"],
        ["a", "1", "2/2", "1.000", "1.000", "1.000"],
        ["b", "1", "2/2", "0.500", "0.000", "0.500"],
    ]
    for what, fault in (
        (["--by", "id"], "--by takes an evaluation: name one, or latest."),
        (["a", "--by", "id"], "there is no evaluation 'a'. There are: first."),
        (["first", "--by", "ids"], "no row has a field 'ids' (did you mean 'id'?). There are: id, "),
    ):
        refused = command(*what)
        assert (refused.code, refused.out) == (2, "")
        assert fault in refused.error


def test_a_row_is_shown_as_its_rollouts_of_all_evaluations(
    bundle: Bundle, finished: EvaluationResult, command: Command
) -> None:
    evaluate(bundle, "a-later-one", {"b": [1, 1]})
    edit(finished.log_path, "UPDATE rollouts SET started = started + 9000 WHERE idx = 1")  # still after it
    ran = command("b")
    assert (ran.code, ran.error) == (0, "")
    heading, *lines = (line.split() for line in ran.out.splitlines())
    assert heading == ["evaluation", "dataset", "number", "reward", "result", "id"]
    assert [line[:5] for line in lines] == [
        ["a-later-one", "flight_task", "1", "1", "agent_done"],
        ["a-later-one", "flight_task", "2", "1", "agent_done"],
        ["first", "flight_task", "1", "1", "agent_done"],
        ["first", "flight_task", "2", "0", "partially_completed"],
    ]
    edit(finished.log_path, "UPDATE rollouts SET attempt = 2 WHERE row_id = 'a' AND idx = 1")
    assert " 2, attempt 3 " in command("a").out
    assert {line[5] for line in lines} >= {one.id[:12] for one in finished.outcomes if one.row_id == "b"}
