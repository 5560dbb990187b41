"""The JSON between this package and an agent behind HTTP; docs/http-agent.md is its reference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from reward_kit.agent.base.redaction import label
from reward_kit.agent.base.text import encodable
from reward_kit.agent.base.types import Usage
from reward_kit.errors import AgentError

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Message
    from reward_kit.agent.rollout.rollout import Rollout

PROTOCOL = "reward-kit.agent/1"
EXPECTED = 'expected {"reply": "text"}'

_Tokens = Annotated[float, Field(ge=0, le=10**12, allow_inf_nan=False), BeforeValidator(lambda v: v or 0)]
_Amount = Annotated[float, Field(ge=0, le=10**6, allow_inf_nan=False)]


class ModelUsage(BaseModel, strict=True):
    """One model call of the agent; without ``cost`` (US dollars) it counts as unpriced."""

    model: str | None = None
    input_tokens: _Tokens = 0
    cached_tokens: _Tokens = 0
    output_tokens: _Tokens = 0
    reasoning_tokens: _Tokens = 0
    cost: _Amount | None = None
    seconds: _Amount | None = None

    def count(self, rollout: Rollout, default: str) -> None:
        """Add the call to the rollout's usage; ``default`` is the name of an unnamed model."""
        tokens = {name: int(value) for name, value in self if name.endswith("_tokens")}
        usage = Usage(calls=1, cost=self.cost or 0.0, unpriced_calls=int(self.cost is None), **tokens)
        model = label(self.model) if self.model else default
        rollout.count_usage(usage, model=model, seconds=self.seconds or 0.0)


def _as_list(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, dict) else value


class AgentAnswer(BaseModel, strict=True):
    """The agent's answer to a turn; ``reply`` may be missing or empty only if it is ``done``."""

    reply: str | None = None
    reasoning: str | None = None
    done: bool = False
    usage: Annotated[list[ModelUsage], BeforeValidator(_as_list), Field(max_length=10_000)] = []

    @property
    def says_something(self) -> bool:
        return bool(self.reply and self.reply.strip())

    @property
    def message(self) -> Message:
        """The assistant message for the history."""
        message: Message = {"content": self.reply}
        return {**message, "reasoning_content": self.reasoning} if self.reasoning else message


def read_answer(body: str) -> AgentAnswer:
    """Return the answer in the body of a 200; raises ``AgentError`` that names the fault."""
    try:
        text = encodable(json.dumps(json.loads(body), ensure_ascii=False))
    except (ValueError, RecursionError):
        raise _unusable("is not JSON") from None
    try:
        answer = AgentAnswer.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"]))
        reason = fault["msg"][:1].lower() + fault["msg"][1:]
        raise _unusable(f"has {place}: {reason}" if place else "is not a JSON object") from None
    if not answer.done and not answer.says_something:
        raise _unusable("has no reply" if answer.reply is None else "has an empty reply")
    return answer


def _unusable(fault: str) -> AgentError:
    return AgentError(f"the agent's answer {fault}; {EXPECTED}")


def turn_request(rollout: Rollout, addresses: dict[str, str | None], token: str) -> bytes:
    """Return the body that asks for the agent's next reply."""
    heard = rollout.lines[-1] if rollout.lines else None
    return _encoded(
        rollout,
        "turn",
        system_prompt=rollout.system_prompt,
        messages=rollout.messages,
        message=heard.text if heard is not None and heard.speaker == "user" else "",
        tools=rollout.tools,
        door={**addresses, "token": token},
    )


def closed_request(rollout: Rollout) -> bytes:
    """Return the body that says that a rollout is over."""
    return _encoded(rollout, "closed", stop_reason=rollout.stop_reason)


def _encoded(rollout: Rollout, event: str, **fields: Any) -> bytes:
    identity = {name: getattr(rollout, name) for name in ("id", "row_id", "index", "seed")}
    identity["turn"] = rollout.turns
    body = {"protocol": PROTOCOL, "event": event, "rollout": identity, **fields}
    # Escaped to ASCII, so that text which is not valid Unicode can be sent as well.
    return json.dumps(body, default=str).encode("ascii")
