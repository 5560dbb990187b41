"""Results files as tau-bench writes them, made here from what its agents do, and the shapes it reads."""

import json
import math
from pathlib import Path
from typing import Any

from pydantic import BaseModel

RETAIL = Path(__file__).parents[2] / "tau_retail_task"


class Action(BaseModel):
    name: str
    kwargs: dict[str, Any]


class Task(BaseModel):
    user_id: str
    actions: list[Action]
    instruction: str
    outputs: list[str]


class OutputInfo(BaseModel):
    r_outputs: float
    outputs: dict[str, bool]


class ActionInfo(BaseModel):
    r_actions: float
    gt_data_hash: str


class RewardResult(BaseModel):
    reward: float
    info: OutputInfo | ActionInfo
    actions: list[Action]


class EnvInfo(BaseModel):
    task: Task
    source: str | None = None
    user_cost: float | None = None
    reward_info: RewardResult | None = None


class RunResult(BaseModel):
    task_id: int
    reward: float
    info: dict[str, Any]
    traj: list[dict[str, Any]]
    trial: int


def their_pass_power(results: list[dict[str, Any]]) -> dict[int, float]:
    """Pass^k as tau-bench computes it: every task is taken to have as many trials as there are."""
    trials = len({result["trial"] for result in results})
    successes: dict[int, int] = {}
    for result in results:
        solved = 1 - 1e-6 <= result["reward"] <= 1 + 1e-6
        successes[result["task_id"]] = successes.get(result["task_id"], 0) + solved
    return {
        k: sum(math.comb(c, k) / math.comb(trials, k) for c in successes.values()) / len(successes)
        for k in range(1, trials + 1)
    }


def row_of(index: int, dataset: str = "task_classic.jsonl") -> dict[str, Any]:
    row: dict[str, Any] = json.loads((RETAIL / dataset).read_text(encoding="utf-8").splitlines()[index])
    return row


def native(row: dict[str, Any], observed: list[str], *, said: str = "Done.", last: str = "###STOP###") -> Any:
    """A trajectory of the tool-calling agent: one call a message, ids that a provider gave twice."""
    opening = {"system": "The policy", "user": "Hi, I need help."}
    traj: list[dict[str, Any]] = [{"role": role, "content": said} for role, said in opening.items()]
    for action, text in zip(row["actions"], observed, strict=True):
        function = {"name": action["name"], "arguments": json.dumps(action["arguments"])}
        calls = [{"id": "call_same", "type": "function", "function": function}]
        traj.append({"content": None, "role": "assistant", "tool_calls": calls, "function_call": None})
        traj.append({"role": "tool", "tool_call_id": "call_same", "name": action["name"], "content": text})
    if last:
        traj += [{"content": said, "role": "assistant"}, {"role": "user", "content": last}]
    return traj


def text(row: Any, observed: list[str], *, said: str = "Done.", thought: str = "Thought:\nHm.\n") -> Any:
    """A trajectory of the agent react or, without a thought, act."""
    traj: list[dict[str, Any]] = [
        {"role": "system", "content": "The policy\n#Available tools\n[]"},
        {"role": "user", "content": "Hi, I need help."},
    ]
    for action, result in zip(row["actions"], observed, strict=True):
        written = json.dumps({"name": action["name"], "arguments": action["arguments"]})
        traj.append({"role": "assistant", "content": f"{thought}Action:\n{written}"})
        traj.append({"role": "user", "content": f"API output: {result}"})
    reply = json.dumps({"name": "respond", "arguments": {"content": said}})
    traj.append({"role": "assistant", "content": f"{thought}Action:\n{reply}"})
    traj.append({"role": "user", "content": "###STOP###"})
    return traj


def entry(index: int, traj: list[Any], reward: float, *, trial: int = 0, **info: Any) -> dict[str, Any]:
    """One result, as its runner writes it; ``row`` gives the task, without ``reward_info`` it was cut off."""
    row = info.pop("row", None) or row_of(index)
    actions = [{"name": action["name"], "kwargs": action["arguments"]} for action in row["actions"]]
    task = {
        "user_id": row.get("metadata", {}).get("user_id", ""),
        "actions": actions,
        "instruction": "You are a customer.",
        "outputs": row.get("outputs", []),
    }
    rewarded = {"reward": reward, "info": {"r_actions": reward, "gt_data_hash": "abc"}, "actions": actions}
    whole = {"task": task, "source": "user", "user_cost": 0.002, "reward_info": rewarded, **info}
    return {"task_id": index, "reward": reward, "info": whole, "traj": traj, "trial": trial}


def crash(index: int, error: str, traceback: str, trial: int = 0) -> dict[str, Any]:
    """The entry of a run that met an exception."""
    info = {"error": error, "traceback": traceback}
    return {"task_id": index, "reward": 0.0, "info": info, "traj": [], "trial": trial}


def write(path: Path, entries: Any) -> str:
    path.write_text(json.dumps(entries, indent=2), encoding="utf-8")
    return str(path)
