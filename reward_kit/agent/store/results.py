"""The result of an evaluation: counts, scores and spending, derived from the outcomes of its rollouts."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from reward_kit.agent.base.encoding import as_json
from reward_kit.agent.base.text import count, html_table, one_line
from reward_kit.agent.rollout.outcome import BrokenOff, total_usage
from reward_kit.agent.scoring.groups import groups_of
from reward_kit.agent.scoring.metrics import pass_table, passes_of, success_within_turns
from reward_kit.agent.scoring.rows import averages_of, user_faults_of
from reward_kit.agent.store.evaluation_file import count_failed_calls, read_fields
from reward_kit.agent.store.loading import load_rollout, read_rollouts
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.after.explainer import Explanations
    from reward_kit.agent.base.types import Usage
    from reward_kit.agent.comparison.replay import ReplayComparison
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.scoring.groups import Group
    from reward_kit.agent.scoring.metrics import Estimate, PassTable
    from reward_kit.agent.scoring.rows import Averages, RowResult, UserFaults
    from reward_kit.agent.scoring.sequential import Decision
    from reward_kit.agent.tau.results.replay import Agreement

FORMAT = "reward-kit.evaluation/1"
Status = Literal["complete", "budget", "interrupted", "stopped"]
"""``budget``: ``--max-cost`` was reached; ``interrupted``: by a person; ``stopped``: by an error to fix."""
StoredStatus = Literal[Status, "running"]
"""``running``: another process is playing the evaluation."""
SHOWN_ROWS = 50
"""Rows of the table in a notebook."""
_NOT_COPIED = frozenset({"index", "final", "metrics", "usage", "timed_calls", "database", "violations"})
"""Fields of an outcome that ``to_table`` leaves out, or names otherwise."""

REPEATED = 5
"""Equal calls in one rollout that make a loop."""
LONGEST = 160
_CALLS = {
    "invalid_json": "were not valid JSON",
    "invalid_arguments": "had arguments that the tool does not take",
    "unknown_tool": "named a tool that does not exist",
}


class SharedFault(NamedTuple):
    """A fault that ``rollouts`` of the ``of`` finished ones have, in words."""

    kind: str
    rollouts: int
    of: int
    text: str


@dataclass(frozen=True)
class EvaluationResult:
    """The results of an evaluation so far.

    ``usage`` holds tokens and cost of agent and user, repeated attempts included; ``broken_off`` those of
    attempts that were aborted because the run was interrupted or failed. ``spent`` is all of it. ``seconds``
    is the time of all runs. ``explanations`` are a model's judgements of the failures (``--explain``), whose
    cost is not in ``usage``. ``agreement`` compares with the results file that was read
    (``port results``), ``compared_with`` with the recording that was replayed, ``decision`` with another
    evaluation (``--against``).
    """

    eval_id: str
    status: StoredStatus
    reason: str | None
    configuration: Mapping[str, Any]
    versions: Mapping[str, str]
    rows: tuple[RowResult, ...]
    usage: Mapping[str, Usage]
    seconds: float
    folder: Path
    broken_off: BrokenOff = field(default_factory=BrokenOff)
    agreement: Agreement | None = None
    explanations: Explanations | None = None
    compared_with: ReplayComparison | None = None
    decision: Decision | None = None

    def __repr__(self) -> str:
        """One line, also for thousands of rollouts."""
        first = self.pass_power.get(1)
        finished = f"{len(self.outcomes)} of {self.planned} rollouts"
        passed = "" if first is None else f", Pass^1 {first.value:.3f}"
        return f"<EvaluationResult {self.eval_id} {self.status}: {finished}{passed}>"

    def _repr_html_(self) -> str:
        """Pass^k and the rows, for notebooks."""
        powers = [
            (k, one.value, *(found and f"{found.low:.3f} to {found.high:.3f}" for found in one.intervals))
            for k, one in self.pass_power.items()
        ]
        rows = [(row.row_id, row.passed, row.n_scored, row.reward) for row in self.rows[:SHOWN_ROWS]]
        more = f" ({len(rows)} of {len(self.rows)} rows)" if len(rows) < len(self.rows) else ""
        shares = html_table(repr(self), ("k", "Pass^k", "these tasks", "tasks like these"), powers)
        return shares + html_table(f"Rows{more}", ("row", "passed", "judged", "reward"), rows)

    @cached_property
    def passes(self) -> PassTable:
        """Pass^k and Pass@k with intervals."""
        return passes_of(self.rows)

    @cached_property
    def passes_by_rules(self) -> PassTable:
        """Pass^k and Pass@k of rollouts that passed and broke no rule of the bundle."""
        return pass_table([(row.n_scored, row.rules_kept) for row in self.rows])

    @cached_property
    def averages(self) -> Averages:
        """Means over rollouts."""
        return averages_of(self.rows)

    @property
    def score(self) -> float | None:
        """The mean of Pass^1 to Pass^4, over those that exist."""
        return self.passes.score

    @property
    def pass_power(self) -> Mapping[int, Estimate]:
        """Pass^k by k."""
        return self.passes.pass_power

    @property
    def pass_at(self) -> Mapping[int, Estimate]:
        """Pass@k by k."""
        return self.passes.pass_at

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """The finished rollouts, row by row."""
        return [outcome for row in self.rows for outcome in row.outcomes]

    @property
    def planned(self) -> int:
        """The number of rollouts that were asked for."""
        return sum([row.planned for row in self.rows])

    @property
    def n_scored(self) -> int:
        """The rollouts that enter Pass^k."""
        return sum([row.n_scored for row in self.rows])

    @property
    def passed(self) -> int:
        """The successful rollouts."""
        return sum([row.passed for row in self.rows])

    @property
    def failures(self) -> Counter[str]:
        """Judged failures, by class."""
        return sum([row.failures for row in self.rows], Counter())

    @property
    def unjudged(self) -> Counter[str]:
        """Rollouts without a reward, by reason."""
        return sum([row.unjudged for row in self.rows], Counter())

    @property
    def user_faults(self) -> UserFaults:
        """Faults of the simulated users."""
        return user_faults_of(self.outcomes)

    @cached_property
    def shared_faults(self) -> list[SharedFault]:
        """Faults that at least half of the finished rollouts share; ``facts`` in the results file."""
        return shared_faults(self.outcomes, self.log_path)

    @property
    def broken_rules(self) -> dict[str, int]:
        """The number of rollouts that broke each rule, zeros included; empty without rules."""
        names = dict.fromkeys(name for row in self.rows for name in row.broken_rules)
        return {name: sum(row.broken_rules.get(name, 0) for row in self.rows) for name in names}

    @property
    def rules_kept(self) -> int:
        """The successful rollouts that broke no rule."""
        return sum([row.rules_kept for row in self.rows])

    @property
    def success_within_turns(self) -> dict[int, float]:
        """The share of rollouts that had succeeded within k turns, by k. It is not Pass^k."""
        return success_within_turns([(row.n_scored, row.turns_of_success) for row in self.rows])

    @property
    def complete(self) -> bool:
        """True if every planned rollout is judged, and explained if that was asked for."""
        explained = self.explanations is None or self.explanations.complete
        return self.status == "complete" and not self.unjudged and explained

    @property
    def spent(self) -> Usage:
        """The usage of all model calls, aborted attempts included."""
        return total_usage([*self.usage.values(), *self.broken_off.usage.values()])

    @property
    def asked_model(self) -> str | None:
        """The agent's model, if the agent used it.

        A ``module:factory`` agent may ignore ``MODEL_AGENT``: None if something is judged and none of the
        agent's calls was counted.
        """
        agent = str(self.configuration.get("agent"))
        own = ":" in agent and not agent.startswith("replay:")
        called = "agent" in self.usage and self.usage["agent"].calls > 0
        if own and not called and any(outcome.scored for outcome in self.outcomes):
            return None
        return self.configuration.get("model")

    @property
    def results_path(self) -> Path:
        """The results file, ``evals/<eval_id>.json``."""
        return self.folder / "evals" / f"{self.eval_id}.json"

    @property
    def log_path(self) -> Path:
        """The evaluation's file, ``evals/<eval_id>.db``."""
        return self.folder / "evals" / f"{self.eval_id}.db"

    def report(self, width: int = 100, *, whole: bool = False) -> str:
        """The text that ``agent-eval`` ends with, or ``whole`` as ``reward-kit show`` prints it."""
        console = import_module("reward_kit.agent.reports.console")  # a room above this one
        lines = console.report_lines if whole else console.screen_lines
        return "\n".join(lines(self, width)).lstrip("\n")

    def record(self, outcome: Outcome) -> Trace:
        """The whole rollout of an outcome; raises ``StorageError`` if it cannot be read."""
        return load_rollout(self.folder / outcome.file)

    def records(self) -> Iterator[Trace]:
        """The finished rollouts, each read when its turn comes; ``StorageError`` if one cannot be read."""
        for record in read_rollouts(self.log_path, (outcome.id for outcome in self.outcomes)):
            with record:
                yield record

    def row_fields(self) -> list[tuple[RowResult, Mapping[str, Any]]]:
        """The rows that have a finished rollout, with their fields as evaluated; or ``StorageError``."""
        known = read_fields(self.log_path)
        return [(row, known[row.row_id]) for row in self.rows if row.outcomes and row.row_id in known]

    def by(self, field: str) -> list[Group]:
        """The rows grouped by a field (``metadata.domain``); see ``groups_of`` for rules and errors."""
        return groups_of(self.row_fields(), field)

    def to_table(self) -> list[dict[str, Any]]:
        """A flat dict for each finished rollout, all with the same keys: for pandas or CSV files.

        Nested values have dotted names: ``metrics.NAME``, ``usage.ROLE.input_tokens``. ``cost`` is in US
        dollars, None if the price of a call is not known.
        """
        agent = self.configuration.get("agent")
        common = {"eval_id": self.eval_id, "agent": agent, "model": self.asked_model}
        lines = [{**common, **_flat(outcome)} for outcome in self.outcomes]
        absent = dict.fromkeys(name for line in lines for name in line)
        return [{**absent, **line} for line in lines]

    def to_json(self) -> dict[str, Any]:
        """The content of ``evals/<eval_id>.json``."""
        plain = self.members()
        return {**plain, "rows": list(plain["rows"])}

    def members(self) -> dict[str, Any]:
        """``to_json`` with an iterator of rows, each of which is made when its turn comes."""
        failures = self.failures
        optional = {
            "explanations": self.explanations,
            "broken_off": self.broken_off if self.broken_off.rollouts else None,
            "agreement": self.agreement,
            "compared_with": self.compared_with,
            "decision": self.decision,
        }
        return {
            "format": FORMAT,
            "eval_id": self.eval_id,
            "status": self.status,
            "reason": self.reason,
            "configuration": dict(self.configuration),
            "versions": dict(self.versions),
            **self.passes.to_json(),
            "planned": self.planned,
            "finished": len(self.outcomes),
            "judged": self.n_scored,
            "successes": self.passed,
            "failures": dict(failures.most_common()),
            "failure_breakdown": {
                kind: {"count": number, "percent": 100 * number / failures.total()}
                for kind, number in failures.most_common()
            },
            "facts": [fault._asdict() for fault in self.shared_faults],
            "user_faults": self.user_faults.to_json(),
            "unjudged": dict(self.unjudged.most_common()),
            "success_within_turns": {str(k): share for k, share in self.success_within_turns.items()},
            "averages": self.averages.to_json(),
            "usage": {role: as_json(usage) for role, usage in self.usage.items()},
            "seconds": self.seconds,
            "rules": self._rules_to_json(),
            **{name: part.to_json() for name, part in optional.items() if part is not None},
            "rows": (row.to_json() for row in self.rows),
        }

    def _rules_to_json(self) -> dict[str, Any] | None:
        if not (broken := self.broken_rules):
            return None
        return {
            "checked": sum(outcome.violations is not None for outcome in self.outcomes),
            "kept": self.rules_kept,
            "pass_power": {str(k): one.to_json() for k, one in self.passes_by_rules.pass_power.items()},
            "broken": broken,
        }


