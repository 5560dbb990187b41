"""The JSON between this package and an agent behind HTTP; docs/http-agent.md is its reference."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.completion import Usage
from reward_kit.agent.redaction import label
from reward_kit.errors import AgentError

if TYPE_CHECKING:
    from reward_kit.agent.completion import Message
    from reward_kit.agent.doors import ToolDoor
    from reward_kit.agent.rollout import Rollout

PROTOCOL = "reward-kit.agent/1"
EXPECTED = 'expected {"reply": "text"}'

_MOST_CALLS = 10_000
_MOST_TOKENS = 10**12
_MOST_COST = 10**6
_COUNTS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """What an agent said in a turn. ``reply`` is None only where it is ``done``."""

    reply: str | None
    reasoning: str | None
    done: bool
    usage: list[tuple[str, Usage, float]]
    """Model, tokens and cost, and seconds of each call it made."""

    @property
    def message(self) -> Message:
        """The assistant message for the history."""
        message: Message = {"content": self.reply}
        return {**message, "reasoning_content": self.reasoning} if self.reasoning else message


def turn_request(rollout: Rollout, door: ToolDoor, token: str) -> bytes:
    """The body that asks for the agent's next reply."""
    heard = rollout.lines[-1] if rollout.lines else None
    return _encoded(
        {
            "protocol": PROTOCOL,
            "event": "turn",
            "rollout": _identity(rollout),
            "system_prompt": rollout.task.system_prompt,
            "messages": rollout.messages,
            "message": heard.text if heard is not None and heard.speaker == "user" else "",
            "tools": rollout.tools,
            "door": {
                "tools_url": door.tools_url,
                "rollout_url": door.rollout_url,
                "mcp_url": door.mcp_url,
                "token": token,
            },
        }
    )


def closed_request(rollout: Rollout) -> bytes:
    """The body that says that a rollout is over."""
    return _encoded(
        {
            "protocol": PROTOCOL,
            "event": "closed",
            "rollout": _identity(rollout),
            "stop_reason": rollout.stop_reason,
        }
    )


def read_answer(body: str, model: str) -> AgentAnswer:
    """The answer in the body of a 200; raises ``AgentError`` that names what is wrong with it.

    ``model`` stands for models that the agent does not name.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise _unusable("is not JSON") from None
    if not isinstance(answer, dict):
        raise _unusable(f"is JSON, but {_kind(answer)}")
    done = answer.get("done", False)
    if not isinstance(done, bool):
        raise _unusable(f"has done: {_kind(done)}, not true or false")
    reply = _text(answer, "reply")
    if not done and (reply is None or not reply.strip()):
        raise _unusable("has no reply" if reply is None else "has an empty reply")
    return AgentAnswer(reply or None, _text(answer, "reasoning"), done, _usage(answer.get("usage"), model))


def _identity(rollout: Rollout) -> dict[str, Any]:
    return {
        "id": rollout.id,
        "row_id": rollout.row.id,
        "index": rollout.index,
        "seed": rollout.seed,
        "turn": rollout.turns,
    }


def _encoded(body: dict[str, Any]) -> bytes:
    # Escaped to ASCII, so that text which is not valid Unicode can be sent as well.
    return json.dumps(body, default=str).encode("ascii")


def _text(answer: dict[str, Any], name: str) -> str | None:
    value = answer.get(name)
    if value is None or isinstance(value, str):
        return value
    raise _unusable(f"has {name}: {_kind(value)}, not text")


def _usage(given: Any, model: str) -> list[tuple[str, Usage, float]]:
    entries = [] if given is None else given if isinstance(given, list) else [given]
    if len(entries) > _MOST_CALLS:
        raise _unusable(f"has usage of more than {_MOST_CALLS} model calls")
    return [_model_call(entry, model) for entry in entries]


def _model_call(entry: Any, model: str) -> tuple[str, Usage, float]:
    if not isinstance(entry, dict):
        raise _unusable(f"has usage with {_kind(entry)}, not an object for each model call")
    usage = Usage(calls=1, **{name: int(_number(entry, name, _MOST_TOKENS)) for name in _COUNTS})
    if entry.get("cost") is None:
        usage.unpriced_calls = 1
    else:
        usage.cost = float(_number(entry, "cost", _MOST_COST))
    name = _text(entry, "model")
    return label(name) if name else model, usage, float(_number(entry, "seconds", _MOST_COST))


def _number(entry: dict[str, Any], name: str, most: int) -> float:
    value = entry.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _unusable(f"has usage with {name}: {_kind(value)}, not a number")
    if not 0 <= value <= most:
        raise _unusable(f"has usage with {name}: {value:g}, not between 0 and {most:g}")
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list"}
    return names.get(type(value), "an object")


def _unusable(fault: str) -> AgentError:
    return AgentError(f"the agent's answer {fault}; {EXPECTED}")
