"""Results files as tau2-bench writes them, made here for ``examples/phone_task``."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PHONE = Path(__file__).parents[2] / "examples" / "phone_task"
LINE = {"number": "555-0101"}


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content, "tool_calls": None, "turn_idx": 0, "is_audio": False}


def called(
    role: str, answer: str, name: str, *, error: bool = False, **arguments: Any
) -> list[dict[str, Any]]:
    """A message with one call, whose id a provider gave twice, and its answer."""
    call = {"id": "call_same", "name": name, "arguments": arguments, "requestor": role}
    result = {"role": "tool", "id": "call_same", "content": answer, "requestor": role, "error": error}
    return [{"role": role, "content": None, "tool_calls": [call]}, result]


def suspended(
    *, restarts: bool = True, resumed: str = "status of 555-0101 is active"
) -> list[dict[str, Any]]:
    """The conversation of the row ``suspended``, in which the user restarts the phone in time or not."""
    found = (
        '{"number": "555-0101", "customer": "Ana", "plan": "basic", "status": "suspended", '
        '"roaming": 0, "used_gb": 1}'
    )
    restarted = called("user", "The phone has restarted.", "restart") if restarts else []
    return [
        said("assistant", "Hi! How can I help you today?"),
        said("user", "My phone has no signal. My name is Ana."),
        *called("assistant", found, "find_line", customer="Ana"),
        *called("assistant", resumed, "resume_line", number="555-0101"),
        said("assistant", "Please restart the phone."),
        *restarted,
        said("user", "It works now. ###STOP###"),
    ]


def simulation(
    task: str, messages: Any, reward: float | None, *, trial: int = 0, end: str = "user_stop", **parts: float
) -> dict[str, Any]:
    graded = {"reward": reward, "reward_breakdown": parts or None, "info": {"note": "ours"}}
    return {
        "id": f"{task}-{trial}",
        "task_id": task,
        "start_time": "2026-01-01T00:00:00",
        "end_time": "2026-01-01T00:01:00",
        "duration": 60.0,
        "termination_reason": end,
        "reward_info": None if reward is None else graded,
        "messages": messages,
        "trial": trial,
    }


def task_of(name: str, *, actions: Iterable[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A row of the bundle as a task of the benchmark."""
    lines = (PHONE / "task.jsonl").read_text(encoding="utf-8").splitlines()
    row = next(one for one in map(json.loads, lines) if one.get("id") == name)
    roles = {"agent": "assistant", "user": "user"}
    calls = [
        {"action_id": str(number), "requestor": roles[one.get("by", "agent")], "arguments": {}, **one}
        for number, one in enumerate(row["actions"] if actions is None else actions)
    ]
    return {
        "id": name,
        "user_scenario": {"instructions": row["sim_user_prompt"]},
        "evaluation_criteria": {
            "actions": calls,
            "env_assertions": [{"env_type": "user", "func_name": "can_surf", "arguments": {}}],
        },
    }


def document(simulations: list[Any], tasks: list[Any], n_trials: int = 1) -> dict[str, Any]:
    return {
        "timestamp": "2026-01-01T00:00:00",
        "info": {
            "git_commit": "abc",
            "num_trials": n_trials,
            "max_steps": 100,
            "max_errors": 10,
            "user_info": {"implementation": "user_simulator", "llm": "gpt-4.1"},
            "agent_info": {"implementation": "llm_agent", "llm": "gpt-5"},
            "environment_info": {"domain_name": "phone", "policy": "Be kind."},
        },
        "tasks": tasks,
        "simulations": simulations,
    }


def bundle_in(folder: Path) -> Path:
    return Path(shutil.copytree(PHONE, folder / "phone_task"))
