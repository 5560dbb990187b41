"""Chosen rollouts of a stored evaluation, read or written one by one."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from reward_kit.agent.after.lines import FORMATS, Format, known_columns, line_of, token_lines
from reward_kit.agent.base.encoding import json_bytes
from reward_kit.agent.base.files import TO_OUTPUT, as_storage_error, write_output, write_text
from reward_kit.agent.base.text import did_you_mean
from reward_kit.agent.bundles.task import positions_of
from reward_kit.agent.rollout.trace import redacted_warning
from reward_kit.agent.store.evaluation_file import reading
from reward_kit.agent.store.loading import read_rollouts
from reward_kit.agent.store.stored_evaluation import Named, StoredEvaluation, load_evaluation
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.rollout.trace import Trace

logger = logging.getLogger(__name__)

_REDACTED = "SELECT rollout FROM traces WHERE CASE WHEN json_valid(json) THEN json ->> '$.redacted' END"


@dataclass(frozen=True, slots=True)
class Export:
    """The chosen rollouts of an evaluation; each iteration reads their trajectories anew, one by one.

    ``left_out`` counts the other rollouts that were planned: ``row`` (not one of the rows asked for),
    ``not run``, ``not judged``, ``reward`` (too low or too high). An iteration also leaves out those that
    are ``damaged``, and in the formats for training those in ``unusable``: the agent says and calls nothing
    in them, or the tokens of its model calls were not kept.
    """

    evaluation: StoredEvaluation
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
        for outcome, record in self.records():
            try:
                if self.layout == "tokens":
                    lines = token_lines(stored, outcome, record)
                else:
                    line = line_of(stored, outcome, record, rewards[outcome.row_id], self.layout)
                    lines = [] if line is None else [line]
            except StorageError as error:
                self._leave_out(error)
                continue
            self.unusable.extend(() if lines else [outcome])
            for line in lines:
                yield {name: line[name] for name in self._columns_of(line)}

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

    def _columns_of(self, line: Mapping[str, Any]) -> Sequence[str]:
        """All but the columns that OpenAI refuses: null, and all on tools if there are none."""
        if self.layout != "openai":
            return self.columns
        has_tools = bool(line["tools"])
        return [one for one in self.columns if one == "messages" or (has_tools and line[one] is not None)]


def export(
    name: Named,
    output_dir: str | Path = "runs",
    *,
    format: Format = "full",  # noqa: A002 - the name of the command's option
    columns: str | Iterable[str] | None = None,
    min_reward: float | None = None,
    max_reward: float | None = None,
    rows: str | Iterable[str] | None = None,
    unjudged: bool = False,
) -> Export:
    """The rollouts of the evaluation that ``name`` means (see ``load_evaluation``), row by row.

    ``columns`` and ``rows`` (ids, patterns or positions) are lists, or texts with commas between names.
    Rewards may be as low as ``min_reward`` and as high as ``max_reward``. Rollouts without a reward are left
    out unless ``unjudged``.
    Raises ``UsageError`` for an unknown evaluation, format or column, ``BundleError`` for an unknown row,
    ``StorageError`` for an evaluation
    that is damaged.
    """
    if format not in FORMATS:
        raise UsageError(f"there is no format {format!r}", remedy=f"There are: {', '.join(FORMATS)}.")
    known = known_columns(format)
    there_are = f"There are: {', '.join(known)}."
    chosen = known if columns is None else tuple(dict.fromkeys(_names(columns)))
    for one in chosen:
        if one not in known:
            fault = f"there is no column {one!r} in the format {format}{did_you_mean(one, known)}"
            raise UsageError(fault, remedy=there_are)
    if not chosen:
        raise UsageError("no column is named", remedy=there_are)
    stored = load_evaluation(name, output_dir)
    ids = [row.row_id for row in stored.rows]
    asked = ids
    if rows is not None:
        named = rows.split(",") if isinstance(rows, str) else rows
        asked = [ids[position] for position in positions_of(ids, named, f"{stored.eval_id}: --rows")]
    low, high = (-inf if min_reward is None else min_reward), (inf if max_reward is None else max_reward)
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
    """Write a line of JSON for each value (to the standard output if ``path`` is None); return their number.

    Raises ``StorageError`` if the file cannot be written; it then keeps its former content.
    """
    number = 0

    def encoded() -> Iterator[bytes]:
        nonlocal number
        for number, line in enumerate(lines, start=1):  # noqa: B007 - the last one is what is returned
            yield _encoded(line) + b"\n"

    write_output(encoded(), TO_OUTPUT if path is None else path)
    return number


def write_rollouts(found: Export, folder: Path) -> int:
    """Write each rollout to ``folder/roll_ID.json``, which ``load_rollout`` reads; return their number.

    The folder is made if need be. Raises ``StorageError`` if a file cannot be written.
    """
    with as_storage_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for outcome, record in found.records():
        text = json_bytes(record.to_json()) + b"\n"
        write_text(folder / f"roll_{outcome.id}.json", [text], durable=False)
    return len(found.outcomes) - len(found.damaged)


def _encoded(line: Any) -> bytes:
    """JSON that every reader takes: without NaN and infinity, which a policy's log probabilities may hold."""
    from pydantic_core import to_json

    try:
        return to_json(line, inf_nan_mode="null")
    except ValueError:  # half of a surrogate pair, or nested deeper than the encoder goes
        return json_bytes(line)


def _names(given: str | Iterable[str]) -> list[str]:
    names = given.split(",") if isinstance(given, str) else given
    return [name.strip() for name in names if name.strip()]
