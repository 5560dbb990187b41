"""Branches: rollouts that go on from a step of a stored one."""

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from command import run_command
from flight_bundle import GOLD, Bundle
from reachable import reachable
from stub_server import StubServer, call

from reward_kit.agent import (
    EvaluationResult,
    Rollout,
    branch,
    compare,
    evaluate,
    load_evaluation,
    load_rollout,
)
from reward_kit.agent.comparison.card import card_of, differences_from, faults_of, read_card
from reward_kit.agent.reports.pages.site import page_at
from reward_kit.errors import BundleError, ModelSetupError, RewardKitError, StorageError, UsageError

PROMPT = "You are Alice, who pays cash."
ROWS = [
    {"id": "alice", "actions": GOLD, "sim_user_prompt": PROMPT, "outputs": ["secret output"]},
    {"id": "other", "sim_user_prompt": PROMPT},
]
PLAYERS = '''
class Keeps:
    """Keeps what it has said."""

    def __init__(self):
        self.said = 0

    async def respond(self, rollout):
        self.said += 1
        return f"Line {self.said} ###STOP###"


class Remembers(Keeps):
    def recall(self, rollout):
        self.said = sum(line.speaker == "user" for line in rollout.lines)


class Forgets(Keeps):
    def recall(self, rollout):
        raise LookupError("lost")


class Gives(Keeps):
    async def respond(self, rollout):
        return "I give up."
'''
LOOK = {"origin": "SFO", "dest": "JFK", "date": "2025-05-20"}


def results(request: dict[str, Any]) -> list[str]:
    return [one["content"] for one in request["messages"] if one["role"] == "tool"]


def agent_for(passenger: str, said: str = "Booked and paid.") -> Any:
    """A model that goes on from whatever the conversation shows, and books for ``passenger``."""

    def answer(request: dict[str, Any], _place: int) -> Any:
        found = results(request)
        if not found:
            return call("search_flights", **LOOK)
        if len(found) == 1:
            return call("create_booking", flight_id=1, passenger=passenger)
        if len(found) == 2:
            return call("pay_booking", booking_id=json.loads(found[1])["booking_id"])
        return said

    return answer


def customer(request: dict[str, Any], _place: int) -> str:
    heard = request["messages"][-1]["content"]
    return "Thank you. ###STOP###" if "paid" in heard else "Please go on."


@pytest.fixture
def first(bundle: Bundle, stub_llm: StubServer) -> EvaluationResult:
    """Two rollouts of a model that books for the wrong passenger in its second step."""
    stub_llm.script("gpt-4o-mini", agent_for("Bob"))
    stub_llm.script("gpt-4o", agent_for("Alice", "secret output: booked and paid."))
    stub_llm.script("gpt-3.5-turbo", customer)
    models = {"model": "openai/gpt-4o-mini", "sim_model": "openai/gpt-3.5-turbo"}
    result = evaluate(bundle.dataset, eval_id="first", n_rollouts=2, task_ids="alice", **models)
    assert [(one.reward, one.steps) for one in result.outcomes] == [(0.0, 4)] * 2
    return load_evaluation("first")


def test_another_model_goes_on_before_the_first_wrong_call(
    first: EvaluationResult, stub_llm: StubServer
) -> None:
    result = branch("first alice#2", model="openai/gpt-4o", n_rollouts=3, eval_id="better")
    origin = first.record(first.outcomes[1])
    assert [one.reward for one in result.outcomes] == [1.0] * 3
    assert result.configuration["branch_of"] == {"evaluation": "first", "rollout": origin.id, "step": 1}
    assert result.configuration["sim_model"] == "openai/gpt-3.5-turbo"
    traces = list(result.records())
    assert len({origin.seed, *(one.seed for one in traces)}) == 4
    bookings = {one.tool_calls[1].content for one in traces}
    assert len(bookings) == 3, "the random numbers are others"
    for trace in traces:
        assert trace.messages[:3] == origin.messages[:3]
        assert trace.forks == [{"messages": 3, "calls": 1, "seed": origin.seed, "draws": 0}]
        assert (trace.steps, trace.usage["agent"].calls, len(trace.model_calls)) == (4, 3, 4)
    recording = f"replay:{result.log_path}"
    replayed = evaluate(
        result.configuration["dataset"], agent=recording, user=recording, n_rollouts=3, task_ids="alice"
    )
    assert {one.tool_calls[1].content for one in replayed.records()} == bookings
    asked = stub_llm.requests_for("gpt-4o")
    assert len(asked) == 9
    assert all(len(results(one)) >= 1 for one in asked)


