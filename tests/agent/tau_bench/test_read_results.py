"""Reading results files: what is needed of one, and how a fault is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tau_bench_file import crash, write

from reward_kit.agent.tau_bench.results_file import read_results
from reward_kit.errors import BundleError

CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "think", "arguments": "{}"}}],
}


def changed(**fields: Any) -> list[dict[str, Any]]:
    return [{"task_id": 3, "reward": 0.0, "info": {}, "traj": [CALL], "trial": 1, **fields}]


def test_an_entry_needs_a_task_and_a_reward_and_nothing_else(tmp_path: Path) -> None:
    (trial,) = read_results(write(tmp_path / "r.json", [{"task_id": "7", "reward": 1}]))
    assert (trial.task_id, trial.trial, trial.reward, trial.traj) == (7, 0, 1.0, [])
    assert (trial.info.task, trial.error, trial.judged) == (None, None, False)


@pytest.mark.parametrize(
    ("entries", "path", "fault"),
    [
        ({"results": []}, "$", "should be a valid array"),
        ([3], "$[0]", "should be an object"),
        (changed(task_id=None), "$[0].task_id", "a valid integer, got None"),
        (changed(task_id=-1), "$[0].task_id", "greater than or equal to 0, got -1"),
        (changed(trial="x"), "$[0].trial", "got 'x'"),
        (changed(reward=None), "$[0].reward", "a valid number, got None"),
        (changed(info=[]), "$[0].info", "an object"),
        (changed(info={"task": "x"}), "$[0].info.task", "should be"),
        (changed(traj={}), "$[0].traj", "valid array"),
        (changed(traj=[CALL, "x"]), "$[0].traj[1]", "an object"),
        (changed(traj=[{"role": "boss"}]), "$[0].traj[0].role", "got 'boss'"),
        (changed(traj=[{**CALL, "tool_calls": [{}]}]), "$[0].traj[0].tool_calls[0].function", "required"),
        (changed(traj=[{**CALL, "function_call": "f"}]), "$[0].traj[0].function_call", "got 'f'"),
        ([*changed(), *changed(reward=[])], "$[1].reward", "got []"),
    ],
)
def test_a_fault_names_its_json_path(tmp_path: Path, entries: Any, path: str, fault: str) -> None:
    name = write(tmp_path / "r.json", entries)
    with pytest.raises(BundleError) as error:
        read_results(name)
    assert error.value.place == f"{name}: {path}"
    assert fault in str(error.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [("[]", "holds no results"), ("{", "is not JSON"), ("", "is not JSON"), ('[{"reward": NaN}]', "task_id")],
)
def test_a_file_that_is_none_is_one_error(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(BundleError, match=fault):
        read_results(tmp_path / "r.json")


def test_bytes_that_are_no_text_and_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(b"\xff\xfe\x00[")
    with pytest.raises(BundleError, match="is not JSON"):
        read_results(tmp_path / "r.json")
    with pytest.raises(BundleError, match="no such file"):
        read_results(tmp_path / "none.json")
    with pytest.raises(BundleError, match="cannot be read"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("last", "agents"),
    [
        ("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", True),
        ("AssertionError", True),
        ("KeyError: 'content'", True),
        ("KeyError: 'choices'", False),
        ("litellm.exceptions.RateLimitError: slow down", False),
    ],
)
def test_a_crash_says_whether_the_models_answer_caused_it(tmp_path: Path, last: str, agents: bool) -> None:
    entry = crash(0, "boom", f"Traceback (most recent call last):\n  File ...\n{last}\n")
    (trial,) = read_results(write(tmp_path / "r.json", json.loads(json.dumps([entry]))))
    assert (trial.error, trial.is_agents_fault, trial.judged) == ("boom", agents, False)
