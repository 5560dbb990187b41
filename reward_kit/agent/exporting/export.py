"""Choosing rollouts of a stored evaluation, and giving or writing them one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.files import TO_OUTPUT, as_storage_error, write_file, write_output
from reward_kit.agent.base.strict_json import json_bytes
from reward_kit.agent.base.text import did_you_mean
from reward_kit.agent.exporting.lines import COLUMNS, FORMATS, OPENAI_COLUMNS, Format, line_of
from reward_kit.agent.records.evaluation_file import read_rollout, reading
from reward_kit.agent.storage.stored_evaluation import Named, StoredEvaluation, load_evaluation
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.scoring.rows import RowResult


@dataclass(frozen=True, slots=True)
class Export:
    """The chosen rollouts of an evaluation; each iteration reads their trajectories anew, one by one.

    ``left_out`` counts the other rollouts that were planned: ``row`` (not one of the rows asked for),
    ``not run``, ``not judged``, ``reward`` (outside of what was asked for). In the formats for training an
    iteration leaves out those in which the agent says and calls nothing, too.
    """

    evaluation: StoredEvaluation
    outcomes: tuple[RolloutOutcome, ...]
    left_out: Mapping[str, int]
    columns: tuple[str, ...]
    layout: Format

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """A dict of the columns for each rollout; ``StorageError`` if a trajectory cannot be read."""
        rewards = {row.row_id: _rewards(row) for row in self.evaluation.rows}
        for outcome in self.outcomes:
            line = line_of(self.evaluation, outcome, rewards[outcome.row_id], self.layout)
            if line is not None:
                yield {name: line[name] for name in self.columns if self._has(line, name)}

    @property
    def without_tools(self) -> int:
        """The number of rollouts whose tools are not known."""
        return sum(self.evaluation.tools_of(outcome.row_id) is None for outcome in self.outcomes)

    def _has(self, line: Mapping[str, Any], column: str) -> bool:
        """OpenAI takes neither null nor an empty list of tools, nor a word on calls of tools without them."""
        if self.layout != "openai" or column == "messages":
            return True
        return bool(line["tools"]) and line[column] is not None


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

    ``columns`` and ``rows`` are lists, or texts with commas between names. Rewards may be as low as
    ``min_reward`` and as high as ``max_reward``. Rollouts without a reward are left out unless ``unjudged``.
    Raises ``UsageError`` for an unknown evaluation, format, column or row, ``StorageError`` for an evaluation
    that is damaged.
    """
    if format not in FORMATS:
        raise UsageError(f"there is no format {format!r}", remedy=f"There are: {', '.join(FORMATS)}.")
    chosen_columns = _columns(format, columns)
    for flag, bound in (("--min-reward", min_reward), ("--max-reward", max_reward)):
        if bound is not None and (not isinstance(bound, int | float) or bound != bound):
            raise UsageError(f"{flag} takes a number, not {bound!r}")
    stored = load_evaluation(name, output_dir)
    asked = None if rows is None else _known_rows(stored, _names("--rows", rows))
    outcomes: list[RolloutOutcome] = []
    left_out: Counter[str] = Counter()
    for row in stored.rows:
        if asked is not None and row.row_id not in asked:
            left_out["row"] += row.planned
            continue
        left_out["not run"] += row.planned - len(row.outcomes)
        for outcome in sorted(row.outcomes, key=lambda outcome: outcome.index):
            reason = _reason(outcome.reward, min_reward, max_reward, unjudged=unjudged)
            if reason is None:
                outcomes.append(outcome)
            else:
                left_out[reason] += 1
    return Export(stored, tuple(outcomes), +left_out, chosen_columns, format)


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
    path = found.evaluation.path
    with as_storage_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with reading(path) as connection:
        for outcome in found.outcomes:
            text = read_rollout(connection, outcome.id, path).trajectory
            write_file(folder / f"roll_{outcome.id}.json", f"{text}\n".encode(), durable=False)
    return len(found.outcomes)


def _encoded(line: Any) -> bytes:
    """JSON that every reader takes: without NaN and infinity, which a policy's log probabilities may hold."""
    from pydantic_core import to_json

    try:
        return to_json(line, inf_nan_mode="null")
    except ValueError:  # half of a surrogate pair, or nested deeper than the encoder goes
        return json_bytes(line)


def _columns(layout: Format, asked: str | Iterable[str] | None) -> tuple[str, ...]:
    known = OPENAI_COLUMNS if layout == "openai" else COLUMNS
    if asked is None:
        return known
    names = _names("--columns", asked)
    for name in names:
        if name not in known:
            fault = f"there is no column {name!r} in the format {layout}{did_you_mean(name, known)}"
            raise UsageError(fault, remedy=f"There are: {', '.join(known)}.")
    if not names:
        raise UsageError("no column is named", remedy=f"There are: {', '.join(known)}.")
    return tuple(dict.fromkeys(names))


def _names(flag: str, given: object) -> list[str]:
    parts = given.split(",") if isinstance(given, str) else given
    names = list(parts) if isinstance(parts, Iterable) else []
    if not isinstance(parts, Iterable) or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"{flag} takes names, not {given!r}", remedy="Give a list, or a text with commas between them."
        )
    return [name.strip() for name in names if name.strip()]


def _known_rows(stored: StoredEvaluation, asked: Sequence[str]) -> frozenset[str]:
    known = [row.row_id for row in stored.rows]
    for row_id in asked:
        if row_id not in known:
            fault = f"there is no row {row_id!r}{did_you_mean(row_id, known)}"
            raise UsageError(fault, place=f"evaluation {stored.eval_id}")
    return frozenset(asked)


def _reason(reward: float | None, low: float | None, high: float | None, *, unjudged: bool) -> str | None:
    """Why a rollout is left out; None if it is not."""
    if reward is None:
        return None if unjudged else "not judged"
    within = (low is None or reward >= low) and (high is None or reward <= high)
    return None if within else "reward"


def _rewards(row: RowResult) -> list[float]:
    judged = sorted(row.outcomes, key=lambda outcome: outcome.index)
    return [outcome.reward for outcome in judged if outcome.reward is not None]
