"""``Trace``: the data of one attempt at a row, from its first message to the disk and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, NotRequired

from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

from reward_kit.agent.base.encoding import adapter_of, json_text
from reward_kit.agent.base.files import Closing
from reward_kit.agent.base.history import History, Line
from reward_kit.agent.base.places import shown_line
from reward_kit.agent.base.redaction import HIDDEN
from reward_kit.agent.base.text import count, html_table, text_of
from reward_kit.agent.base.types import Message, ModelCall, Side, ToolCall, Usage, Violations, judge_call
from reward_kit.agent.rewards.checks import missing_outputs, said_to_user
from reward_kit.agent.rollout.outcome import Outcome, Scored
from reward_kit.agent.rows.field_checks import split_opening
from reward_kit.agent.rows.task_row import TaskRow
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reward_kit.agent.database import ReadOnlyAsyncDatabase, ReadOnlyDatabase
    from reward_kit.agent.database.database import Mode
    from reward_kit.agent.rows.task_row import Action
    from reward_kit.agent.store.loading import Kind, StoredRollout

FORMAT = "reward-kit.rollout/1"
"""The format of a trace that is exported to a file."""


class Fork(TypedDict):
    """A change of the seed: messages, tool calls and random numbers before it, and the seed of these."""

    messages: int
    calls: int
    seed: int
    draws: NotRequired[int]


@dataclass(kw_only=True)
class Trace(Scored, Closing):
    """One attempt at a row: filled while it is played, shown to the reward, stored, and read back.

    Its fields are the JSON object that is stored; the row's own lie once in the evaluation. ``index`` counts
    the rollouts of the row from 0, ``attempt`` the tries at this one. ``models`` are named by role; a model
    of a person's own agent or user only if it was asked. ``stop_reason`` is None until the rollout is over.
    ``reward`` is None if nothing could be judged: ``stop_reason`` says why, or ``error`` if the reward itself
    failed; ``result`` is what the reward returned. ``started`` is in Unix seconds. ``failure`` is a
    ``Failure`` as JSON; ``user_faults`` are those of the simulated user, None without one. ``tool_faults``
    are the tools that raised something other than ``ToolError``, or broke or held up what others need, each
    a ``ToolFault``.
    ``user_messages`` are those between the user and the user's own tools, which the agent does not see, by
    the number of ``messages`` before them.
    ``sent_back`` are lines of the user's model that ``--guard-user`` did not let it say, by turn.
    ``offered_tools`` are the names of the tools that the agent chose to show its model, None for those of the
    bundle. ``forks`` are the places at which it has left others, with another seed from there on.
    ``violations`` are the rows that each rule of the bundle has returned, None without rules.
    ``given_verdicts`` are those of a judge in a results file that was replayed, by sentence.
    ``redacted``: a secret was replaced in it when it was stored.
    """

    redacted: bool = False  # before all fields of foreign JSON, see ``Store.add``
    id: str
    row_id: str
    index: int = 0
    attempt: int = 0
    seed: int = 0
    eval_id: str = ""
    agent: str = ""
    user: str = ""
    models: dict[str, str] = field(default_factory=dict)
    messages: list[Message]
    user_messages: dict[int, list[Message]] = field(default_factory=dict)
    tool_calls: list[ToolCall] = field(default_factory=list)
    model_calls: list[ModelCall] = field(default_factory=list)
    usage: dict[str, Usage] = field(default_factory=dict)
    steps: int = 0
    turns: int = 0
    stop_reason: str | None = None
    stop_detail: str | None = None
    started: float = 0.0
    seconds: float = 0.0
    reward: float | None = None
    result: dict[str, Any] | None = None
    error: str | None = None
    violations: Violations | None = None
    failure: dict[str, Any] | None = None
    user_faults: list[dict[str, Any]] | None = None
    tool_faults: dict[str, Any] | None = None
    sent_back: dict[int, str] = field(default_factory=dict)
    offered_tools: list[str] | None = None
    forks: list[Fork] = field(default_factory=list)
    given_verdicts: dict[str, bool] | None = None

    def __post_init__(self) -> None:
        self.source: Path | StoredRollout | None = None
        """The file or the place in an evaluation that it was read from; only the latter has its databases."""
        self.given: TaskRow | str = "{}"
        """The row, or its fields as JSON text."""
        self._opened: ExitStack | None = None

    def __repr__(self) -> str:
        name = f"{self.eval_id} {self.row_id}#{self.index + 1}".strip()
        return f"<Trace {name}: {self.verdict}, {count(len(self.messages), 'message')}>"

    def _repr_html_(self) -> str:
        """The conversation, for notebooks."""
        rows = [
            (line["role"], text_of(line.get("content")) or json_text(line.get("tool_calls", "")))
            for line in self.messages
        ]
        return html_table(f"{self.row_id} #{self.index + 1}: reward {self.reward}", ("", "message"), rows)

    # --- the row

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The row as the reward gets it."""
        found: dict[str, Any] = (
            json.loads(self.given) if isinstance(self.given, str) else self.given.reward_fields()
        )
        return found

    @cached_property
    def row(self) -> TaskRow:
        """The row; its ``file:`` references are already replaced by the texts."""
        return TaskRow.from_json(self.fields) if isinstance(self.given, str) else self.given

    @property
    def gold(self) -> list[Action]:
        return list(self.row.actions or ())

    @property
    def outputs(self) -> list[str]:
        return list(self.row.outputs or ())

    @property
    def opening(self) -> int:
        """The number of messages that were there at the start."""
        seen, _ = split_opening(self.fields.get("initial_messages") or ())
        return len(seen) + ("system_prompt" in self.fields)

    # --- what follows from the rest

    def both_sides(self) -> Iterator[tuple[int, Side, Message]]:
        """The messages with their positions; the user's calls are where the line after them is."""
        for place in range(len(self.messages) + 1):
            yield from ((place, "user", own) for own in self.user_messages.get(place, ()))
            yield from ((place, "agent", one) for one in self.messages[place : place + 1])

    @cached_property
    def lines(self) -> list[Line]:
        """The spoken lines of agent and user, in order."""
        return History(self.messages).lines

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

    def outcome(
        self, *, base: str = "", database: str | None = None, scored_at: float | None = None
    ) -> Outcome:
        """The row of the table ``rollouts``.

        ``base`` is the key of the seed, ``database`` the complete final database relative to the runs folder.
        """
        success_turn = None
        if self.success:
            changed = (call.turn for call in self.tool_calls if call.changes)
            success_turn = turn_of_success(self.messages, self.opening, changed, self.row.scored_outputs)
        failure = self.failure or {}
        answered = [call for call in self.model_calls if call.error is None]
        return Outcome(
            **{name: getattr(self, name) for name in _SHARED},
            failure=failure.get("kind"),
            failure_detail=failure.get("detail"),
            failure_step=failure.get("step"),
            turn_of_success=success_turn,
            model_seconds=sum(call.seconds for call in answered),
            waited_seconds=self.waited,
            timed_calls=sum(call.usage.calls for call in answered if call.seconds),
            user_faults=None if self.user_faults is None else [fault["kind"] for fault in self.user_faults],
            metrics=self.metric_scores,
            file=f"evals/{self.eval_id}.db/{self.id}",
            base=base,
            database=database,
            scored_at=scored_at,
        )

    # --- for rewards

    def for_reward(self) -> RewardView:
        """The trace as its reward sees it: parts that it could change are copied on first access."""
        return RewardView(self)

    def note_tool_fault(self, tool: str, fault: str) -> None:
        """Count a call of a tool that raised; the first fault is kept."""
        if self.tool_faults is None:
            self.tool_faults = {}
        self.tool_faults.setdefault(tool, {"calls": 0, "first": shown_line(fault)})["calls"] += 1

    def reward_arguments(
        self, *, is_async: bool = False, mode: Mode = "overlay", hidden: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """The arguments that the reward got: ``evaluate(**load_rollout(name).reward_arguments())``.

        ``db`` and ``gold_db`` are read-only views of the stored states (the async ones with ``is_async``, for
        an ``async def`` reward), with the clock of the row; ``close()`` closes them. ``mode`` is that of the
        bundle's registry: rewards that need a ``db.path`` have "file"; ``hidden`` are its tables that are not
        compared. Raises ``StorageError`` if the final state was not kept. What a reward does with a
        ``gold_db`` that is not known, because a gold action cannot be made, raises ``RewardError``.
        """
        db = self._view("final", is_async=is_async, mode=mode, hidden=hidden)
        if db is None:
            place = f"{self.eval_id} {self.row_id}#{self.index + 1}"
            remedy = "Run with --keep-db full or delta."
            raise StorageError("the final database was not kept", place=place, remedy=remedy)
        return {
            **self.fields,
            "messages": self.messages,
            "db": db,
            "gold_db": self._view("gold", is_async=is_async, mode=mode, hidden=hidden),
            "rollout": self,
        }

    def count_usage(self, usage: Usage, *, model: str, seconds: float = 0.0, **_: Any) -> None:
        """Count a model call of a reward; ``TypeError`` for a number below 0, not finite or above 2**53."""
        self.model_calls.append(judge_call(self, usage, model, seconds))

    # --- stored

    @property
    def stored(self) -> StoredRollout | None:
        """The place in an evaluation that it was read from."""
        return None if self.source is None or isinstance(self.source, Path) else self.source

    @property
    def path(self) -> Path | None:
        """The file, or the address ``NAME.db/ID``, that it was read from."""
        source = self.source
        return source if source is None or isinstance(source, Path) else source.address

    def encoded(self) -> str:
        """The JSON object that is stored, as text."""
        try:  # by the types of the fields in half of the time
            return adapter_of(Trace).dump_json(self, warnings=False).decode()
        except ValueError:  # a value that is not of its type
            return json_text(self)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, with the ``fields`` of the row: the content of an exported file."""
        return {"format": FORMAT, **json.loads(self.encoded()), "fields": self.fields}

    def close(self) -> None:
        """Close the databases that ``reward_arguments`` opened."""
        if self._opened is not None:
            self._opened.close()

    def _view(
        self, kind: Kind, *, is_async: bool, mode: Mode, hidden: tuple[str, ...]
    ) -> ReadOnlyDatabase | ReadOnlyAsyncDatabase | None:
        if self.stored is None:
            fault = "the trace was read from a file that has no databases"
            remedy = "Load it from its evaluation: load_rollout('EVALUATION ROW#1')."
            raise StorageError(fault, place=str(self.path), remedy=remedy)
        if kind == "gold" and (cause := self.stored.gold_fault) is not None:
            from reward_kit.agent.rollout.judge import UnknownDatabase

            return UnknownDatabase(cause)
        opened = self._opened = self._opened or ExitStack()
        if (stored := self.stored.open(kind, mode, opened)) is None:
            return None
        database = opened.enter_context(stored.fork(seed=self.seed, now=self.row.clock(), hidden=hidden))
        return database.read_only_async() if is_async else database.read_only()


RolloutRecord = Trace  # its older name
_SHARED = {one.name for one in fields(Outcome)} & {one.name for one in fields(Trace)} - {
    "failure",
    "user_faults",
}
"""The fields that both have, with the same values."""


class RewardView:
    """A trace with copies of all parts that its reward could change, made on first access."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._counted: list[ModelCall] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(self._trace, name) or callable(getattr(self._trace, name)):
            raise AttributeError(f"a rollout has no attribute {name!r} for its reward")
        value = self.__dict__[name] = deepcopy(getattr(self._trace, name))
        return value

    def count_usage(self, usage: Usage, *, model: str, seconds: float = 0.0, **_: Any) -> None:
        """Count a model call of the reward's: its tokens and cost, as those of the role ``judge``.

        Raises ``TypeError`` for numbers that are negative, not finite or too large.
        """
        self._counted.append(judge_call(self, usage, model, seconds))

    def complete(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: agent and user are not asked any more."""
        raise TypeError(
            "a reward asks models with a client of its own, and counts that with rollout.count_usage()"
        )

    def counted(self) -> list[ModelCall]:
        """The model calls that the reward has counted, each once."""
        counted, self._counted = self._counted, []
        return counted


def turn_of_success(
    messages: Sequence[Message], opening: int, changed_in_turns: Iterable[int], outputs: Sequence[str]
) -> int:
    """The turn (from 1) in which a successful rollout had done everything that counts.

    The last turn in which a tool call changed rows, or the first by which all ``outputs`` had been said,
    whichever is later; 1 if nothing had to be done or said. ``opening`` is the number of messages that the
    rollout began with.
    """
    turn = max(changed_in_turns, default=1)
    if not outputs:
        return turn
    said = said_to_user(messages[opening:])
    anywhere = bool(missing_outputs(outputs, said))  # the reward has found them so
    needed = next(
        (n for n in range(1, len(said)) if not missing_outputs(outputs, said[:n], anywhere=anywhere)),
        len(said),
    )
    return max(turn, needed)


def redacted_warning(traces: Iterable[Trace | Outcome]) -> str:
    """The warning that these rollouts are stored without secrets."""
    places = [f"{row} #{index + 1}" for row, index in sorted((one.row_id, one.index) for one in traces)]
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return f"{', '.join(places[:3])}{more}: stored with {HIDDEN} in place of secrets; results may differ"


def read_trace(text: str, source: Path | StoredRollout) -> Trace:
    """The inverse of ``Trace.encoded``, without the fields of its row.

    Raises ``StorageError`` for anything else.
    """
    try:
        trace: Trace = adapter_of(Trace).validator.validate_json(
            text
        )  # the adapter's own method only calls it
    except ValueError as error:
        from pydantic import ValidationError  # which costs at each call

        if not isinstance(error, ValidationError):
            raise
        first = error.errors(include_url=False, include_input=False)[0]
        place = "".join(f"{part}: " for part in first["loc"])
        fault = "not JSON" if first["type"] == "json_invalid" else "a damaged trace of a rollout, or none"
        raise StorageError(f"is {fault}: {place}{first['msg']}", place=str(source)) from error
    trace.source = source
    return trace
