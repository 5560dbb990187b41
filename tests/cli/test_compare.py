"""``reward-kit compare``: what a person sees, what a script gets."""

import json
import re
from pathlib import Path

import pytest
from command import Command, run_command
from flight_bundle import Bundle
from planned_agent import evaluate, rows_of
from stored_rollouts import edit

from reward_kit.agent import EvaluationResult, compare, compare_with

BASE = {f"row.{number}": [1, 1, number % 2, 0] for number in range(8)}
BETTER = {row_id: [1, 1, 1, successes[2]] for row_id, successes in BASE.items()}


def set_model(result: EvaluationResult, name: str) -> None:
    """Let the evaluation have had this model."""
    query = "UPDATE evaluation SET configuration = json_set(configuration, '$.model', ?)"
    edit(result.log_path, query, name)


def test_a_better_evaluation_is_called_so_with_interval_and_rows(bundle: Bundle, command: Command) -> None:
    priced = {"calls": 1, "input_tokens": 900, "output_tokens": 100, "cost": 0.5}
    evaluate(bundle, "base", BASE, usage=priced)
    evaluate(bundle, "new", {**BETTER, "row.0": [0, 0, 0, 1]}, usage={**priced, "cost": 0.25}, seed=11)
    ran = command("base", "new")
    assert (ran.code, ran.error) == (0, "")
    lines = ran.out.splitlines()
    assert lines[3:7] == [
        "A  base: planned_agent:Planned",
        "   8 rows, 32 of 32 rollouts, $16.00",
        "B  new: planned_agent:Planned",
        "   8 rows, 32 of 32 rollouts, $8.00",
    ]
    assert "different:\n  --seed  10 -> 11\n" in ran.out
    assert re.search(r"^Pass\^1 +0\.625 +0\.812 +\+0\.188 +\S+ to \S+ +\S+ to \S+$", ran.out, re.MULTILINE)
    assert re.search(r"^cost +\$0\.5000 +\$0\.2500 +-\$0\.2500$", ran.out, re.MULTILINE)
    assert lines[0] == "no difference shown on these tasks: +18.8 points (95 %: -2.9 to +39.2), 8 rows"
    assert "\nno difference shown on tasks like these: +18.8 points (95 %: " in ran.out
    assert "\n95 % intervals; cost, tokens, steps, turns and time are means per rollout.\n" in ran.out
    worse = ran.out.split("worse in B: 1 row\n")[1].splitlines()
    assert worse[1].split() == ["row.0", "2/4", "->", "1/4", "partially_completed", "3"]
    (name,) = re.findall('reward-kit show "(new row.0#.)"', worse[2])
    shown = run_command("show", name)
    assert (shown.code, shown.out.startswith(f"{name}: failed, reward 0")) == (0, True), shown.out
    assert "better in B: 7 rows\n" in ran.out
    assert [line for line in lines if len(line) > 84] == []


def test_fail_if_worse_is_for_scripts(bundle: Bundle, command: Command) -> None:
    evaluate(bundle, "base", BASE)
    evaluate(bundle, "new", BETTER)
    assert command("base", "new", "--fail-if-worse").code == 0
    assert command("new", "new", "--fail-if-worse").code == 0
    assert command("new", "base").code == 0
    ran = command("new", "base", "--fail-if-worse")
    assert ran.code == 1
    assert "B is worse on these tasks: -25.0 points" in ran.out
    evaluate(bundle, "all", {"row": [1] * 8})
    evaluate(bundle, "none", {"row": [0] * 8})
    ran = command("all", "none", "--fail-if-worse")
    assert (ran.code, "tasks like these: a single row says nothing about others" in ran.out) == (1, True)


def test_changed_rows_are_told_and_compared_if_asked_for(bundle: Bundle, command: Command) -> None:
    evaluate(bundle, "base", BASE)
    changed = [{**row, **({"system_prompt": "Hi."} if row["id"] < "row.3" else {})} for row in rows_of(BASE)]
    evaluate(bundle, "new", BETTER, rows=changed)
    ran = command("base", "new")
    assert "  content of 3 rows (row.0: system_prompt)\n" in ran.out
    assert "  3 changed in between: row.0, row.1, row.2\n" in ran.out
    assert "5 of 8 rows compared" in ran.out
    ran = command("base", "new", "--changed-rows")
    assert "content of 3 rows" in ran.out
    assert "left out" not in ran.out


def test_json_holds_all_rows(bundle: Bundle, command: Command, tmp_path: Path) -> None:
    evaluate(bundle, "base", BASE)
    evaluate(bundle, "new", BETTER)
    assert command("base", "new", "--json", tmp_path / "out.json").code == 0
    plain = json.loads((tmp_path / "out.json").read_text())
    assert plain["format"] == "reward-kit.comparison/1"
    assert plain["verdicts"] == {"these_tasks": "better", "tasks_like_these": "better"}
    success = plain["measures"][0]["difference"]
    assert success["tasks_like_these"]["low"] <= success["these_tasks"]["low"] < success["value"]
    (first,) = [row for row in plain["rows"] if row["id"] == "row.0"]
    assert (first["a"]["successes"], first["b"]["successes"], first["difference"]) == (2, 3, 0.25)
    failed = first["failed_rollout"]
    assert f"id: {failed}\n" in run_command("show", failed).out
    assert plain["measures"][0]["difference"]["rows"] == 8
    to_output = command("base", "new", "--json", "-")
    assert json.loads(to_output.out) == plain
    assert "B is better" in to_output.err


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing", "there is no evaluation 'nothing'. There are: base."),
        ("none.db", "there is no such file"),
        ("text.db", "is damaged, or not the file of an evaluation"),
        ("other.json", "is no card"),
        ("x" * 3000, "File name too long"),
    ],
)
def test_what_is_no_evaluation_is_one_line(bundle: Bundle, command: Command, name: str, told: str) -> None:
    evaluate(bundle, "base", {"a": [1]})
    Path("text.db").write_text("hello\nworld\n")
    Path("other.json").write_text("[]")
    ran = command("base", name)
    assert ran.code == 2
    assert told in ran.error
    assert ran.error.startswith("Error: ")
    assert ran.error.count("\n") == 1


