"""Read a tau-bench results file: a JSON list of ``{task_id, reward, info, traj, trial}``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from reward_kit.agent.base.text import cut
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Message

_AGENT_ERROR = re.compile(
    r"^(?:json\.decoder\.JSONDecodeError|JSONDecodeError|AssertionError|KeyError: 'content')"
)
"""Exceptions that tau-bench's own agents raise for an unusable model answer."""


class _Open(BaseModel):
    """Base of the objects of a message, which keep their further fields."""

    model_config = ConfigDict(extra="allow")


class _Function(_Open):
    name: str
    arguments: str | dict[str, Any] | None = None


class _Call(_Open):
    function: _Function


class _Message(_Open):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Any] | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None


class _Info(BaseModel):
    task: dict[str, Any] | None = None
    error: Any = None
    traceback: Any = None
    reward_info: Any = None


class Trial(BaseModel):
    """One entry of the file; only ``task_id`` and ``reward`` are required."""

    task_id: NonNegativeInt
    trial: NonNegativeInt = 0
    reward: float = Field(allow_inf_nan=False)
    info: _Info = _Info()
    traj: list[_Message] = []

    @field_validator("info", "traj", mode="before")
    @classmethod
    def _default_for_null(cls, value: Any, info: Any) -> Any:
        return value if value is not None else cls.model_fields[info.field_name].default

    @property
    def messages(self) -> list[Message]:
        """The trajectory as it stands in the file."""
        return [message.model_dump(exclude_unset=True) for message in self.traj]

    @property
    def task(self) -> dict[str, Any] | None:
        """The task as the file describes it (``info.task``)."""
        return self.info.task or None

    @property
    def error(self) -> str | None:
        """The exception that ended the trial, if one did."""
        return None if self.info.error is None else str(self.info.error) or "an error without a text"

    @property
    def is_agents_fault(self) -> bool:
        """Whether an unusable answer of the agent's model caused the error."""
        text = self.info.traceback
        lines = text.strip().splitlines() if isinstance(text, str) else []
        return bool(lines and _AGENT_ERROR.match(lines[-1]))

    @property
    def judged(self) -> bool:
        """Whether tau-bench computed a reward, which it does not after the last step."""
        return bool(self.info.reward_info)


_trials = TypeAdapter(list[Trial])


def read_results(path: str | Path) -> list[Trial]:
    """Read the entries of a results file, in its order.

    Raises ``BundleError`` with the JSON path of the first fault.
    """
    path = Path(path)
    try:
        trials = _trials.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise BundleError("there is no such file", place=str(path)) from None
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror or error}", place=str(path)) from error
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise BundleError(f"is not JSON: {first['msg']}", place=str(path)) from None
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        got = "" if first["type"] == "missing" else f", got {cut(repr(first['input']), 60)}"
        raise BundleError(f"{first['msg']}{got}", place=f"{path}: ${steps}") from None
    if not trials:
        raise BundleError("holds no results", place=str(path))
    return trials
