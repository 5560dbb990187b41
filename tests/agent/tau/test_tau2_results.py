"""Results files of tau2-bench are replayed call by call, and graded again by the bundle's reward."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stored_rollouts import edit
from tau2_results import bundle_in, called, document, said, simulation, suspended, task_of
from tau_bench_file import write

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.tau.results.file import read_results
from reward_kit.agent.tau.results.tau2_export import tau2_parts
from reward_kit.agent.tau.results.tau_bench import results_parts
from reward_kit.errors import BundleError

Grade = Callable[..., EvaluationResult]


@pytest.fixture
def grade(tmp_path: Path) -> Iterator[Grade]:
    """Grade a file of these contents, or the one at a path, by the phone bundle."""
    bundle = bundle_in(tmp_path)

    def run(file: Any, **options: Any) -> EvaluationResult:
        path = file if isinstance(file, Path) else write(tmp_path / "results.json", file)
        return agent_eval(bundle, from_tau_bench=str(path), output_dir=str(tmp_path / "runs"), **options)

    yield run
    sys.modules.pop("phone_task", None)


def outcomes(result: EvaluationResult) -> list[tuple[str, int, float | None, str]]:
    return [(one.row_id, one.index, one.reward, one.stop_reason) for one in result.outcomes]


def test_calls_of_both_sides_are_made_again_and_judged(grade: Grade) -> None:
    tries = [simulation("suspended", suspended(), 1.0, checks=1.0)]
    tries += [simulation("suspended", suspended(restarts=False), 0.0, trial=1)]
    result = grade(document(tries, [task_of("suspended")], n_trials=2))
    assert outcomes(result) == [("suspended", 0, 1.0, "user_stop"), ("suspended", 1, 0.0, "user_stop")]
    agreement = result.agreement
    assert agreement is not None
    assert (agreement.compared, agreement.disagreements, agreement.different_results) == (2, (), ())
    assert agreement.tool_results == 5
    assert result.failures == {"user_did_not_act": 1}
    record = result.record(result.outcomes[0])
    made = [(call.by, call.name, bool(call.changes)) for call in record.tool_calls]
    assert made == [("agent", "find_line", False), ("agent", "resume_line", True), ("user", "restart", True)]
    lines = [(line.speaker, line.text[:12]) for line in record.lines]
    assert lines[-2:] == [("agent", "Please resta"), ("user", "It works now")]


def test_a_grade_that_moved_says_why(grade: Grade) -> None:
    """Another answer, another part, another task: each is named, and what follows from the replay."""
    other = called("assistant", "paused", "resume_line", number="555-0101")[1]["content"]
    lenient = simulation("suspended", suspended(restarts=False, resumed=other), 1.0, ENV_ASSERTION=1.0)
    rated = simulation("suspended", suspended(restarts=False), 1.0, trial=1, ENV_ASSERTION=1.0)
    task = task_of("suspended", actions=[{"name": "resume_line", "arguments": {"number": "555-0101"}}])
    result = grade(document([lenient, rated], [task], n_trials=2))
    assert result.agreement is not None
    first, second = result.agreement.disagreements
    assert (first.task_id, first.recorded, first.reward) == ("suspended", 1.0, 0.0)
    assert first.parts == second.parts == {"checks": (1.0, 0.0)}
    assert first.expects == ("actions",)
    assert first.replay == "resume_line: 'paused' in the file, 'status of 555-0101 is active' here"
    assert second.replay is None
    lines = "\n".join(result.agreement.lines())
    assert "task suspended, trial 0: 1 in the file, 0 here (checks 1 -> 0; the file's task has other" in lines
    assert "1 of 2 moved grades followed a replay that differs from the recording" in lines
    assert "The tools answered as recorded in 3 of 4 calls." in lines
    assert json.loads(result.results_path.read_text())["agreement"]["disagreements"][1]["expects"] == [
        "actions"
    ]


def test_numbers_that_are_written_otherwise_and_timings_are_the_same_answer(grade: Grade) -> None:
    messages = suspended()
    messages[3]["content"] = messages[3]["content"].replace('"used_gb": 1', '"used_gb": 1.0')
    messages[5]["content"] += "\n\n[Timing: retrieval=12ms]"
    result = grade(document([simulation("suspended", messages, 1.0)], []))
    assert result.agreement is not None
    assert result.agreement.different_results == ()


def test_of_a_file_without_rewards_nothing_is_said_of_their_agreement(grade: Grade) -> None:
    result = grade(document([simulation("suspended", suspended(), None)], [task_of("suspended")]))
    assert result.agreement is not None
    first, *others = result.agreement.lines()
    assert first == "The tools answered as recorded in 3 of 3 calls."
    assert "reward" not in " ".join(others)


def test_missing_trials_are_named(grade: Grade) -> None:
    tries = [simulation("suspended", suspended(), 1.0, trial=trial) for trial in (0, 2)]
    file = document(tries, [task_of("suspended")], n_trials=4)
    file["simulation_index"] = [{"id": one["id"]} for one in tries] + [{"id": "gone"}]
    result = grade(file)
    assert result.agreement is not None
    assert result.agreement.missing == (
        "all trials of 5 tasks of the dataset: airplane, data_off, used_up, abroad, both",
        "task suspended: 2 of 4 trials (1, 3)",
        "simulation gone, which its index names",
    )
    assert result.agreement.pass_power == {1: 1.0, 2: 1.0}


def test_a_number_of_trials_that_nothing_holds_is_told_at_once(grade: Grade) -> None:
    file = document([simulation("suspended", suspended(), 1.0)], [task_of("suspended")], n_trials=10**20)
    result = grade(file)
    assert result.agreement is not None
    assert result.agreement.missing[1].startswith(
        f"task suspended: {10**20 - 1} of {10**20} trials (1, 2, 3,"
    )
    assert len(result.agreement.missing[1]) < 400


@pytest.mark.parametrize(
    ("end", "stop_reason", "reward"),
    [
        ("max_steps", "max_steps", 0.0),
        ("too_many_errors", "agent_error", 0.0),
        ("timeout", "timeout", 0.0),
        ("user_error", "user_error", None),
        ("infrastructure_error", "infrastructure_error", None),
    ],
)
def test_a_simulation_ends_here_as_it_ended_there(
    grade: Grade, end: str, stop_reason: str, reward: Any
) -> None:
    result = grade(document([simulation("suspended", suspended()[:5], 0.0, end=end)], []))
    assert outcomes(result) == [("suspended", 0, reward, stop_reason)]
    assert result.outcomes[0].stop_detail == f"recorded: {end}"


def test_calls_of_a_user_who_says_nothing_are_made(grade: Grade) -> None:
    silent = [one for one in suspended() if one["role"] == "tool" or one["tool_calls"]]
    messages = [*suspended()[:1], *silent]
    result = grade(document([simulation("suspended", messages, 1.0, end="agent_stop")], []))
    assert outcomes(result) == [("suspended", 0, 1.0, "agent_done")]


def test_an_agent_without_a_user_makes_all_calls(tmp_path: Path) -> None:
    bundle = bundle_in(tmp_path)
    rows = (
        (bundle / "task.jsonl").read_text(encoding="utf-8").replace('{"id"', '{"ticket": "Help Ana.", "id"')
    )
    (bundle / "task.jsonl").write_text(rows, encoding="utf-8")
    talked = [one for one in suspended() if one["role"] == "tool" or one["tool_calls"]]
    acted = [{**one, "role": "assistant"} if one["role"] == "user" else one for one in talked]
    for one in acted:
        one["requestor"] = "assistant"
        for call in one.get("tool_calls") or ():
            call["requestor"] = "assistant"
    messages = [*acted, said("assistant", "###STOP###")]
    path = write(
        tmp_path / "r.json", document([simulation("suspended", messages, 1.0, end="agent_stop")], [])
    )
    result = agent_eval(bundle, from_tau_bench=path, mode="solo", output_dir=str(tmp_path / "runs"))
    assert outcomes(result) == [("suspended", 0, 1.0, "agent_done")]
    assert result.agreement is not None
    assert (result.agreement.tool_results, result.agreement.different_results) == (3, ())
    sys.modules.pop("phone_task", None)


def test_a_folder_is_read_like_a_file(grade: Grade, tmp_path: Path) -> None:
    tries = [simulation("suspended", suspended(), 1.0, trial=trial) for trial in (0, 1)]
    whole = document([], [task_of("suspended")], n_trials=2)
    del whole["simulations"]
    folder = tmp_path / "voice"
    (folder / "simulations").mkdir(parents=True)
    write(folder / "results.json", whole)
    for one in tries:
        write(folder / "simulations" / f"{one['id']}.json", one)
    assert outcomes(grade(folder, eval_id="folder")) == outcomes(
        grade(folder / "results.json", eval_id="file")
    )
    write(folder / "simulations" / "x.json", {**tries[0], "termination_reason": "bored"})
    with pytest.raises(BundleError, match=r"x\.json: \$\.termination_reason"):
        read_results(folder)


@pytest.mark.parametrize(
    ("change", "place", "fault"),
    [
        ({"termination_reason": "bored"}, ".termination_reason", "got 'bored'"),
        ({"messages": None}, "", "only half-duplex text simulations can be replayed"),
        ({"messages": [{"role": "boss"}]}, ".messages[0].role", "got 'boss'"),
        ({"reward_info": {}}, ".reward_info.reward", "required"),
        ({"trial": -1}, ".trial", "got -1"),
    ],
)
def test_a_fault_names_its_json_path(tmp_path: Path, change: Any, place: str, fault: str) -> None:
    name = write(tmp_path / "r.json", document([{**simulation("suspended", suspended(), 1.0), **change}], []))
    with pytest.raises(BundleError) as error:
        read_results(name)
    assert error.value.place == f"{name}: $.simulations[0]{place}"
    assert fault in str(error.value)


def test_a_grade_says_of_which_task_it_is(grade: Grade) -> None:
    """Files exist whose simulations name other tasks than those that they were graded by."""
    tasks = [task_of(name) for name in ("suspended", "used_up", "airplane")]
    wrong = simulation("airplane", suspended(), 1.0, ENV_ASSERTION=1.0)
    actions = tasks[0]["evaluation_criteria"]["actions"]
    checks = [{"action": one, "action_match": True, "action_reward": 1.0} for one in actions]
    wrong["reward_info"] |= {"action_checks": checks, "communicate_checks": None, "nl_assertions": []}
    result = grade(document([wrong], tasks))
    assert outcomes(result) == [("suspended", 0, 1.0, "user_stop")]
    assert result.agreement is not None
    assert result.agreement.graded_as == ("airplane is suspended",)
    assert "1 simulation named another task" in "\n".join(result.agreement.lines())
    tasks += [task_of("both", actions=[])]
    unchecked = simulation("suspended", suspended(), 1.0, ENV_ASSERTION=1.0)
    assert outcomes(grade(document([unchecked], tasks), eval_id="unchecked"))[0][0] == "suspended"
    unknown = [{**one, "action": {**one["action"], "name": "dance"}} for one in checks]
    wrong["reward_info"]["action_checks"] = unknown
    kept = grade(document([wrong], tasks), eval_id="kept")
    assert outcomes(kept) == [("airplane", 0, 0.0, "user_stop")]


def test_the_verdicts_of_a_judge_are_in_the_trace(grade: Grade) -> None:
    graded = simulation("suspended", suspended(), 1.0)
    sentence = {"nl_assertion": "The agent is kind.", "met": True, "justification": "It is."}
    graded["reward_info"]["nl_assertions"] = [sentence]
    result = grade(document([graded], []))
    assert result.record(result.outcomes[0]).given_verdicts == {"The agent is kind.": True}


def test_a_file_of_another_domain_is_refused(tmp_path: Path) -> None:
    bundle = bundle_in(tmp_path).rename(tmp_path / "tau2_retail")
    path = write(tmp_path / "r.json", document([simulation("suspended", suspended(), 1.0)], []))
    with pytest.raises(BundleError, match="the file is of the domain phone, the bundle of retail"):
        agent_eval(bundle, from_tau_bench=path, output_dir=str(tmp_path / "runs"))


def test_an_unknown_task_is_refused(grade: Grade) -> None:
    with pytest.raises(BundleError, match=r"\$\.simulations\[0\]\.task_id: the dataset has no task lost"):
        grade(document([simulation("lost", suspended(), 1.0)], []))


def test_what_is_exported_comes_back_with_the_same_grades(grade: Grade, tmp_path: Path) -> None:
    """The rollouts of the gold agent, and a conversation in which the user speaks and acts."""
    runs = {"output_dir": str(tmp_path / "runs")}
    gold = agent_eval(tmp_path / "phone_task", agent="gold", n_rollouts=2, eval_id="gold", **runs)
    spoken = grade(document([simulation("suspended", suspended(restarts=False), 0.0)], []), eval_id="spoken")
    for name, before in (("gold", gold), ("spoken", spoken)):
        text = b"".join(tau2_parts(before, "phone"))
        path = tmp_path / f"{name}.json"
        path.write_bytes(text)
        again = grade(path, eval_id=f"{name}-again")
        assert [(one.row_id, one.index, one.reward) for one in again.outcomes] == [
            (one.row_id, one.index, one.reward) for one in before.outcomes
        ]
        assert again.agreement is not None
        assert (again.agreement.disagreements, again.agreement.different_results) == ((), ())
    written = json.loads(text)
    assert written["info"]["environment_info"]["domain_name"] == "phone"
    roles = [(one["role"], bool(one.get("tool_calls"))) for one in written["simulations"][0]["messages"]]
    theirs = [(one["role"], bool(one.get("tool_calls"))) for one in suspended(restarts=False)]
    assert roles == theirs[1:]  # the bundle's agent does not greet


def test_what_was_said_is_exported_in_its_order(grade: Grade) -> None:
    messages = [*suspended()[:7], *called("user", "The phone has restarted.", "restart")]
    played = grade(document([simulation("suspended", messages, 1.0, end="max_steps")], []))
    (written,) = json.loads(b"".join(tau2_parts(played, "phone")))["simulations"]
    shape = [(one["role"], one.get("requestor"), one["content"]) for one in written["messages"]]
    assert shape == [(one["role"], one.get("requestor"), one["content"]) for one in messages[1:]]
    assert written["termination_reason"] == "max_steps"
    ids = [call["id"] for one in written["messages"] for call in one.get("tool_calls") or ()]
    assert ids == [one["id"] for one in written["messages"] if one["role"] == "tool"]


def test_an_opening_in_which_the_user_has_acted_comes_back(grade: Grade, tmp_path: Path) -> None:
    """The calls of the row's first messages are made once, on its base, and not again by the replay."""
    dataset = tmp_path / "phone_task" / "task.jsonl"
    defaults, *rows = map(json.loads, dataset.read_text().splitlines())
    (row,) = [one for one in rows if one["id"] == "data_off"]
    call = {"id": "c1", "type": "function", "function": {"name": "check_status_bar", "arguments": "{}"}}
    row["initial_messages"] = [
        {"role": "user", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "(see the screen)"},
        {"role": "user", "content": "Pages do not load."},
    ]
    dataset.write_text("\n".join(map(json.dumps, [defaults, row])) + "\n")
    gold = agent_eval(tmp_path / "phone_task", agent="gold", eval_id="g", output_dir=str(tmp_path / "runs"))
    assert [one.reward for one in gold.outcomes] == [1.0]
    (tmp_path / "g.json").write_bytes(b"".join(tau2_parts(gold, "phone")))
    again = grade(tmp_path / "g.json", eval_id="again")
    assert outcomes(again) == [("data_off", 0, 1.0, "agent_done")]
    made = [(one.by, one.name) for one in again.record(again.outcomes[0]).tool_calls]
    assert made == [("user", "toggle")]


