"""Chosen rollouts of a stored evaluation, read or written one by one."""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, islice
from math import inf
from typing import TYPE_CHECKING, Any, Literal, get_args

from reward_kit.agent.base.encoding import DAMAGED, as_json, json_bytes
from reward_kit.agent.base.files import TO_OUTPUT, as_storage_error, write_output, write_text
from reward_kit.agent.base.history import parse_arguments
from reward_kit.agent.base.text import did_you_mean
from reward_kit.agent.base.types import openai_call
from reward_kit.agent.bundles.task import positions_of
from reward_kit.agent.models.answer_parts import calls_with_tokens, reasoning_of
from reward_kit.agent.rollout.lesson import lesson_of
from reward_kit.agent.rollout.trace import redacted_warning
from reward_kit.agent.store.evaluation_file import reading
from reward_kit.agent.store.layout import Named, load_evaluation
from reward_kit.agent.store.loading import read_rollouts
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.base.types import Message
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.store.results import EvaluationResult

logger = logging.getLogger(__name__)

WRITTEN_AT_ONCE = 64
"""Lines in which secrets are sought together."""
_REDACTED = (
    """SELECT rollout FROM traces WHERE json LIKE '{"redacted":true,%' OR json LIKE '{"redacted": true,%'"""
)
"""It is the first field of a trace."""


@dataclass(frozen=True, slots=True)
class Export:
    """The chosen rollouts of an evaluation; each iteration reads their trajectories anew, one by one.

    ``left_out`` counts the other rollouts that were planned: ``row`` (not one of the rows asked for),
    ``not run``, ``not judged``, ``reward`` (too low or too high). An iteration also leaves out those that
    are ``damaged``, and in the formats for training those in ``unusable``: the agent says and calls nothing
    in them, or the tokens of its model calls were not kept.
    """

    evaluation: EvaluationResult
    outcomes: tuple[Outcome, ...]
    left_out: Mapping[str, int]
    columns: tuple[str, ...]
    layout: Format
    damaged: list[StorageError] = field(default_factory=list)
    unusable: list[Outcome] = field(default_factory=list)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """A dict of the columns for each rollout; in the format ``tokens`` for each model call."""
        self.unusable.clear()
        stored = self.evaluation
        rewards = {row.row_id: row.rewards for row in stored.rows}
        openings: dict[str, int] = {}  # of each row, whose fields are long to read
        for outcome, record in self.records():
            try:
                if self.layout == "tokens":
                    lines = token_lines(stored, outcome, record)
                else:
                    row = outcome.row_id
                    if row not in openings:
                        openings[row] = record.opening
                    line = line_of(stored, outcome, record, rewards[row], openings[row], self.layout)
                    lines = [] if line is None else [line]
            except StorageError as error:
                self._leave_out(error)
                continue
            self.unusable.extend(() if lines else [outcome])
            for line in lines:
                columns: Iterable[str] = self.columns
                if self.layout == "openai":  # which refuses null, and all on tools if there are none
                    known = {name for name in columns if line["tools"] and line[name] is not None}
                    columns = (name for name in columns if name in known | {"messages"})
                yield {name: line[name] for name in columns}

    def records(self) -> Iterator[tuple[Outcome, Trace]]:
        """The rollouts; one that is missing or damaged is noted in ``damaged``, with a warning."""
        found = {outcome.id: outcome for outcome in self.outcomes}
        self.damaged.clear()
        for record in read_rollouts(self.evaluation.log_path, found, self._leave_out):
            assert record.stored is not None, "it was read from the evaluation"
            yield found[record.stored.id], record

    def _leave_out(self, error: StorageError) -> None:
        self.damaged.append(error)
        logger.warning("warning: a rollout is left out: %s", error)

    @property
    def without_tools(self) -> int:
        """The number of rollouts whose tools are not known."""
        return sum(self.evaluation.tools_of(outcome.row_id) is None for outcome in self.outcomes)