def test_several_are_each_compared_with_the_first(bundle: Bundle, command: Command, tmp_path: Path) -> None:
    evaluate(bundle, "base", BASE)
    evaluate(bundle, "new", BETTER)
    evaluate(bundle, "an-evaluation-with-a-long-name", {row_id: [0, 0, 0, 0] for row_id in [*BASE][:7]})
    names = ("base", "new", "an-evaluation-with-a-long-name")
    ran = command(*names, "--json", tmp_path / "out.json")
    assert (ran.code, ran.error) == (0, "")
    heading, first = "A this this - A these tasks tasks like these", "Pass^1 B 0.625 0.875 +0.250"
    assert f"{heading} {first}" in " ".join(ran.out.split())
    (second,) = re.findall(r"^Pass\^1 .*\n(.*)", ran.out, re.MULTILINE)
    assert second.split()[0] == "C"
    assert second.endswith("  (7 rows)")
    assert "B is better on these tasks: +25.0 points (95 %: " in ran.out
    assert "\nC is worse on tasks like these: -60.7 points (95 %: " in ran.out
    details = ran.out.split("\n\n")[-1]
    assert max(map(len, details.splitlines())) <= 100
    plain = json.loads((tmp_path / "out.json").read_text())
    assert (plain["format"], plain["baseline"]["eval_id"]) == ("reward-kit.comparisons/1", "base")
    assert [one["verdicts"]["these_tasks"] for one in plain["comparisons"]] == ["better", "worse"]
    assert plain["comparisons"][0] == compare("base", "new").to_json()
    assert plain == compare_with(names[0], names[1:]).to_json()
    assert command(*names, "--fail-if-worse").code == 1


def test_as_markdown_there_are_the_table_and_the_verdicts(bundle: Bundle, command: Command) -> None:
    evaluate(bundle, "base", BASE)
    new = evaluate(bundle, "new", BETTER)
    set_model(new, "odd|`*model")
    ran = command("base", "new", "--markdown")
    assert (ran.code, ran.error) == (0, "")
    head, rule, base, other, blank, *verdicts = ran.out.splitlines()
    columns = "evaluation rows judged Pass^1 Pass^2 Pass^3 Pass^4 reward cost verdict agent_(model)"
    assert head == f"|  | {' | '.join(columns.split())} |".replace("_", " ")
    assert rule == f"| --- | --- | ---: | ---: | --- | {'---: | ' * 5}--- | --- |"
    assert base.startswith("| A | base | 8 | 32/32 | 0.625 [")
    assert base.endswith("| 0.625 | - | baseline | `planned_agent:Planned` |")
    assert other.startswith("| B | new | 8 | 32/32 | 0.875 [")
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in (head, rule, base, other)} == {13}
    assert blank == ""
    told = [verdict.split(":")[0] for verdict in verdicts]
    assert told == ["- B is better on these tasks", "- B is better on tasks like these"]


def test_markdown_does_not_get_into_the_json(bundle: Bundle, command: Command) -> None:
    evaluate(bundle, "base", {"a": [1, 0]})
    evaluate(bundle, "new", {"a": [1, 1]})
    ran = command("base", "new", "--json", "-", "--markdown")
    assert (ran.code, ran.error) == (0, command("base", "new", "--markdown").out)
    assert json.loads(ran.out) == compare("base", "new").to_json()


def test_the_baseline_may_be_any(bundle: Bundle, command: Command) -> None:
    for name in ("x", "y", "z"):
        evaluate(bundle, name, BASE)
    told = command("x", "y", "z", "--baseline", "z").out
    table = [line.split() for line in told.split("\n\n")[1].splitlines()[1:4]]
    assert [(line[0], line[1], line[-2]) for line in table] == [
        ("A", "z", "baseline"),
        ("B", "x", "difference"),
        ("C", "y", "difference"),
    ]
    assert told.startswith("B: no difference shown on these tasks: +0.0 points (95 %: ")
    assert "\nC: no difference shown on these tasks: +0.0 points (95 %: " in command("x", "y", "z").out
    assert command("x", "z", "--baseline", "z").out == command("z", "x").out


@pytest.mark.parametrize("arguments", [["one"], ["--baseline", "one"]])
def test_one_alone_is_too_few(bundle: Bundle, command: Command, arguments: list[str]) -> None:
    evaluate(bundle, "one", {"a": [1]})
    ran = command(*arguments)
    assert ran.code == 2
    assert "Name the evaluations to compare: two or more." in ran.error
