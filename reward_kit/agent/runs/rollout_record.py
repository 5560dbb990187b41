"""The trajectory of one rollout as it lies on disk: ``roll_<id>.json``, and back."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.calls import ModelCall, ToolCall
from reward_kit.agent.completion import LATEST, Message, Usage, check_number
from reward_kit.agent.cut_text import cut
from reward_kit.agent.history import History, Line
from reward_kit.agent.runs.atomic_file import compact_json
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from reward_kit.agent.bundles.task_row import Action, TaskRow
    from reward_kit.agent.database import Database
    from reward_kit.agent.database.content import Mode

FORMAT = "reward-kit.rollout/1"


@dataclass(slots=True)
class RolloutRecord:
    """Everything that is known of a rollout that is over.

    It answers to the names of a live ``Rollout`` (``messages``, ``tool_calls``, ``row``, ``gold`` ...), so
    that a reward takes either. ``models`` are named by role; of a person's own agent or user only one that it
    asked. ``fields`` is the row as the reward got it, ``result`` what the reward returned, ``database`` the
    name of the file with the final state (None: not kept), ``gold_database`` the same for the state after the
    gold actions. ``base`` is the key of the seed. ``started`` is in Unix seconds. ``failure`` is a
    ``Failure`` as JSON; ``user_faults`` are those of the simulated user, None where there was none.
    ``offered_tools`` are the names of the tools that the agent chose to show its model, None where they were
    those of the bundle. ``path`` is where the record was read from.
    """

    id: str
    row_id: str
    index: int
    attempt: int
    seed: int
    eval_id: str
    agent: str
    user: str
    models: dict[str, str]
    fields: dict[str, Any]
    messages: list[Message]
    tool_calls: list[ToolCall]
    model_calls: list[ModelCall]
    usage: dict[str, Usage]
    steps: int
    turns: int
    stop_reason: str
    stop_detail: str | None
    reward: float | None
    result: dict[str, Any] | None
    error: str | None
    failure: dict[str, Any] | None
    started: float
    seconds: float
    base: str
    database: str | None
    gold_database: str | None
    user_faults: list[dict[str, Any]] | None = None
    offered_tools: list[str] | None = None
    format: str = FORMAT
    path: Path | None = None
    _opened: list[Database] = field(default_factory=list, repr=False)

    @property
    def row(self) -> TaskRow:
        """The row; its ``file:`` references are already replaced by the texts."""
        from reward_kit.agent.bundles.task_row import TaskRow

        return TaskRow.model_validate(self.fields)

    @property
    def gold(self) -> list[Action]:
        return list(self.row.actions or ())

    @property
    def lines(self) -> list[Line]:
        """What agent and user have said aloud, in order."""
        return History(self.messages).lines

    @property
    def outputs(self) -> list[str]:
        return list(self.fields.get("outputs") or ())

    @property
    def metric_scores(self) -> dict[str, float] | None:
        """The score of each of the reward's metrics; None for none."""
        scores = {
            name: metric.get("score") if isinstance(metric, Mapping) else metric
            for name, metric in ((self.result or {}).get("metrics") or {}).items()
        }
        finite = {
            name: float(score)
            for name, score in scores.items()
            if isinstance(score, int | float) and math.isfinite(score)
        }
        return finite or None

    @property
    def waited(self) -> float:
        """Seconds for which limits held back its model calls."""
        return sum(call.waited for call in self.model_calls)

    def reward_arguments(self, *, is_async: bool = False, mode: Mode = "overlay") -> dict[str, Any]:
        """The arguments that the reward got: ``evaluate(**load_rollout(path).reward_arguments())`` judges
        anew.

        ``db`` and ``gold_db`` are read-only views of the stored states (the async ones with ``is_async``, for
        an ``async def`` reward), with the clock of the row; ``close()`` closes them. ``mode`` is that of
        the bundle's registry: rewards that need a ``db.path`` have "file". Raises ``StorageError`` if the
        final state was not kept.
        """
        if self.database is None:
            raise StorageError(
                "the final database was not kept",
                place=str(self.path),
                remedy="Run with --keep-db full or delta.",
            )
        view = partial(self._view, is_async=is_async, mode=mode)
        return {
            **self.fields,
            "messages": self.messages,
            "db": view(self.database),
            "gold_db": view(self.gold_database) if self.gold_database else None,
            "rollout": self,
        }

    def count_usage(self, usage: Usage, **_: Any) -> None:
        """For rewards that count their model calls; a record stays as it is."""

    def close(self) -> None:
        """Close the databases that ``reward_arguments`` opened."""
        while self._opened:
            self._opened.pop().close()

    def __enter__(self) -> RolloutRecord:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _view(self, name: str, *, is_async: bool, mode: Mode) -> Any:
        from reward_kit.agent.database import Database

        if self.path is None:
            raise StorageError("the record was not read from a file, so there is no database beside it")
        path = self.path.parent / name
        if not path.exists():
            raise StorageError("the database of this rollout is missing", place=str(path))
        stored = Database.open(path, mode=mode)
        self._opened.append(stored)
        database = stored.fork(seed=self.seed, now=self.row.clock())
        self._opened.append(database)
        return database.read_only_async() if is_async else database.read_only()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, the small and telling fields first."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        plain["usage"] = {role: as_json(usage) for role, usage in self.usage.items()}
        plain["messages"] = self.messages
        plain["tool_calls"] = [as_json(call) for call in self.tool_calls]
        plain["model_calls"] = [{**as_json(call), "usage": as_json(call.usage)} for call in self.model_calls]
        return plain

    def encoded(self) -> bytes:
        """The same as the bytes of a file: the encoder itself takes the calls apart, which is quicker."""
        return compact_json({name: getattr(self, name) for name in (*_PLAIN, *_LISTS)})


