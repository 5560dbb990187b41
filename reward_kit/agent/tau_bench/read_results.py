"""Reading a results file of tau-bench: a list of objects ``{task_id, reward, info, traj, trial}``."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.cut_text import cut
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from reward_kit.agent.completion import Message

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_AGENTS_FAULT = re.compile(
    r"^(?:json\.decoder\.JSONDecodeError|JSONDecodeError|AssertionError|KeyError: 'content')"
)
"""How tau-bench's own agents fail on an answer of the model: bad JSON, an action without its parts."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One entry of the file.

    ``task`` is what it says of its task (``info.task``), if it does. ``error`` is set where tau-bench met an
    exception, ``agents_fault`` says that the model's answer caused it. ``judged`` tells whether it came to
    computing a reward: it does not where the steps are used up. ``place`` is the entry's JSON path.
    """

    task_id: int
    trial: int
    reward: float
    traj: list[Message]
    task: dict[str, Any] | None
    error: str | None
    agents_fault: bool
    judged: bool
    place: str


def read_results(path: str | Path) -> list[Trial]:
    """The entries of a results file, in its order.

    Raises ``BundleError`` with the JSON path of the first fault. Fields that are not needed may be missing.
    """
    path = Path(path)
    entries = _parsed(path)
    if not isinstance(entries, list):
        raise _fault(path, "", "a list of results", entries)
    if not entries:
        raise BundleError("holds no results", place=str(path))
    return [_trial(path, f"[{number}]", entry) for number, entry in enumerate(entries)]


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BundleError("there is no such file", place=str(path)) from None
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror or error}", place=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise BundleError(f"is not JSON: {error}", place=str(path)) from error


def _trial(path: Path, place: str, entry: Any) -> Trial:
    if not isinstance(entry, dict):
        raise _fault(path, place, "an object with task_id, reward and traj", entry)
    info = _optional(path, f"{place}.info", entry.get("info"), dict, "an object")
    task = _optional(path, f"{place}.info.task", info.get("task"), dict, "an object") or None
    traj = _optional(path, f"{place}.traj", entry.get("traj"), list, "a list of messages")
    error = info.get("error")
    return Trial(
        task_id=_number(path, f"{place}.task_id", entry.get("task_id")),
        trial=_number(path, f"{place}.trial", entry.get("trial", 0)),
        reward=_reward(path, f"{place}.reward", entry.get("reward")),
        traj=[_message(path, f"{place}.traj[{at}]", message) for at, message in enumerate(traj)],
        task=task,
        error=None if error is None else str(error) or "an error without a text",
        agents_fault=_is_agents_fault(info.get("traceback")),
        judged=bool(info.get("reward_info")),
        place=place,
    )


def _optional(path: Path, place: str, value: Any, kind: type, expected: str) -> Any:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise _fault(path, place, expected, value)
    return value


def _number(path: Path, place: str, value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _fault(path, place, "a whole number from 0", value)
    return value


def _reward(path: Path, place: str, value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise _fault(path, place, "a number", value)
    return float(value)


def _message(path: Path, place: str, message: Any) -> Message:
    if not isinstance(message, dict):
        raise _fault(path, place, "a message", message)
    if message.get("role") not in ROLES:
        raise _fault(path, f"{place}.role", f"one of {', '.join(ROLES)}", message.get("role"))
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise _fault(path, f"{place}.content", "a text", content)
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise _fault(path, f"{place}.tool_calls", "a list", calls)
    for at, call in enumerate(calls or ()):
        _check_function(path, f"{place}.tool_calls[{at}].function", _inside(call, "function"))
    if message.get("function_call") is not None:
        _check_function(path, f"{place}.function_call", message["function_call"])
    return message


def _inside(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _check_function(path: Path, place: str, function: Any) -> None:
    name = _inside(function, "name")
    if not isinstance(name, str):
        raise _fault(path, f"{place}.name", "the name of a tool", name)
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str | dict):
        raise _fault(path, f"{place}.arguments", "a text or an object", arguments)


def _is_agents_fault(traceback: Any) -> bool:
    lines = traceback.strip().splitlines() if isinstance(traceback, str) else []
    return bool(lines and _AGENTS_FAULT.match(lines[-1]))


def _fault(path: Path, place: str, expected: str, value: Any) -> BundleError:
    shown = "nothing" if value is None else cut(json.dumps(value, default=str), 60)
    return BundleError(f"expected {expected}, got {shown}", place=f"{path}: ${place}")