def test_the_report_sets_the_branches_beside_their_origin(first: EvaluationResult) -> None:
    result = branch("first alice#2@1", model="openai/gpt-4o", n_rollouts=3, eval_id="better")
    lines = [" ".join(line.split()) for line in result.report(100).splitlines()]
    assert "origin first alice#2 at step 1: failed, reward 0" in lines
    assert "its branches: 3 of 3 passed, 1.000 [0.401, 1.000]" in lines
    found = compare("first", "better")
    assert [(row.a.n_scored, row.b.n_scored) for row in found.rows] == [(1, 3)]
    assert "branch_of" not in str(found.settings)
    assert compare("better", "first").rows[0].b.n_scored == 2


def test_branches_are_continued_and_keep_their_number(first: EvaluationResult) -> None:
    before = branch("first alice#1@2", n_rollouts=2, eval_id="again", max_concurrency=1)
    after = branch("first alice#1@2", n_rollouts=4, eval_id="again")
    assert [one.id for one in after.outcomes][:2] == [one.id for one in before.outcomes]
    assert len(after.outcomes) == 4
    resumed = evaluate(resume="again", n_rollouts=5)
    assert len(resumed.outcomes) == 5
    assert resumed.record(resumed.outcomes[4]).forks[0]["calls"] == 2
    with pytest.raises(UsageError, match="--branch-of was"):
        branch("first alice#1@3", n_rollouts=4, eval_id="again")


def test_a_branch_of_a_branch(first: EvaluationResult) -> None:
    middle = branch("first alice#1@1", model="openai/gpt-4o", n_rollouts=2, eval_id="middle")
    last = branch("middle alice#2@3", n_rollouts=2, eval_id="last")
    parent = middle.record(middle.outcomes[1])
    for trace in last.records():
        assert trace.messages[:7] == parent.messages[:7]
        assert [fork["calls"] for fork in trace.forks] == [1, 3]
        assert trace.reward == 1.0
    text = last.report(200, whole=True)
    tree = [line for line in text.splitlines() if line.startswith(("first alice", "└─", "   └─"))]
    assert [line.partition(":")[0] for line in tree] == ["first alice#1", "└─ @1 middle", "   └─ #2@3 last"]
    assert tree[2].endswith("<- this one")
    assert "2 of 2 passed" in tree[1]


def test_another_result_of_a_tool_call(first: EvaluationResult, stub_llm: StubServer) -> None:
    result = branch("first alice#1@1", tool_result="[]", n_rollouts=1)
    (trace,) = result.records()
    assert results({"messages": trace.messages})[0] == "[]" != trace.tool_calls[0].content
    assert results(stub_llm.requests_for("gpt-4o-mini")[-1])[0] == "[]"
    assert "with another result of its tool call: []" in result.report(100)
    again = branch(f"{result.eval_id} alice#1@2", n_rollouts=1)
    assert results({"messages": next(again.records()).messages})[0] == "[]"
    with pytest.raises(UsageError, match=r"step 4 makes 0 tool calls.*Name a step with one tool call"):
        branch("first alice#1@4", tool_result="[]", user="none", n_rollouts=1, max_steps=9)


