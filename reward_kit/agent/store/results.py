"""The result of an evaluation: counts, scores and spending, derived from the outcomes of its rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, cast

from reward_kit.agent.base.encoding import DAMAGED, adapter_of, as_json, readable_json
from reward_kit.agent.base.files import write_text
from reward_kit.agent.base.text import html_table
from reward_kit.agent.rollout.outcome import BrokenOff, total_usage
from reward_kit.agent.scoring.groups import groups_of
from reward_kit.agent.scoring.metrics import (
    averages_of,
    pass_table,
    passes_of,
    success_within_turns,
    user_faults_of,
)
from reward_kit.agent.store.evaluation_file import read_fields, shared_faults
from reward_kit.agent.store.loading import load_rollout, read_rollouts
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reward_kit.agent.after.explainer import Explanations
    from reward_kit.agent.base.types import Usage
    from reward_kit.agent.comparison.replay import ReplayComparison
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.scoring.groups import Group
    from reward_kit.agent.scoring.metrics import Averages, Estimate, PassTable, RowResult, UserFaults
    from reward_kit.agent.scoring.sequential import Decision
    from reward_kit.agent.store.evaluation_file import SharedFault
    from reward_kit.agent.tau.results.replay import Agreement

FORMAT = "reward-kit.evaluation/1"
Status = Literal["complete", "budget", "interrupted", "stopped"]
"""``budget``: ``--max-cost`` was reached; ``interrupted``: by a person; ``stopped``: by an error to fix."""
StoredStatus = Literal[Status, "running"]
"""``running``: another process is playing the evaluation."""
SHOWN_ROWS = 50
"""Rows of the table in a notebook."""
_PARTS = {
    "explanations": "reward_kit.agent.after.explainer:read_explanations",
    "agreement": "reward_kit.agent.tau.results.replay:Agreement",
    "compared_with": "reward_kit.agent.comparison.replay:ReplayComparison",
    "decision": "reward_kit.agent.scoring.sequential:Decision",
}
"""The class of each of ``results``, or the function that reads it; they are in rooms above this one."""
_NOT_COPIED = frozenset({"index", "final", "metrics", "usage", "timed_calls", "database", "violations"})
"""Fields of an outcome that ``to_table`` leaves out, or names otherwise."""


@dataclass(frozen=True)
class EvaluationResult:
    """An evaluation so far: what ``evaluate`` returns, and ``load_evaluation`` reads from its file.

    ``log_path`` is that file, ``created`` is in Unix seconds. ``usage`` holds tokens and cost of all finished
    attempts by role; ``broken_off`` those of attempts that were aborted because the run was interrupted or
    failed. ``spent`` is all of it. ``seconds`` is the time of all runs (of one that was killed, up to the end
    of its last rollout). ``fingerprints`` identify each row (``row``, ``seed``, ``tools``), ``code`` each
    module. ``toolsets`` holds tools in the OpenAI format by their fingerprint. ``results`` are those of the
    last run that do not follow from the rollouts, as objects or as stored; empty if it came to no end.
    """

    eval_id: str
    log_path: Path
    status: StoredStatus
    reason: str | None
    configuration: Mapping[str, Any]
    versions: Mapping[str, str]
    rows: tuple[RowResult, ...]
    usage: Mapping[str, Usage]
    seconds: float
    created: float = 0.0
    broken_off: BrokenOff = field(default_factory=BrokenOff)
    fingerprints: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    toolsets: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)

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
        """The number of rollouts in the plan."""
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
        return Counter(kind for row in self.rows for kind in row.failures.elements())

    @property
    def unjudged(self) -> Counter[str]:
        """Rollouts without a reward, by reason."""
        return Counter(kind for row in self.rows for kind in row.unjudged.elements())

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
        won = [(row.n_scored, (one for one in row.outcomes if one.success)) for row in self.rows]
        return success_within_turns([(n, [one.turn_of_success or one.turns for one in of]) for n, of in won])

    @property
    def complete(self) -> bool:
        """True if every planned rollout is judged, and explained if that was asked for."""
        asked = self.configuration.get("explain") is not None
        explained = not asked or self.explanations is None or self.explanations.complete
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

    @cached_property
    def explanations(self) -> Explanations | None:
        """A model's judgements of the failures (``--explain``), whose cost is not in ``usage``."""
        return cast("Explanations | None", self._part("explanations"))

    @cached_property
    def agreement(self) -> Agreement | None:
        """The comparison with the results file that was read (``port results``)."""
        return cast("Agreement | None", self._part("agreement"))

    @cached_property
    def compared_with(self) -> ReplayComparison | None:
        """The comparison with the recording that was replayed."""
        return cast("ReplayComparison | None", self._part("compared_with"))

    @cached_property
    def decision(self) -> Decision | None:
        """The decision against another evaluation (``--against``)."""
        return cast("Decision | None", self._part("decision"))

    def _part(self, name: str) -> Any:
        """One of ``results`` as an object; raises ``StorageError`` if it was damaged in the file."""
        found = self.results.get(name)
        if not isinstance(found, Mapping):
            return found
        kind = resolve_name(_PARTS[name])
        try:
            if name == "explanations":
                return kind(self, found)
            return adapter_of(kind).validate_python(found)
        except DAMAGED as error:
            raise StorageError(f"holds damaged results: {error!r}", place=str(self.log_path)) from error

    @property
    def folder(self) -> Path:
        """The runs folder."""
        return self.log_path.parent.parent

    @property
    def results_path(self) -> Path:
        """The results file, ``evals/<eval_id>.json``."""
        return self.log_path.with_suffix(".json")

    def report(self, width: int = 100, *, whole: bool = False) -> str:
        """The text that ``agent-eval`` ends with, or ``whole`` as ``reward-kit show`` prints it."""
        console = import_module("reward_kit.agent.reports.console")  # also a room above
        lines = console.report_lines if whole else console.screen_lines
        return "\n".join(lines(self, width)).lstrip("\n")

    def record(self, outcome: Outcome) -> Trace:
        """The whole rollout of an outcome; raises ``StorageError`` if it cannot be read."""
        return load_rollout(self.folder / outcome.file)

    def record_or_none(self, outcome: Outcome) -> Trace | None:
        """As ``record``; None if it cannot be read: it may be shared without its trajectories."""
        with suppress(StorageError):
            return self.record(outcome)
        return None

    def records(self) -> Iterator[Trace]:
        """The finished rollouts, each read when its turn comes; ``StorageError`` if one cannot be read."""
        for record in read_rollouts(self.log_path, (outcome.id for outcome in self.outcomes)):
            with record:
                yield record

    def row_fields(self, name: str | None = None) -> list[tuple[RowResult, Mapping[str, Any]]]:
        """The rows that have a finished rollout, with the fields (or the one of this name) as evaluated."""
        known = read_fields(self.log_path, name=name)
        return [(row, known[row.row_id]) for row in self.rows if row.outcomes and row.row_id in known]

    def fields_of(self, row_id: str) -> dict[str, Any] | None:
        """The fields of a row as it was evaluated; None for an unknown row."""
        return read_fields(self.log_path, row_id).get(row_id)

    def tools_of(self, row_id: str) -> list[dict[str, Any]] | None:
        """The tools of a row in the OpenAI format, as they were offered; None for an unknown row."""
        return self.toolsets.get(self.fingerprints.get(row_id, {}).get("tools", ""))

    def parallel_tool_calls(self, row_id: str) -> bool | None:
        """True if several tool calls in an answer were wanted; None for an unknown row."""
        wanted = self.fingerprints.get(row_id, {}).get("parallel_tool_calls")
        return wanted and bool(self.configuration.get("parallel_tool_calls", True))

    def by(self, field: str) -> list[Group]:
        """The rows grouped by a field (``metadata.domain``); see ``groups_of`` for rules and errors."""
        return groups_of(self.row_fields(), field)

    def to_table(self) -> list[dict[str, Any]]:
        """A flat dict for each finished rollout, all with the same keys: for pandas or CSV files.

        Nested values have dotted names: ``metrics.NAME``, ``usage.ROLE.input_tokens``. ``cost`` is in US
        dollars, None if the price of a call is not known.
        """
        about = {"eval_id": self.eval_id, "agent": self.configuration.get("agent"), "model": self.asked_model}
        lines = [{**about, **_flat(outcome)} for outcome in self.outcomes]
        absent = dict.fromkeys(name for line in lines for name in line)
        return [{**absent, **line} for line in lines]

    def to_json(self) -> dict[str, Any]:
        """The content of ``evals/<eval_id>.json``."""
        return {**(made := self.members()), "rows": list(made["rows"])}

    def write(self) -> None:
        """Write the results file; raises ``StorageError`` if that fails."""
        write_text(self.results_path, readable_json(self.members()))

    def members(self) -> dict[str, Any]:
        """``to_json`` with an iterator of rows, each of which is made when its turn comes."""
        failures = self.failures
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
            "rules": self.rules_to_json(),
            **({"broken_off": self.broken_off.to_json()} if self.broken_off.rollouts else {}),
            **self.stored_results(),
            "rows": (row.to_json() for row in self.rows),
        }

    def stored_results(self) -> dict[str, Any]:
        """``results`` in plain JSON values, as they are stored."""
        parts = {**self.results, **({"explanations": self.explanations} if self.explanations else {})}
        return {name: one if isinstance(one, Mapping) else one.to_json() for name, one in parts.items()}

    def rules_to_json(self) -> dict[str, Any] | None:
        """The rules as ``to_json`` has them; None without any."""
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