def _flat(outcome: Outcome) -> dict[str, Any]:
    """The fields of an outcome as texts and numbers, those of usage and metrics last."""
    unpriced = any(usage.unpriced_calls for usage in outcome.usage.values())
    plain = outcome.to_json()
    return {
        "row_id": outcome.row_id,
        "rollout": outcome.index,
        "reward": outcome.reward,
        "success": outcome.success if outcome.scored else None,
        **{name: value for name, value in plain.items() if name not in _NOT_COPIED},
        "user_faults": None if outcome.user_faults is None else ", ".join(outcome.user_faults),
        "tool_faults": None if outcome.tool_faults is None else ", ".join(outcome.tool_faults),
        "broken_rules": None if outcome.violations is None else ", ".join(outcome.broken_rules),
        "cost": None if unpriced else outcome.cost,
        **{f"metrics.{name}": score for name, score in (outcome.metrics or {}).items()},
        **{
            f"usage.{role}.{name}": number
            for role, usage in plain["usage"].items()
            for name, number in usage.items()
        },
    }


def has_begun(outcomes: Sequence[Outcome]) -> bool:
    """True if any rollout got as far as a call or a reply, or none has finished."""
    return not outcomes or any(one.steps for one in outcomes)


def shared_faults(outcomes: Sequence[Outcome], path: Path) -> list[SharedFault]:
    """The faults that at least half of the finished ``outcomes`` share, read from the evaluation's file."""
    of, every = len(outcomes), count(len(outcomes), "rollout")
    found = list(_ends(outcomes, every))
    if any(one.failure for one in outcomes):
        with suppress(StorageError):  # shared without its trajectories
            found += _failed_calls(path, every)
    return [SharedFault(kind, number, of, text) for kind, number, text in found if 2 * number >= of]


def _ends(outcomes: Sequence[Outcome], every: str) -> Iterator[tuple[str, int, str]]:
    failed = (one for one in outcomes if one.error or one.stop_reason.endswith("_error"))
    for text, number in Counter(one.error or one.stop_detail or "" for one in failed).most_common(1):
        if text and number > 1:
            yield "same_error", number, f"{number} of {every} ended with {one_line(text, LONGEST)}"
    # out of steps or time, and the simulated user was answered in at least every third step
    late = [one for one in outcomes if one.stop_reason in ("max_steps", "timeout")]
    talking = [one for one in late if one.user_faults is not None and one.turns > 1]
    if number := sum(3 * one.turns >= one.steps for one in talking):
        text = f"{number} of {every} reached a limit because the user never ended the conversation"
        yield "endless_user", number, text


def _failed_calls(path: Path, every: str) -> Iterator[tuple[str, int, str]]:
    for kind, calls, number, example in count_failed_calls(path, REPEATED):
        text = f"{count(calls, 'call')} in {number} of {every} {_CALLS.get(kind)}"
        if kind == "repeated_call":
            text = f"{number} of {every} made one call again and again, up to {calls} times"
        yield kind, number, f"{text}: {one_line(example, LONGEST)}"
