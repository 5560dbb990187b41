"""Messages and results of reward functions.

``Message`` is one chat message in the OpenAI format. ``EvaluateResult`` (with ``MetricResult`` and
``StepOutput``) and the shorter ``RewardOutput`` are the two forms of a result. All of them can be read like a
dict, so that code written for plain dicts works on them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, KeysView, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, Field, model_validator


class _ChatModel(BaseModel, defer_build=True):
    """Base of the chat types; accepts dicts and objects with ``model_dump``, as in the OpenAI SDK."""

    @model_validator(mode="before")
    @classmethod
    def _from_foreign_object(cls, value: Any) -> Any:
        if isinstance(value, dict) or isinstance(value, cls) or not hasattr(value, "model_dump"):  # noqa: SIM101 - a union or tuple with cls would be built anew for each message
            return value
        return value.model_dump()

    def __getitem__(self, name: str) -> Any:
        if name not in type(self).model_fields and name not in self.model_fields_set:
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        """Return whether the field was given or has a value, as for a dict."""
        return name in self.model_fields_set or (
            name in type(self).model_fields and getattr(self, str(name)) is not None
        )

    def get(self, name: str, default: Any = None) -> Any:
        """Return the field's value, or ``default``."""
        return getattr(self, name) if name in self else default


class FunctionCall(_ChatModel):
    """A function call requested by a model; ``arguments`` is the JSON text it wrote."""

    name: str
    arguments: str


class MessageToolCall(_ChatModel, extra="allow"):
    """One entry of an assistant message's ``tool_calls``."""

    id: str
    type: str = "function"
    function: FunctionCall


class Message(_ChatModel):
    """One chat message; unknown keys are ignored, ``content`` defaults to ``""``."""

    role: str
    content: str | None = ""
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    function_call: FunctionCall | None = None

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Make a message from a dict or another object. Raises ``ValueError`` without a role."""
        if isinstance(obj, dict) and "role" not in obj:
            raise ValueError("Role is required")
        return super().model_validate(obj, **options)


class _ReadsLikeDict:
    """Dict-like reading of results by field name, in the order of declaration."""

    older_names: ClassVar[frozenset[str]] = frozenset()
    """Names that fields had in earlier releases: readable by key, not listed."""

    def keys(self) -> KeysView[str]:
        """The names of all fields."""
        return vars(self).keys()

    def values(self) -> list[Any]:
        """The values of all fields; nested results stay objects."""
        return list(vars(self).values())

    def items(self) -> list[tuple[str, Any]]:
        """Name and value of all fields; nested results stay objects."""
        return list(vars(self).items())

    def get(self, name: str, default: Any = None) -> Any:
        """Return the field's value, or ``default``."""
        return getattr(self, name) if name in self else default

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in vars(self) or name in self.older_names

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))


class _ResultModel(_ReadsLikeDict, BaseModel, defer_build=True):  # type: ignore[misc]  # iterates over names, as dicts do, not over pydantic's pairs
    pass


class MetricResult(_ResultModel):
    """One component of a result: a score in [0, 1] and a reason.

    ``success=`` is accepted as the older name of ``is_score_valid`` (``None`` means not said).
    """

    older_names: ClassVar[frozenset[str]] = frozenset({"success"})

    is_score_valid: bool = True
    score: float = Field(ge=0.0, le=1.0)
    reason: str

    @model_validator(mode="before")
    @classmethod
    def _from_older_form(cls, value: Any) -> Any:
        if isinstance(value, MetricRewardOutput):
            return {**value.to_dict(), "reason": value.reason or ""}
        if isinstance(value, dict) and value.get("success") is not None:
            return {"is_score_valid": value["success"], **value}
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"score": value, "reason": ""}
        return value

    @property
    def success(self) -> bool:
        """The older name of ``is_score_valid``."""
        return self.is_score_valid


class StepOutput(BaseModel, defer_build=True):
    """The reward of one step of a rollout, for reinforcement learning.

    ``step_index`` is the reward function's own index of the step, a number or a name;
    ``reward_kit.rl_processing.RLDataAligner`` matches it to the step's ``assistant_turn_index``.
    """

    step_index: int | str
    base_reward: float
    metrics: dict[str, Any] = Field(default_factory=dict)
    reason: str | None = None


