"""Evaluation cards: one JSON file with everything that a published score claims, and no rollout.

A card can be checked against the evaluation that it was made from, and without it against itself: its totals,
Pass^k and noise floor follow from the counts of its rows, and ``hash`` covers all of it::

    card = card_of(load_evaluation("main"))
    print(faults_of(card))                       # []
    compare("main.card.json", "candidate")       # a card stands for an evaluation
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import as_json, json_text, parsed_json
from reward_kit.agent.base.types import Usage
from reward_kit.agent.base.versions import versions
from reward_kit.agent.comparison.measures import ROLES
from reward_kit.agent.config import DEFAULTS, OPTIONS
from reward_kit.agent.rollout.outcome import BrokenOff, is_success, total_usage, usage_from_json
from reward_kit.agent.scoring.metrics import RowResult
from reward_kit.agent.store.evaluation_file import read_fields, reading
from reward_kit.agent.store.layout import stored_usage
from reward_kit.agent.store.results import EvaluationResult
from reward_kit.agent.store.resume import canonical, fingerprint
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FORMAT = "reward-kit.card/1"
CONTENT = ("row", "seed", "tools")
"""Fingerprints of a row that a card has."""
PROMPTS = ("system_prompt", "initial_messages", "sim_user_prompt", "sim_user_template")
NORMAL = 1.959963984540054
"""97.5 % quantile of the normal distribution."""
LONGEST_VALUE = 60

WRITE = "Write a card: reward-kit export EVALUATION --format card --out FILE"

Card = dict[str, Any]


def card_of(stored: EvaluationResult, audit: Any = None) -> Card:
    """The card of an evaluation; ``audit`` is the result of an audit of its bundle, to be kept in it.

    Raises ``StorageError`` if the evaluation's file is damaged.
    """
    fields = read_fields(stored.log_path)
    prints = {row.row_id: stored.fingerprints.get(row.row_id, {}) for row in stored.rows}
    prompts = {name: {row: fields.get(row, {}).get(name) for row in prints} for name in PROMPTS}
    options = {**DEFAULTS, **stored.configuration, "model": stored.asked_model}
    card = {
        "format": FORMAT,
        "evaluation": stored.eval_id,
        "created": stored.created,
        "status": stored.status,
        "reason": stored.reason,
        "settings": {
            name: options[name] for name, option in OPTIONS.items() if option.fixed or option.scored
        },
        "task": fingerprint([[row, *_content(row_prints)] for row, row_prints in prints.items()]),
        "tools": {name: len(tools) for name, tools in sorted(stored.toolsets.items())},
        "prompts": {
            **{name: fingerprint(texts) for name, texts in prompts.items() if any(texts.values())},
            **{name: text for row in prints.values() for name, text in row.get("prompts", {}).items()},
        },
        "code": dict(stored.code),
        "versions": dict(stored.versions),
        "audit": audit,
        "costs": _costs(stored),
        **_numbers(stored),
        "rows": [_entry(row, prints[row.row_id]) for row in stored.rows],
    }
    plain: Card = json.loads(json_text(card))
    return {**plain, "hash": _hash(plain)}


def _entry(row: RowResult, prints: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": row.row_id,
        "planned": row.planned,
        "finished": row.finished,
        "n": row.n_scored,
        "c": row.passed,
        "rewards": row.rewards,
        "rules_kept": row.rules_kept if row.broken_rules else None,
        "broken_rules": row.broken_rules,
        "failures": dict(row.failures),
        "unjudged": dict(row.unjudged),
        "fingerprints": dict(zip(CONTENT, _content(prints), strict=True)),
    }


def _content(prints: Mapping[str, Any]) -> list[Any]:
    return [prints.get(name) for name in CONTENT]


def _costs(stored: EvaluationResult) -> dict[str, Any]:
    """Usage by role, of explanations and of aborted attempts; ``total`` is the sum."""
    with reading(stored.log_path) as connection:
        explained = stored_usage(connection, "explanation")
    used = {
        **stored.usage,
        "explanations": explained.total,
        "aborted": total_usage(stored.broken_off.usage.values()),
    }
    used = {role: usage for role, usage in used.items() if usage.calls}
    return {role: as_json(usage) for role, usage in {**used, "total": total_usage(used.values())}.items()}


def _numbers(result: EvaluationResult) -> dict[str, Any]:
    """Everything that follows from the counts of the rows."""
    rows, rules, reward = result.rows, result.rules_to_json(), result.averages.reward
    return {
        "denominators": {
            "rows": len(rows),
            "planned": result.planned,
            "finished": sum(row.finished for row in rows),
            "judged": result.n_scored,
            "successes": result.passed,
            "unjudged": dict(result.unjudged),
        },
        **result.passes.to_json(),
        "reward": reward and reward.to_json(),
        "rules": rules and {name: rules[name] for name in ("kept", "pass_power", "broken")},
        "failures": dict(result.failures),
        "noise_floor": noise_floor([(row.n_scored, row.passed) for row in rows]),
    }


def noise_floor(counts: Sequence[tuple[int, int]]) -> float | None:
    """The difference of Pass^1 within which two runs of the same agent lie 95 % of the time.

    Both runs have these rows with as many rollouts: 1.96 * sqrt(2 * sum(p * (1 - p) / n)) / rows, with
    p = (c + 1/2) / (n + 1), so that a row that always or never passed does not count as free of chance.
    None if nothing is judged.
    """
    rates = [((c + 0.5) / (n + 1), n) for n, c in counts if n]
    if not rates:
        return None
    return NORMAL * math.sqrt(2 * math.fsum(p * (1 - p) / n for p, n in rates)) / len(rates)


def _hash(card: Card) -> str:
    text = canonical({name: card[name] for name in card if name != "hash"})
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


# --- reading and checking


def read_card(path: Path) -> Card:
    """The card in a file, which may have been altered; raises ``UsageError`` for another file."""
    try:
        card = parsed_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", place=str(path)) from error
    except ValueError as error:
        raise UsageError(f"is not JSON: {error}", place=str(path), remedy=WRITE) from error
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise UsageError(f"is no card ({FORMAT})", place=str(path), remedy=WRITE)
    return card


def load_card(path: Path) -> EvaluationResult:
    """The evaluation that a card tells of; raises ``UsageError`` if the card contradicts itself."""
    card = read_card(path)
    faults = faults_of(card)
    if faults:
        raise UsageError(
            faults[0], place=str(path), remedy=f"See all: reward-kit export --format card --verify {path}."
        )
    return _evaluation(card, path)


def faults_of(card: Card) -> list[str]:
    """A line for each place in which a card contradicts itself; empty if it is consistent."""
    faults = ["hash: the card was altered after it was written"] if card.get("hash") != _hash(card) else []
    try:
        evaluation = _evaluation(card, Path())
        faults += [
            f"row {row['id']}: its counts cannot be: {row}"
            for row in card["rows"]
            if not _is_possible(row, strict=card["settings"]["errors_as_failures"])
        ]
        roles = {role: Usage(**usage) for role, usage in card["costs"].items() if role != "total"}
        derived = {
            **_numbers(evaluation),
            "costs": {**card["costs"], "total": as_json(total_usage(roles.values()))},
            "task": fingerprint([[row["id"], *_content(row["fingerprints"])] for row in card["rows"]]),
        }
        written_by = card["versions"]["reward-kit"]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return [*faults, f"is damaged: {type(error).__name__}: {error}"]
    stated = {name: card.get(name) for name in derived}
    if written_by != versions()["reward-kit"]:  # its intervals may have been others
        stated, derived = _without_intervals(stated), _without_intervals(derived)
    return [*faults, *_differences(stated, json.loads(json_text(derived)), "its rows give")]


def differences_from(card: Card, stored: EvaluationResult) -> list[str]:
    """A line for each field in which a card differs from the one that its evaluation gives now."""
    given, now = (
        {**one, "hash": None, "rows": _by_id(one.get("rows"))}
        for one in (card, card_of(stored, card.get("audit")))
    )
    return list(_differences(given, now, "the evaluation gives"))


def _by_id(rows: Any) -> Any:
    """The rows of a card by their ids, unless they are damaged."""
    if isinstance(rows, list) and all(isinstance(row, dict) and "id" in row for row in rows):
        return {str(row["id"]): row for row in rows}
    return rows


def _differences(card: Any, other: Any, gives: str, place: str = "") -> Iterator[str]:
    if isinstance(card, dict) and isinstance(other, dict):
        for name in dict.fromkeys([*card, *other]):
            inner = f"{place}.{name}" if place else name
            yield from _differences(card.get(name), other.get(name), gives, inner)
    elif isinstance(card, float) and isinstance(other, float) and math.isclose(card, other):
        return  # the last digits depend on the platform
    elif card != other or isinstance(card, bool) != isinstance(other, bool):
        yield f"{place}: the card says {_shown(card)}, {gives} {_shown(other)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _without_intervals(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kept = {"value", "tasks", "left_out"} & value.keys() if "left_out" in value else value.keys()
    return {name: _without_intervals(value[name]) for name in kept}


def _is_possible(row: Mapping[str, Any], *, strict: bool) -> bool:
    """True if the counts of a row do not contradict each other."""
    unjudged, failures = (sum(row[name].values()) for name in ("unjudged", "failures"))
    n = row["finished"] - (0 if strict else unjudged)
    counts = [row["planned"], row["finished"], row["n"], row["c"], unjudged, failures, row["rules_kept"] or 0]
    broken = row["broken_rules"].values()
    return (
        all(isinstance(number, int) and number >= 0 for number in (*counts, *broken))
        and row["c"] + failures <= row["n"] == n
        and row["finished"] <= row["planned"]
        and row["c"] == sum(map(is_success, row["rewards"]))
        and len(row["rewards"]) == row["finished"] - unjudged
        and (row["rules_kept"] or 0) <= row["c"]
        and all(number <= row["finished"] for number in broken)
    )


def _evaluation(card: Card, path: Path) -> EvaluationResult:
    aborted = usage_from_json({role: used for role, used in card["costs"].items() if role == "aborted"})
    rows = [
        RowResult(
            row["id"],
            row["planned"],
            (),
            row["n"],
            row["c"],
            finished=row["finished"],
            rewards=list(row["rewards"]),
            failures=Counter(row["failures"]),
            unjudged=Counter(row["unjudged"]),
            broken_rules=dict(row["broken_rules"]),
            rules_kept=row["rules_kept"] or 0,
        )
        for row in card["rows"]
    ]
    if len({row.row_id for row in rows}) < len(rows):
        raise ValueError("a row is there twice")
    if max((row.n_scored for row in rows), default=0) > len(card["pass_power"]):
        raise ValueError("a row has more judged rollouts than pass_power has values")
    return EvaluationResult(
        log_path=path,
        created=card["created"],
        eval_id=card["evaluation"],
        status=card["status"],
        reason=card["reason"],
        configuration=card["settings"],
        versions=card["versions"],
        rows=tuple(rows),
        usage=usage_from_json({role: used for role, used in card["costs"].items() if role in ROLES}),
        seconds=0.0,
        broken_off=BrokenOff(0, aborted),
        fingerprints={row["id"]: row["fingerprints"] for row in card["rows"]},
        code=card["code"],
    )