def test_in_workers(first: EvaluationResult) -> None:
    options = ("--model", "openai/gpt-4o", "-n", "2", "--workers", "1", "--eval-id", "apart")
    done = run_command("branch", "first", "alice#1@1", *options)
    assert done.code == 0, done.err
    assert [one.reward for one in load_evaluation("apart").outcomes] == [1.0] * 2
    with pytest.raises(UsageError, match=r"Ray cluster\. Omit --ray"):
        branch("first alice#1@1", n_rollouts=2, ray="auto")


def test_another_user(first: EvaluationResult, bundle: Bundle) -> None:
    players: Any = {"model": "openai/gpt-4o-mini", "n_rollouts": 1}
    result = branch("first alice#1@3", user=bundle.player("Remembers"), **players)
    assert next(result.records()).lines[-1].text == "Line 2 ###STOP###"
    with pytest.raises(UsageError, match=r"the user Keeps keeps state"):
        branch("first alice#1@3", user=bundle.player("Keeps"), **players)
    with pytest.raises(BundleError, match=r"Forgets.recall\(\) raised .*LookupError: lost"):
        branch("first alice#1@3", user=bundle.player("Forgets"), **players)


def test_a_user_object_that_keeps_state_takes_over_no_branch(bundle: Bundle) -> None:
    class Counts:
        def __init__(self) -> None:
            self.said = 0

        async def respond(self, rollout: Rollout) -> str:
            return "###STOP###"

    options: Any = {"agent": bundle.player("Gives"), "n_rollouts": 1, "task_ids": "alice"}
    evaluate(bundle.dataset, eval_id="first", no_sim_user=True, **options)
    with pytest.raises(UsageError, match="keeps state"):
        branch("first alice#1@0", user=Counts(), n_rollouts=1)


def test_an_agent_that_was_changed_since(bundle: Bundle) -> None:
    agent: Any = {"agent": bundle.player("Gives"), "user": "none"}
    evaluate(bundle.dataset, eval_id="first", n_rollouts=1, task_ids="alice", **agent)
    module = bundle.folder.parent / f"{bundle.players}.py"
    module.write_text(module.read_text().replace("I give up.", "I try again."))
    result = branch("first alice#1@0", n_rollouts=1)
    assert next(result.records()).lines[-1].text == "I try again."


def test_what_may_take_for_ever_is_stored_shown_and_branched_like_the_rest(bundle: Bundle) -> None:
    options: Any = {"agent": bundle.player("Gives"), "user": "none", "n_rollouts": 1, "task_ids": "alice"}
    stored = evaluate(bundle.dataset, eval_id="first", timeout=math.inf, **options)
    results = json.loads(stored.results_path.read_text(), parse_constant=pytest.fail)
    assert results["configuration"]["timeout"] == sys.float_info.max
    Path("card.json").write_text(json.dumps(card_of(stored)))
    card = read_card(Path("card.json"))
    assert [*faults_of(card), *differences_from(card, load_evaluation("first"))] == []
    assert compare("card.json", "first").success.value == 0
    assert branch("first alice#1@0", n_rollouts=1, eval_id="again").outcomes
    for name in ("first", "again"):
        assert ">@0 again</a>" in page_at(Path("runs"), f"evals/{name}.html").html


MISTAKES: list[tuple[str, dict[str, Any], type[RewardKitError], str]] = [
    ("first bob#1@1", {}, UsageError, "there is no rollout of a row 'bob'"),
    ("first alice#7@1", {}, UsageError, "has no rollout 7"),
    ("second alice#1@1", {}, UsageError, "there is no evaluation 'second'"),
    ("first", {}, StorageError, "there is no such rollout. Name it 'EVALUATION ROW#1'"),
    ("first alice#1@5", {}, UsageError, "first alice#1: there is no step 5. It has steps 0 to 4"),
    ("first alice#1@4", {}, UsageError, r"is over at step 4 \(user_stop\). Name an earlier step"),
    (
        "gold alice#1",
        {},
        UsageError,
        "no step is named, and no call of it is known to be wrong",
    ),
    (
        "gold alice#1@1",
        {},
        UsageError,
        "agent gold plays from the beginning.*Name another one: --model",
    ),
    ("gold alice#1@1", {"model": "openai/gpt-4o"}, UsageError, r"needs a model of its own.*--user-model"),
    ("first alice#1@1", {"model": "openai/gpt-4o", "eval_id": "first"}, UsageError, "--model was"),
    ("first alice#1@1", {"eval_id": "a/b"}, UsageError, "not a valid file name"),
]