class EvaluateResult(_ResultModel):
    """Result of a reward function for one rollout.

    ``score`` is usually in [0, 1] but need not be; ``error`` is the reason if judging failed.
    """

    score: float
    is_score_valid: bool = True
    reason: str | None = None
    metrics: dict[str, MetricResult] = Field(default_factory=dict)
    step_outputs: list[StepOutput] | None = None
    error: str | None = None

    def to_reward_output(self) -> RewardOutput:
        """The same score, reason and metrics as a ``RewardOutput``."""
        metrics = {name: _metric(name, metric) for name, metric in self.metrics.items()}
        return RewardOutput(score=self.score, reason=self.reason, metrics=metrics)


class _OutputRecord(_ReadsLikeDict):
    """Base of the short result types: dataclasses with JSON conversion."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """The output as plain JSON types."""
        raise NotImplementedError

    def to_json(self, **options: Any) -> str:
        """The output as JSON text; ``options`` go to ``json.dumps``."""
        return json.dumps(self.to_dict(), **options)

    def __str__(self) -> str:
        return self.to_json(indent=2)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The output that ``to_dict`` described; unknown keys are ignored.

        Raises ``ValueError`` if the score is missing.
        """
        if "score" not in data:
            raise ValueError(f"{cls.__name__}: 'score' is missing")
        return cls(**{name: value for name, value in data.items() if name in cls.__dataclass_fields__})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The output that ``to_json`` wrote."""
        return cls.from_dict(json.loads(text))


@dataclass
class MetricRewardOutput(_OutputRecord):
    """One component of a ``RewardOutput``; ``score`` is any number."""

    score: float
    reason: str | None = None
    is_score_valid: bool = True

    def __post_init__(self) -> None:
        self.score = _number(self.score)

    def to_dict(self) -> dict[str, Any]:
        """``{"score", "reason"}``, and ``"is_score_valid"`` if it is false."""
        record: dict[str, Any] = {"score": self.score, "reason": self.reason}
        return record if self.is_score_valid else {**record, "is_score_valid": False}


@dataclass
class RewardOutput(_OutputRecord):
    """The short form of a result, for reward functions that only score.

    Each metric may be given as a dict (``{"score": 1.0, "reason": "paid"}``), a number, a ``MetricResult`` or
    a ``MetricRewardOutput``. Raises ``ValueError`` if the score is not a number.
    """

    score: float
    metrics: dict[str, MetricRewardOutput] = field(default_factory=dict)
    reason: str | None = None

    if TYPE_CHECKING:  # what is given need not be of the fields' types

        def __init__(self, score: float, metrics: Mapping[str, Any] = ..., reason: str | None = ...): ...

    def __post_init__(self) -> None:
        self.score = _number(self.score)
        self.metrics = {name: _metric(name, value) for name, value in (self.metrics or {}).items()}

    def to_dict(self) -> dict[str, Any]:
        """``{"score", "reason", "metrics": {name: {"score", "reason"}}}``."""
        metrics = {name: metric.to_dict() for name, metric in self.metrics.items()}
        return {"score": self.score, "reason": self.reason, "metrics": metrics}

    def to_evaluate_result(self) -> EvaluateResult:
        """The same as an ``EvaluateResult``; raises ``ValueError`` for a metric's score outside [0, 1]."""
        return EvaluateResult.model_validate(dict(self))


def _number(value: Any) -> float:
    with suppress(TypeError):
        if not isinstance(value, str | bytes):
            return float(value)
    raise ValueError(f"a score must be a number, not {value!r}")


def _metric(name: str, value: Any) -> MetricRewardOutput:
    if isinstance(value, MetricRewardOutput):
        return value
    try:
        if isinstance(value, Mapping | MetricResult):
            is_valid = value.get("success") is not False  # the older name
            return MetricRewardOutput.from_dict({"is_score_valid": is_valid, **value})
        return MetricRewardOutput(score=value)
    except ValueError as error:
        raise ValueError(f"metric {name!r}: {error}") from error


class StepData(BaseModel, extra="allow", defer_build=True):
    """One reinforcement-learning step: observation, action and reward; extra fields are kept.

    ``step_info["assistant_turn_index"]`` is the index that a reward function's ``StepOutput`` refers to.
    ``base_reward`` is filled in from there, ``advantage`` and ``return_to_go`` by the training algorithm.
    """

    system_step_index: int
    observation_data: Any
    action_taken: dict[str, Any]
    raw_policy_output: str | None = None
    resulting_messages_history: list[Message]
    policy_logprobs: dict[str, Any] | None = None
    policy_value_estimate: float | None = None
    is_done: bool = False
    step_info: dict[str, Any] = Field(default_factory=dict)
    base_reward: float | None = None
    advantage: float | None = None
    return_to_go: float | None = None
