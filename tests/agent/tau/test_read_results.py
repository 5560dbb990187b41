"""Reading results files: required fields, and messages for faults."""

from pathlib import Path
from typing import Any

import pytest
from tau_bench_file import write

from reward_kit.agent.tau.results.file import read_results
from reward_kit.errors import BundleError

THINK = {"function": {"name": "think", "arguments": "{}"}}
CALL = {"role": "assistant", "content": None, "tool_calls": [THINK]}


def changed(**fields: Any) -> list[dict[str, Any]]:
    return [{"task_id": 3, "reward": 0.0, "info": {}, "traj": [CALL], "trial": 1, **fields}]


def test_an_entry_needs_a_task_and_a_reward_and_nothing_else(tmp_path: Path) -> None:
    (trial,) = read_results(write(tmp_path / "r.json", [{"task_id": "7", "reward": 1}])).trials
    assert (trial.task_id, trial.index, trial.reward, trial.messages) == (7, 0, 1.0, [])
    assert (trial.expected, trial.stop_reason) == (None, "max_steps")


@pytest.mark.parametrize(
    ("entries", "path", "fault"),
    [
        ({"results": []}, "$", "is neither a list of results (tau-bench) nor an object"),
        (changed(task_id=-1), "$[0].task_id", "greater than or equal to 0, got -1"),
        (changed(trial="x"), "$[0].trial", "got 'x'"),
        (changed(info={"task": "x"}), "$[0].info.task", "should be"),
        (changed(traj=[CALL, "x"]), "$[0].traj[1]", "an object"),
        (changed(traj=[{"role": "boss"}]), "$[0].traj[0].role", "got 'boss'"),
        (changed(traj=[{**CALL, "tool_calls": [{}]}]), "$[0].traj[0].tool_calls[0].function", "required"),
        ([*changed(), *changed(reward=[])], "$[1].reward", "got []"),
    ],
)
def test_a_fault_names_its_json_path(tmp_path: Path, entries: Any, path: str, fault: str) -> None:
    name = write(tmp_path / "r.json", entries)
    with pytest.raises(BundleError) as error:
        read_results(name)
    assert error.value.place == f"{name}: {path}"
    assert fault in str(error.value)


def test_a_file_that_is_none_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for text, fault in (("[]", "holds no results"), ("{", "is not JSON"), ("\xff", "is not JSON")):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(BundleError, match=fault):
            read_results(path)
    (tmp_path / "folder" / "results.json").mkdir(parents=True)
    others = {
        "none.json": "none.json: there is no such file",
        "folder": "folder/results.json: cannot be read",
    }
    for name, fault in others.items():
        with pytest.raises(BundleError, match=fault):
            read_results(tmp_path / name)