def export(
    name: Named,
    output_dir: str | Path = "runs",
    *,
    format: Format = "full",  # noqa: A002 - the name of the command's option
    columns: str | Iterable[str] | None = None,
    min_reward: float | None = None,
    max_reward: float | None = None,
    rows: str | int | Iterable[str | int] | None = None,
    unjudged: bool = False,
) -> Export:
    """The rollouts of the evaluation that ``name`` means (see ``load_evaluation``), row by row.

    ``columns`` and ``rows`` (ids, patterns or positions) are lists, or texts with commas between names.
    Rewards may be as low as ``min_reward`` and as high as ``max_reward``. Rollouts without a reward are left
    out unless ``unjudged``. Raises ``UsageError`` for an unknown evaluation, format or column,
    ``BundleError`` for an unknown row, ``StorageError`` for an evaluation that is damaged.
    """
    if format not in FORMATS:
        raise UsageError(f"there is no format {format!r}", remedy=f"There are: {', '.join(FORMATS)}.")
    known = {"openai": OPENAI_COLUMNS, "tokens": TOKEN_COLUMNS}.get(format, COLUMNS)
    given = columns.split(",") if isinstance(columns, str) else known if columns is None else columns
    chosen = tuple(dict.fromkeys(name.strip() for name in given if name.strip()))
    fault = None if chosen else "no column is named"
    if unknown := [name for name in chosen if name not in known]:
        fault = f"there is no column {unknown[0]!r} in the format {format}{did_you_mean(unknown[0], known)}"
    if fault is not None:
        raise UsageError(fault, remedy=f"There are: {', '.join(known)}.")
    stored = load_evaluation(name, output_dir)
    ids = [row.row_id for row in stored.rows]
    asked = {*ids}
    if rows is not None:
        named = str(rows).split(",") if isinstance(rows, str | int) else rows
        asked = {ids[position] for position in positions_of(ids, named, f"{stored.eval_id}: --rows")}
    low, high = (-inf if min_reward is None else min_reward), (inf if max_reward is None else max_reward)
    if not all(isinstance(bound, int | float) and bound == bound for bound in (low, high)):
        raise UsageError(f"rewards are numbers, not {low!r} and {high!r}", place="min_reward and max_reward")
    outcomes: list[Outcome] = []
    left_out: Counter[str] = Counter()
    for row in stored.rows:
        if row.row_id not in asked:
            left_out["row"] += row.planned
            continue
        left_out["not run"] += row.planned - len(row.outcomes)
        for outcome in row.outcomes:
            if outcome.reward is None and not unjudged:
                left_out["not judged"] += 1
            elif outcome.reward is not None and not low <= outcome.reward <= high:
                left_out["reward"] += 1
            else:
                outcomes.append(outcome)
    with reading(stored.log_path) as connection:
        redacted = {rollout for (rollout,) in connection.execute(_REDACTED)}
    if of_those := [outcome for outcome in outcomes if outcome.id in redacted]:
        logger.warning("warning: %s", redacted_warning(of_those))
    return Export(stored, tuple(outcomes), +left_out, chosen, format)


def write_lines(lines: Iterable[Any], path: Path | None) -> int:
    """Write a line of JSON for each value (to stdout without ``path``), whole or not at all; their number.

    Without any value a file keeps its content.
    """
    number = 0

    from pydantic_core import to_json

    def encoded() -> Iterator[bytes]:
        nonlocal number
        for number, line in enumerate(lines, start=1):  # noqa: B007 - the last one is what is returned
            try:  # without NaN and infinity, which a policy's log probabilities may hold
                yield to_json(line, inf_nan_mode="null") + b"\n"
            except ValueError:  # half of a surrogate pair, or nested deeper than the encoder goes
                yield json_bytes(line) + b"\n"

    parts = encoded()
    groups = iter(lambda: b"".join(islice(parts, WRITTEN_AT_ONCE)), b"")
    if first := next(groups, b""):
        write_output(chain([first], groups), TO_OUTPUT if path is None else path)
    return number


def write_rollouts(found: Export, folder: Path) -> int:
    """Write each rollout to ``folder/roll_ID.json``, for ``load_rollout``; return their number."""
    with as_storage_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for outcome, record in found.records():
        text = json_bytes(record.to_json()) + b"\n"
        write_text(folder / f"roll_{outcome.id}.json", [text], durable=False)
    return len(found.outcomes) - len(found.damaged)


Format = Literal["full", "openai", "trl", "tokens"]
FORMATS: tuple[Format, ...] = get_args(Format)
OPENAI_COLUMNS = ("messages", "tools", "parallel_tool_calls")
"""All that a line of OpenAI's fine-tuning may have (``FineTuneChatRequestInput`` of its OpenAPI document)."""
COLUMNS = (
    *OPENAI_COLUMNS,
    *("reward", "metrics", "reason", "row_rewards"),
    *("row_id", "rollout", "eval_id", "id", "model", "agent", "user", "seed"),
    *("stop_reason", "stop_detail", "error", "failure", "user_faults", "steps", "turns", "opening"),
    *("seconds", "model_seconds", "waited_seconds", "usage", "file"),
)
TOKEN_COLUMNS = (
    *("node_id", "prompt_token_ids", "completion_token_ids", "per_token_logps", "loss_mask"),
    *("request", "response", "metadata"),
)
"""The fields of ``TrainingTurn`` of OpenEnv, which allows no other."""
_OPENAI_KEYS = {
    "assistant": ("role", "content", "name", "refusal", "tool_calls", "weight"),
    "tool": ("role", "content", "tool_call_id"),
}
_OPENAI_OTHERS = ("role", "content", "name")
_TEMPLATE_KEYS = ("tool_calls", "tool_call_id", "name")