def test_an_agent_that_spoke_last_goes_on_without_a_user(grade: Grade, tmp_path: Path) -> None:
    """The user's line in the opening does not mean that a user plays."""
    dataset = tmp_path / "phone_task" / "task.jsonl"
    defaults, *rows = map(json.loads, dataset.read_text().splitlines())
    (row,) = [one for one in rows if one["id"] == "suspended"]
    lines = [("user", "My phone has no signal."), ("assistant", "One moment.")]
    row["initial_messages"] = [{"role": role, "content": text} for role, text in lines]
    dataset.write_text("\n".join(map(json.dumps, [defaults, row])) + "\n")
    gold = agent_eval(tmp_path / "phone_task", agent="gold", eval_id="g", output_dir=str(tmp_path / "runs"))
    (tmp_path / "g.json").write_bytes(b"".join(tau2_parts(gold, "phone")))
    again = grade(tmp_path / "g.json", eval_id="again")
    assert outcomes(again) == outcomes(gold) == [("suspended", 0, 1.0, "agent_done")]


def test_a_damaged_rollout_is_left_out_of_the_file_with_a_warning(
    grade: Grade, caplog: pytest.LogCaptureFixture
) -> None:
    tries = [simulation("suspended", suspended(), 1.0, trial=trial) for trial in range(3)]
    played = grade(document(tries, [task_of("suspended")], n_trials=3))
    first = played.outcomes[0]
    edit(played.log_path, "UPDATE traces SET json = json || ' ' WHERE rollout = ?", first.id)
    simulations = json.loads(b"".join(tau2_parts(played, "phone")))["simulations"]
    assert [one["trial"] for one in simulations] == [1, 2]
    assert f"warning: a rollout is left out: {played.log_path}/{first.id}: rollout suspended#1" in caplog.text


def test_that_the_older_layout_has_no_place_for_calls_of_the_user_is_told(
    grade: Grade, caplog: pytest.LogCaptureFixture
) -> None:
    tries = [simulation("suspended", suspended(restarts=trial == 1), 1.0, trial=trial) for trial in (0, 1)]
    played = grade(document(tries, [task_of("suspended")], n_trials=2))
    entries = json.loads(b"".join(results_parts(played, {"suspended": 0})))
    assert [entry["reward"] for entry in entries] == [0.0, 1.0]
    (told,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    fault = "the users' own calls are left out: the format has no place for them"
    assert told == f"warning: {fault}"