_LISTS = ("usage", "messages", "tool_calls", "model_calls")
_PLAIN = (
    "format",
    *(item.name for item in fields(RolloutRecord) if item.name not in (*_LISTS, "format", "path", "_opened")),
)

_LATER = frozenset({"user_faults", "offered_tools"})


def as_json(value: Any) -> dict[str, Any]:
    """The fields of a dataclass with slots and more than one of them.

    Unlike with ``dataclasses.asdict`` nothing is copied.
    """
    return dict(zip(value.__slots__, _values(value.__class__)(value), strict=True))


@cache
def _values(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    return attrgetter(*kind.__slots__)


def load_rollout(path: str | Path) -> RolloutRecord:
    """Read a rollout's JSON file; raises ``StorageError`` if it is missing or is none, ``UsageError`` for
    what is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise UsageError(
            f"a rollout is read from its file, not from {cut(repr(path), 80)}",
            remedy="Give the path of its roll_ID.json: result.folder / outcome.file.",
        )
    path = Path(path)
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StorageError("there is no such rollout file", place=str(path)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(f"cannot be read: {error}", place=str(path)) from error
    if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
        raise StorageError(f"is not the record of a rollout (format {FORMAT})", place=str(path))
    return record_from_json(plain, path=path)


def record_from_json(plain: Mapping[str, Any], *, path: Path | None = None) -> RolloutRecord:
    """The inverse of ``RolloutRecord.to_json``; raises ``StorageError`` if fields are missing.

    Records of before ``_LATER`` fields were written are read as well.
    """
    try:
        record = RolloutRecord(
            **{name: plain[name] for name in _PLAIN if name in plain or name not in _LATER},
            usage={role: Usage(**usage) for role, usage in plain["usage"].items()},
            messages=plain["messages"],
            tool_calls=[ToolCall(**call) for call in plain["tool_calls"]],
            model_calls=[
                ModelCall(**{**call, "usage": Usage(**call["usage"])}) for call in plain["model_calls"]
            ],
            path=path,
        )
        _check_numbers(record)
    except (KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"is an incomplete record of a rollout: {error!r}", place=str(path)) from error
    return record


def _check_numbers(record: RolloutRecord) -> None:
    """Raise ``TypeError`` for what no rollout has, so that those who show it need not end with it."""
    if record.reward is not None and not -sys.float_info.max <= record.reward <= sys.float_info.max:
        raise TypeError("reward is not finite")
    for usage in (*record.usage.values(), *(call.usage for call in record.model_calls)):
        usage.check()
    timed: tuple[Any, ...] = (record, *record.tool_calls, *record.model_calls)
    for one in timed:
        check_number("started", one.started, LATEST)
        check_number("seconds", one.seconds)