def line_of(
    stored: EvaluationResult,
    outcome: Outcome,
    record: Trace,
    row_rewards: Sequence[float],
    opening: int,
    layout: Format,
) -> dict[str, Any] | None:
    """At least ``COLUMNS`` of a rollout; None if it is for training and the agent says and calls nothing.

    Raises ``StorageError`` for a record that is damaged.
    """
    try:
        messages = conversation(record.messages, opening, layout)
    except DAMAGED as error:
        raise StorageError(f"is a damaged trace of a rollout: {error!r}", place=str(record.path)) from error
    if messages is None:
        return None
    return {
        **as_json(outcome),
        "messages": messages,
        "tools": stored.tools_of(outcome.row_id),
        "parallel_tool_calls": stored.parallel_tool_calls(outcome.row_id),
        "reason": (record.result or {}).get("reason"),
        "row_rewards": row_rewards,
        "rollout": outcome.index,
        "eval_id": stored.eval_id,
        "model": record.models.get("agent"),
        "agent": record.agent,
        "user": record.user,
        "opening": opening,
        "usage": {role: as_json(usage) for role, usage in outcome.usage.items()} or None,
    }


def token_lines(stored: EvaluationResult, outcome: Outcome, record: Trace) -> list[dict[str, Any]]:
    """``TOKEN_COLUMNS`` of each model call of the agent; empty unless the tokens of all were kept.

    A request or response is empty if the messages of the rollout do not show it: an agent may send others.
    """
    calls = [call for call in record.model_calls if call.role == "agent" and call.error is None]
    kept = list(calls_with_tokens(calls))
    if len(kept) < len(calls) or any(len(one.logprobs) != len(one.completion) for one, _ in kept):
        return []
    reward, reason = lesson_of(record)
    about = {"eval_id": stored.eval_id, "row_id": outcome.row_id, "rollout": outcome.index}
    lines = []
    for number, (call, (tokens, prompt)) in enumerate(zip(calls, kept, strict=True)):
        after = kept[number + 1][0].sent if number + 1 < len(kept) else len(record.messages)
        request, message = {}, None
        if (sent := tokens.sent) is not None:
            request = {"messages": record.messages[:sent], "tools": stored.tools_of(outcome.row_id) or []}
            message = record.messages[sent] if after is not None and after > sent else None
        choice = {"message": message, "finish_reason": call.finish_reason}
        values = (
            *(f"{outcome.id}/{number}", prompt, tokens.completion, tokens.logprobs),
            [0] * len(prompt) + [1] * len(tokens.completion),
            *(request, {"choices": [choice]} if message else {}),
            {**about, "model": call.model, "reward": reward, "reason": reason},
        )
        lines.append(dict(zip(TOKEN_COLUMNS, values, strict=True)))
    return lines


def conversation(messages: Sequence[Message], opening: int, layout: Format) -> list[Message] | None:
    """The messages in a format; None if it is for training and the agent says and calls nothing.

    The first ``opening`` messages were there before anybody spoke. Formats for training end with the agent's
    last message. Raises ``KeyError`` or ``TypeError`` for what is no message.
    """
    roles = [message["role"] for message in messages]
    if layout == "full":
        return list(messages)
    end = max((number for number, role in enumerate(roles, 1) if role == "assistant"), default=0)
    if end <= opening:
        return None
    return [_of_format(message, layout) for message in messages[:end]]


def _of_format(message: Message, layout: Format) -> Message:
    """The keys that a format has; arguments are text for OpenAI, and objects for templates.

    Most templates would write text within text, and a content of None as a word.
    """
    if layout == "openai":
        keys, form = _OPENAI_KEYS.get(message["role"], _OPENAI_OTHERS), _text
        kept = {key: message[key] for key in keys if message.get(key) is not None}
    else:
        form = _object
        kept = {"role": message["role"], "content": message.get("content") or ""}
        kept |= {"reasoning_content": thought} if (thought := reasoning_of(message)) else {}
        kept |= {key: message[key] for key in _TEMPLATE_KEYS if message.get(key)}
    if kept.get("tool_calls"):
        kept["tool_calls"] = [
            openai_call(call["id"], call["function"]["name"], form(call["function"]["arguments"]))
            for call in kept["tool_calls"]
        ]
    return kept


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _object(arguments: Any) -> Any:
    parsed = parse_arguments(arguments)
    return arguments if parsed is None else parsed