def test_a_mistake_is_one_clear_error(first: EvaluationResult, bundle: Bundle) -> None:
    evaluate(bundle.dataset, agent="gold", eval_id="gold", n_rollouts=1, task_ids="alice")
    before = sorted((bundle.folder.parent / "runs" / "evals").glob("*.db"))
    for name, options, kind, message in MISTAKES:
        with pytest.raises(kind, match=message):
            branch(name, n_rollouts=2, **options)
        assert sorted((bundle.folder.parent / "runs" / "evals").glob("*.db")) == before, name


def test_a_missing_key_is_named(first: EvaluationResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.delenv("OPENAI_API_BASE")
    with pytest.raises(ModelSetupError, match="OPENAI_API_KEY"):
        branch("first alice#1@1", n_rollouts=2)


def test_a_changed_bundle_is_refused(first: EvaluationResult, bundle: Bundle) -> None:
    tools = bundle.folder / "tools.py"
    text = tools.read_text()
    tools.write_text(text.replace("db.fetch_all(", "db.fetch_all( "))
    refused = r"first alice#1: cannot be branched.*the bundle has changed since:\s+flight_task/tools.py"
    with pytest.raises(UsageError, match=refused):
        branch("first alice#1@1", n_rollouts=2)
    tools.write_text(text)
    bundle.rows({**ROWS[0], "max_steps": 9}, ROWS[1])
    with pytest.raises(UsageError, match="row alice: its fields have changed: max_steps"):
        branch("first alice#1@1", n_rollouts=2)
    bundle.rows(*ROWS)
    moved = shutil.move(bundle.folder, bundle.folder.with_name("moved_task"))
    with pytest.raises(UsageError, match="--dataset NEW_PATH"):
        branch("first alice#1@1", n_rollouts=2)
    shutil.copytree(moved, bundle.folder)
    assert len(branch("first alice#1@1", n_rollouts=2).outcomes) == 2


def test_a_tool_that_is_not_repeatable_ends_it_before_any_model_is_asked(
    bundle: Bundle, stub_llm: StubServer
) -> None:
    clock = "\n\n@R.tool(parameters={})\ndef clock():\n    import time\n    return time.perf_counter_ns()\n"
    bundle.write("tools.py", (bundle.folder / "tools.py").read_text() + clock)
    stub_llm.script("gpt-4o-mini", [call("clock"), "Done."])
    options: Any = {"model": "openai/gpt-4o-mini", "user": "none", "n_rollouts": 1}
    evaluate(bundle.dataset, eval_id="first", **options)
    before = len(stub_llm.requests)
    with pytest.raises(BundleError, match="first alice#1: the tool clock is not repeatable: call 1 gave"):
        branch("first alice#1@1", n_rollouts=2)
    assert len(stub_llm.requests) == before


class Walking:
    """Walks from all that it is given."""

    found: list[Any]

    async def respond(self, rollout: Rollout) -> str:
        type(self).found = reachable(rollout)
        return "paid"


def test_the_agent_of_a_branch_finds_no_answers(first: EvaluationResult) -> None:
    branch("first alice#1@1", agent=Walking, n_rollouts=1)
    texts = [one for one in Walking.found if isinstance(one, str)]
    assert any("2025-05-20" in one for one in texts), "the walk finds what was done"
    hidden = ("pay_booking", "Bob", "secret", PROMPT, "Please go on", "paid", "first", "wrong")
    origin = load_rollout("first alice#1")
    hidden += (origin.id, origin.tool_calls[1].content)
    schemas = json.dumps(first.tools_of("alice"))
    assert [one for one in texts if any(word in one for word in hidden) and one not in schemas] == []
