"""``reward-kit branch``, and what shows its branches."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command import Command, run_command
from flight_bundle import GOLD, Bundle
from stub_server import StubServer, call

from reward_kit.agent import evaluate, load_evaluation
from reward_kit.agent.reports.pages.site import page_at

ROWS = [{"id": "alice", "actions": GOLD, "sim_user_prompt": None}]


def gives_up(request: dict[str, Any], place: int) -> Any:
    return call("create_booking", flight_id=1, passenger="Bob") if place == 0 else "I cannot <b>pay</b>."


@pytest.fixture
def first(bundle: Bundle, stub_llm: StubServer) -> str:
    stub_llm.script("gpt-4o-mini", gives_up)
    stub_llm.script("gpt-4o", [call("create_booking", flight_id=1, passenger="Alice"), "Reserved."])
    return evaluate(bundle.dataset, model="openai/gpt-4o-mini", eval_id="first", n_rollouts=2).eval_id


@pytest.mark.parametrize("words", [["first alice#1@0"], ["first", "alice#1@0"], ["first", "alice#1", "@0"]])
def test_one_string_and_several_words(first: str, command: Command, words: list[str]) -> None:
    done = command(*words, "-n", "2", "--model", "openai/gpt-4o", "--eval-id", "again")
    assert done.code == 0, done.err
    assert "origin        first alice#1 at step 0: failed, reward 0" in done.out
    assert "its branches: 0 of 2 passed, 0.000 [0.000, " in done.out
    assert "evaluation again: 2 rollouts" in done.err
    assert len(load_evaluation("again").outcomes) == 2


def test_options_and_errors(first: str, command: Command, tmp_path: Path) -> None:
    done = command("first alice#2@1", "--tool-result", "sold out", "-n", "1", "--json", "--quiet")
    plain = json.loads(done.out)
    (rollout,) = plain["rows"][0]["rollouts"]
    assert rollout["trajectory"]["messages"][2]["content"] == "sold out"
    assert plain["configuration"]["branch_of"]["tool_result"] == "sold out"
    for words, code, message in (
        (["first alice#1@9"], 2, "Error: first alice#1: there is no step 9. It has steps 0 to 2."),
        (["first alice#1@1", "--model", "a", "--model", "b"], 2, "Error: branches have one --model."),
        (["first alice#1@1", "--shuffle"], 2, "No such option '--shuffle'"),
        (["first alice#1@1", "--against", "first"], 2, "No such option '--against'"),
        (["first alice#1@1", "--patience", "-1"], 2, "--patience must be at least 0"),
        (["first alice#1@1", "--max-rollout-tokens", "0"], 2, "--max-rollout-tokens must be at least 1"),
        ([], 2, "Missing argument"),
        (["first alice#1@1", "-n", "0"], 2, "-n"),
    ):
        refused = command(*words)
        assert (refused.code, message in refused.error) == (code, True), refused.err
    elsewhere = run_command("branch", str(tmp_path / "runs/evals/first.db"), "alice#1@1", "-n", "1", cwd="/")
    assert elsewhere.code == 0, elsewhere.err
    assert len(list((tmp_path / "runs" / "evals").glob("*.db"))) == 3


def test_an_interrupted_evaluation_says_how_to_continue(first: str, command: Command) -> None:
    options = ("--eval-id", "short", "--max-cost", "0", "-n", "2")
    stopped = command("first alice#1@1", *options)
    assert stopped.code == 1
    assert "reward-kit agent-eval --resume short" in stopped.err
    resumed = run_command("agent-eval", "--resume", "short", "--max-cost", "5")
    assert resumed.code == 0, resumed.err
    assert "first alice#1 at step 1" in resumed.out


def test_branches_beside_each_other_differ_in_their_step_and_tool_result(
    first: str, command: Command, tmp_path: Path
) -> None:
    command("first alice#1@1", "-n", "1", "--eval-id", "plain")
    command("first alice#1@1", "-n", "1", "--eval-id", "told", "--tool-result", "sold out")
    command("first alice#1@0", "-n", "1", "--eval-id", "earlier")
    out = run_command("compare", "plain", "told").out
    assert "different:\n  --tool-result  not set -> sold out\n\n" in out
    out = run_command("compare", "plain", "earlier").out
    assert re.search(r"different:\n  branch of  first (\w{12})@1 -> first \1@0\n\n", out)
    page = page_at(tmp_path / "runs", "compare/plain/told").html
    assert "Nothing that is recorded of the two is different." not in page
    assert "sold out" in page


def test_show_draws_the_tree(first: str, command: Command) -> None:
    command("first alice#1@1", "-n", "2", "--eval-id", "second")
    command("second alice#2@1", "-n", "1", "--eval-id", "third")
    command("first alice#1@0", "-n", "1", "--eval-id", "zeroth", "--model", "openai/gpt-4o")
    drawn = (
        "first alice#1: failed, reward 0, 2 steps",
        "├─ @0 zeroth: 0 of 1 passed",
        "└─ @1 second: 0 of 2 passed",
        "   └─ #2@1 third: 0 of 1 passed",
    )
    shown: dict[str, list[str]] = {}
    for name in ("first alice#1", "first", "second", "third alice#1", "first alice#2"):
        lines = run_command("show", name).out.splitlines()
        shown[name] = [line for line in lines if line.startswith(drawn)]
        assert "#" in name or max(map(len, shown[name])) <= 80
    assert [len(lines) for lines in shown.values()] == [4, 4, 4, 4, 0]
    text = run_command("show", "third alice#1").out
    assert text.count("From here on the rollout is a branch of another one") == 2
    assert "TOOL create_booking (ok, step 1, " in text
    assert "ASSISTANT (step 3)" in text
    assert " ".join(text.partition("#2@1 third")[2].split()).endswith("<- this one")


def test_compare_takes_the_origin_alone(first: str, command: Command) -> None:
    command("first alice#1@0", "-n", "3", "--eval-id", "again", "--model", "openai/gpt-4o")
    for names in (["again"], ["first", "again"]):
        text = run_command("compare", *names).out
        assert "A  first: tool-calling (openai/gpt-4o-mini)\n   1 row, 1 of 1 rollout" in text
        assert "   branches of first alice#1 at step 0: failed, reward 0" in text
    refused = run_command("compare", "first")
    assert (refused.code, "two or more" in refused.error) == (2, True)


def test_pages_link_a_branch_and_its_origin(first: str, command: Command, tmp_path: Path) -> None:
    command("first alice#1@1", "-n", "2", "--eval-id", "again")
    runs = tmp_path / "runs"
    origin, (one, _) = load_evaluation("first").outcomes[0], load_evaluation("again").outcomes
    address = f"alice/roll_{origin.id}.html"
    page = page_at(runs, f"alice/roll_{one.id}.html").html
    assert f'<a href="../{address}">first alice#1</a>: failed, reward 0, 2 steps' in page
    assert '<a href="../evals/again.html" aria-current="page">@1 again</a>: 0 of 2 passed' in page
    before, mark, after = page.partition("From here on the rollout is a branch")
    assert mark
    assert "create_booking" in before
    assert "I cannot &lt;b&gt;pay" in after
    for each in (address, "evals/first.html", "evals/again.html"):
        assert ">@1 again</a>" in page_at(runs, each).html
    assert "Branches" not in page_at(runs, f"alice/roll_{load_evaluation('first').outcomes[1].id}.html").html
    for names, links in ((["first", "again"], 1), (["again"], 0)):
        out = tmp_path / "-".join(names)
        assert run_command("view", *names, "--out", out).code == 0
        html = (out / "evals" / "again.html").read_text()
        assert len(re.findall(r'<a href="\.\./alice/roll_\w+\.html">first alice#1</a>', html)) == links
        assert "first alice#1" in html


def test_a_tree_without_its_root_or_with_a_forged_one(first: str, command: Command, tmp_path: Path) -> None:
    command("first alice#1@1", "-n", "1", "--eval-id", "again")
    evals = tmp_path / "runs" / "evals"
    (evals / "first.db").rename(tmp_path / "first.db")
    assert "first: the rollout is gone\n└─ @1 again" in run_command("show", "again").out
    for name in ("../../first", "again", "", "a\x00b"):
        forge(evals / "again.db", {"evaluation": name, "rollout": "x" * 32, "step": 1})
        shown = run_command("show", "again")
        assert shown.code == 0, shown.err
        assert "it is gone" in shown.out
    for value in ({"evaluation": "first"}, {"step": "x", "evaluation": "a", "rollout": "b"}, [1], "x"):
        forge(evals / "again.db", value)
        assert "Traceback" not in run_command("show", "again").err


def forge(file: Path, origin: Any) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(file)) as connection, connection:
        sql = "UPDATE evaluation SET configuration = json_set(configuration, '$.branch_of', json(?))"
        connection.execute(sql, (json.dumps(origin),))
