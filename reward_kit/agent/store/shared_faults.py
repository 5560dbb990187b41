"""Faults that most rollouts of an evaluation share: signs of a broken agent or set-up, not of a weak one."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import as_json
from reward_kit.agent.base.text import count, one_line
from reward_kit.agent.store.evaluation_file import reading
from reward_kit.agent.store.schema import FINAL
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from reward_kit.agent.rollout.outcome import Outcome

REPEATED = 5
"""Equal calls in one rollout that make a loop."""
LONGEST = 160
_CALLS = {
    "invalid_json": "were not valid JSON",
    "invalid_arguments": "had arguments that the tool does not take",
    "unknown_tool": "named a tool that does not exist",
}

ANSWER_FAULTS = f"""
SELECT json_extract(call.value, '$.fault') AS fault, count(DISTINCT rollout)
FROM traces AS t CROSS JOIN rollouts ON rollouts.id = rollout, json_each(t.json, '$.model_calls') AS call
WHERE instr(t.json, '"fault":"') AND {FINAL} AND json_valid(t.json) AND fault IS NOT NULL
GROUP BY fault"""  # noqa: S608
"""SQL of ``count_answer_faults``: its order of tables begins with the index that reads no other trace."""


@dataclass(frozen=True, slots=True)
class SharedFault:
    """A fault that ``rollouts`` of the ``of`` finished ones have, in words."""

    kind: str
    rollouts: int
    of: int
    text: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        found: dict[str, Any] = as_json(self)
        return found


def has_begun(outcomes: Sequence[Outcome]) -> bool:
    """True if any rollout got as far as a call or a reply, or none has finished."""
    return not outcomes or any(one.steps for one in outcomes)


def shared_faults(outcomes: Sequence[Outcome], path: Path) -> list[SharedFault]:
    """The faults that at least half of the finished ``outcomes`` share, read from the evaluation's file."""
    found = [*_errors(outcomes), *_endless_users(outcomes)]
    with suppress(StorageError):  # shared without its trajectories
        found += _calls(outcomes, path)
    return [one for one in found if 2 * one.rollouts >= one.of]


def _errors(outcomes: Sequence[Outcome]) -> Iterator[SharedFault]:
    ended = Counter(
        one.error or one.stop_detail or ""
        for one in outcomes
        if one.stop_reason.endswith("_error") or one.error
    )
    for text, rollouts in ended.most_common(1):
        of = len(outcomes)
        if text and rollouts > 1:
            said = one_line(text, LONGEST)
            yield SharedFault("same_error", rollouts, of, f"{_of(rollouts, of)} ended with {said}")


def _endless_users(outcomes: Sequence[Outcome]) -> Iterator[SharedFault]:
    """Rollouts out of steps or time in which the simulated user was answered in at least every third step."""
    late = [
        one for one in outcomes if one.stop_reason in ("max_steps", "timeout") and one.user_faults is not None
    ]
    endless = sum(one.turns > 1 and 3 * one.turns >= one.steps for one in late)
    if endless:
        text = f"{_of(endless, len(outcomes))} reached a limit because the user never ended the conversation"
        yield SharedFault("endless_user", endless, len(outcomes), text)


def _calls(outcomes: Sequence[Outcome], path: Path) -> Iterator[SharedFault]:
    of = len(outcomes)
    if not any(one.failure for one in outcomes):
        return
    for kind, calls, rollouts, example in count_failed_calls(path, REPEATED):
        example = one_line(example, LONGEST)
        if kind == "repeated_call":
            text = f"{_of(rollouts, of)} made one call again and again, up to {calls} times: {example}"
        else:
            text = f"{count(calls, 'call')} in {_of(rollouts, of)} {_CALLS[kind]}: {example}"
        yield SharedFault(kind, rollouts, of, text)


def _of(rollouts: int, of: int) -> str:
    return f"{rollouts} of {count(of, 'rollout')}"


def count_answer_faults(path: Path) -> dict[str, int]:
    """The number of rollouts with an answer that the set-up of the model's server had spoilt, by fault.

    Raises ``StorageError`` for a missing or damaged file.
    """
    with reading(path) as connection:
        return dict(connection.execute(ANSWER_FAULTS).fetchall())


def count_cut_answers(path: Path) -> dict[str, int]:
    """The number of answers that were cut at the token limit, by role; raises as ``count_answer_faults``."""
    query = f"""
SELECT json_extract(call.value, '$.role') AS role, count(*)
FROM rollouts JOIN traces AS t ON rollouts.id = rollout, json_each(t.json, '$.model_calls') AS call
WHERE {FINAL} AND instr(t.json, '"finish_reason":"length"') AND json_valid(t.json)
AND json_extract(call.value, '$.finish_reason') = 'length' GROUP BY role"""  # noqa: S608
    with reading(path) as connection:
        return dict(connection.execute(query).fetchall())


def count_failed_calls(path: Path, repeated: int) -> list[tuple[str, int, int, str]]:
    """Each kind of faulty call of the agent: its name, calls, failed rollouts, and the most frequent one.

    A ``repeated_call`` is one that a rollout made ``repeated`` times or more before it ran out of steps or
    time; its calls are the most of one rollout. Raises ``StorageError`` for a missing or damaged file.
    """
    query = f"""
WITH failed AS (
    SELECT rollout, stop_reason, t.json AS trace FROM rollouts JOIN traces AS t ON rollouts.id = rollout
    WHERE {FINAL} AND failure IS NOT NULL AND json_valid(t.json)),
calls AS (
    SELECT rollout, stop_reason, json_extract(value, '$.name') AS name,
    json_extract(value, '$.status') AS status, json_extract(value, '$.arguments') AS arguments,
    json_type(value, '$.arguments') AS type
    FROM failed, json_each(trace, '$.tool_calls') WHERE (stop_reason IN ('max_steps', 'timeout', 'budget')
    OR instr(trace, '"status":"unknown_tool"') OR instr(trace, '"status":"invalid_arguments"'))
    AND coalesce(json_extract(value, '$.by'), 'agent') = 'agent'),
faulty AS (
    SELECT rollout, CASE WHEN status = 'unknown_tool' THEN status
        WHEN type = 'text' THEN 'invalid_json' ELSE status END AS kind,
    CASE status WHEN 'unknown_tool' THEN name ELSE name || '(' || arguments || ')' END AS said
    FROM calls WHERE status IN ('unknown_tool', 'invalid_arguments')),
loops AS (
    SELECT rollout, name || '(' || arguments || ')' AS said, count(*) AS number FROM calls
    WHERE stop_reason IN ('max_steps', 'timeout', 'budget') GROUP BY 1, 2 HAVING count(*) >= :repeated)
SELECT kind, count(*), count(DISTINCT rollout), (
    SELECT said FROM faulty AS one WHERE one.kind = faulty.kind GROUP BY said ORDER BY count(*) DESC LIMIT 1)
FROM faulty GROUP BY kind
UNION ALL
SELECT 'repeated_call', max(number), count(DISTINCT rollout), said FROM loops GROUP BY NULL"""  # noqa: S608
    with reading(path) as connection:
        return connection.execute(query, {"repeated": repeated}).fetchall()
