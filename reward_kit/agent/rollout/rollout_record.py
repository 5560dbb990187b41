"""The trajectory of one rollout as it is stored, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from reward_kit.agent.base.encoding import json_text
from reward_kit.agent.base.history import History, Line
from reward_kit.agent.base.redaction import HIDDEN
from reward_kit.agent.base.text import html_table, text_of
from reward_kit.agent.base.types import Message, ModelCall, ToolCall, Usage, Violations, judge_call
from reward_kit.agent.rollout.outcome import Attempt
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import TypeAdapter

    from reward_kit.agent.database import ReadOnlyAsyncDatabase, ReadOnlyDatabase
    from reward_kit.agent.database.database import Mode
    from reward_kit.agent.rollout.outcome import RolloutOutcome
    from reward_kit.agent.rows.task_row import Action, TaskRow
    from reward_kit.agent.store.loading import Kind, StoredRollout

FORMAT: Final = "reward-kit.rollout/1"


@dataclass(kw_only=True)
class RolloutRecord(Attempt):
    """Everything that is known of a rollout that is over; its fields are the JSON object that is stored.

    A record has the same attributes as a live rollout (``messages``, ``tool_calls``, ``row``, ``gold`` ...),
    so that a reward takes either. ``models`` are named by role; a model of a person's own agent or user only
    if it was asked. ``fields`` is the row as the reward got it, ``result`` what the reward returned.
    ``database`` says how the final state is kept: the name of a complete file, ``delta`` in the evaluation's
    file, or None; ``gold_database`` the same of the state after the gold actions. ``base`` is the key of the
    seed. ``failure`` is a ``Failure`` as JSON; ``user_faults`` are those of the simulated user, None without
    one. ``sent_back`` are lines of its model that ``--guard-user`` did not let it say, by turn.
    ``offered_tools`` are the names of the tools that the agent chose to show its model, None for those
    of the bundle. ``violations`` are the rows that each rule of the bundle has returned, None without rules.
    ``redacted``: a secret was replaced in it when it was stored.
    ``source`` is the file or the place in an evaluation that it was read from; only the latter has its
    databases.
    """

    redacted: bool = False  # before all fields of foreign JSON, see ``Store.add``
    eval_id: str
    agent: str
    user: str
    models: dict[str, str]
    fields: dict[str, Any]
    result: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    base: str
    database: str | None = None
    gold_database: str | None = None
    usage: dict[str, Usage] = field(default_factory=dict)
    messages: list[Message]
    tool_calls: list[ToolCall] = field(default_factory=list)
    model_calls: list[ModelCall] = field(default_factory=list)
    user_faults: list[dict[str, Any]] | None = None
    sent_back: dict[int, str] = field(default_factory=dict)
    offered_tools: list[str] | None = None
    violations: Violations | None = None
    format: Literal["reward-kit.rollout/1"] = FORMAT

    def __post_init__(self) -> None:
        self.source: Path | StoredRollout | None = None
        self._opened: ExitStack | None = None

    def _repr_html_(self) -> str:
        """The conversation, for notebooks."""
        rows = [
            (line["role"], text_of(line.get("content")) or json_text(line.get("tool_calls", "")))
            for line in self.messages
        ]
        return html_table(f"{self.row_id} #{self.index + 1}: reward {self.reward}", ("", "message"), rows)

    @property
    def stored(self) -> StoredRollout | None:
        """The place in an evaluation that it was read from."""
        return None if self.source is None or isinstance(self.source, Path) else self.source

    @property
    def path(self) -> Path | None:
        """The file, or the address ``NAME.db/ID``, that it was read from."""
        source = self.source
        return source if source is None or isinstance(source, Path) else source.address

    @property
    def row(self) -> TaskRow:
        """The row; its ``file:`` references are already replaced by the texts."""
        from reward_kit.agent.rows.task_row import TaskRow

        return TaskRow.from_json(self.fields)

    @property
    def gold(self) -> list[Action]:
        return list(self.row.actions or ())

    @cached_property
    def lines(self) -> list[Line]:
        """The spoken lines of agent and user, in order."""
        return History(self.messages).lines

    @property
    def opening(self) -> int:
        """The number of messages that were there at the start."""
        return len(self.fields.get("initial_messages") or ()) + ("system_prompt" in self.fields)

    @property
    def outputs(self) -> list[str]:
        return list(self.fields.get("outputs") or ())

    @property
    def metric_scores(self) -> dict[str, float] | None:
        """The score of each of the reward's metrics; None for none."""
        scores = {}
        for name, metric in ((self.result or {}).get("metrics") or {}).items():
            score = metric.get("score") if isinstance(metric, Mapping) else metric
            if isinstance(score, int | float) and math.isfinite(score):
                scores[name] = float(score)
        return scores or None

    @property
    def waited(self) -> float:
        """Seconds for which limits held back its model calls."""
        return sum(call.waited for call in self.model_calls)

    def reward_arguments(self, *, is_async: bool = False, mode: Mode = "overlay") -> dict[str, Any]:
        """The arguments that the reward got: ``evaluate(**load_rollout(name).reward_arguments())``.

        ``db`` and ``gold_db`` are read-only views of the stored states (the async ones with ``is_async``, for
        an ``async def`` reward), with the clock of the row; ``close()`` closes them. ``mode`` is that of
        the bundle's registry: rewards that need a ``db.path`` have "file". Raises ``StorageError`` if the
        final state was not kept.
        """
        db = self._view("final", is_async=is_async, mode=mode)
        if db is None:
            raise StorageError(
                "the final database was not kept",
                place=f"{self.eval_id} {self.row_id}#{self.index + 1}",
                remedy="Run with --keep-db full or delta.",
            )
        return {
            **self.fields,
            "messages": self.messages,
            "db": db,
            "gold_db": self._view("gold", is_async=is_async, mode=mode),
            "rollout": self,
        }

    def count_usage(self, usage: Usage, *, model: str, seconds: float = 0.0, **_: Any) -> None:
        """Count a model call of a reward; ``TypeError`` for a number below 0, not finite or above 2**53."""
        self.model_calls.append(judge_call(self, usage, model, seconds))

    def close(self) -> None:
        """Close the databases that ``reward_arguments`` opened."""
        if self._opened is not None:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _view(
        self, kind: Kind, *, is_async: bool, mode: Mode
    ) -> ReadOnlyDatabase | ReadOnlyAsyncDatabase | None:
        if self.stored is None:
            raise StorageError(
                "the record was read from a file that has no databases",
                place=str(self.path),
                remedy="Load it from its evaluation: load_rollout('EVALUATION ROW#1').",
            )
        opened = self._opened = self._opened or ExitStack()
        stored = self.stored.open(kind, mode, opened)
        if stored is None:
            return None
        database = opened.enter_context(stored.fork(seed=self.seed, now=self.row.clock()))
        return database.read_only_async() if is_async else database.read_only()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain: dict[str, Any] = _adapter().dump_python(self, mode="json", warnings=False)
        return plain

    def encoded(self) -> str:
        """The JSON object that is stored, as text."""
        return json_text(self)


def redacted_warning(records: Iterable[RolloutRecord | RolloutOutcome]) -> str:
    """The warning that these rollouts are stored without secrets."""
    places = [f"{row} #{index + 1}" for row, index in sorted((one.row_id, one.index) for one in records)]
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return f"{', '.join(places[:3])}{more}: stored with {HIDDEN} in place of secrets; results may differ"


@cache
def _adapter() -> TypeAdapter[RolloutRecord]:
    from pydantic import TypeAdapter

    return TypeAdapter(RolloutRecord)


def read_record(text: str, source: Path | StoredRollout) -> RolloutRecord:
    """The inverse of ``RolloutRecord.encoded``; raises ``StorageError`` for anything else."""
    from pydantic import ValidationError

    try:
        record = _adapter().validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = "".join(f"{part}: " for part in first["loc"])
        fault = "not JSON" if first["type"] == "json_invalid" else "a damaged record of a rollout, or none"
        raise StorageError(f"is {fault}: {place}{first['msg']}", place=str(source)) from error
    record.source = source
    return record
