"""The comparison of the oracle's answer with ours, and the deviations that are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.agent.tau import MAX_ERRORS, PARTS

if TYPE_CHECKING:
    from collections import Counter

    from trajectories import Domain

CHANCE = "texts with the id of a new bill, or with a timing"
LIMIT = "10 failed calls: their orchestrator ends it, their evaluator does not know"
RAISES = "their evaluator raises, ours gives 0"
READ = (
    "a reading tool called by its own name: the log entry that their judged state lacks, too, is not written"
)
LOGGED, LOG = "Executed: get_card_last_4_digits", "agent:user_discoverable_tool_calls"
GOLD = "data do not count, and differ: their sides are not synchronised between gold calls"
KEPT = {
    "mock": {RAISES, LIMIT},
    "airline": {LIMIT},
    "retail": {LIMIT},
    "telecom": {RAISES, LIMIT, GOLD, CHANCE},
    "banking_knowledge": {CHANCE, LIMIT, READ},
}
"""The deviations of each domain."""


def differences(
    theirs: dict[str, Any], ours: dict[str, Any], deviations: Counter[str], domain: Domain
) -> list[str]:
    """What differs, in lines; the deviations that are met are counted."""
    if theirs.get("at") == "start":
        return [f"their start raises {theirs['raises']}"]
    shared = domain.is_shared or any(each is None for each in theirs["start"].values())
    found = _of_start(theirs, ours, domain.state, shared=shared)
    hidden: set[str] = set()
    for number, (their, our) in enumerate(zip(theirs["calls"], ours["calls"], strict=True)):
        if their is None:
            continue
        changed = {unit: each for unit, each in their["changed"].items() if not (shared and _is_users(unit))}
        if LOGGED in their["content"] and set(changed) == {LOG} and not our["changed"]:
            deviations[READ] += 1
            hidden.add(LOG)
        changed, our_changed = (
            {unit: each for unit, each in one.items() if unit not in hidden}
            for one in (changed, our["changed"])
        )
        for name, one, other in (
            ("content", their["content"], our["content"]),
            ("error", their["error"], our["error"]),
            ("changed", changed, our_changed),
        ):
            if one != other:
                found.append(f"call {number} {name}: theirs {one!r}, ours {other!r}")
        if "B<random>" in their["content"] or "[Timing: …]" in their["content"]:
            deviations[CHANCE] += 1
    return found + _of_reward(theirs, ours, deviations, domain.name)


def _is_users(unit: str) -> bool:
    return unit.startswith("user:")


def _of_start(
    theirs: dict[str, Any], ours: dict[str, Any], fresh: dict[str, str], *, shared: bool
) -> list[str]:
    expected = {**fresh, **theirs["start"]}
    units = {unit for unit in {*expected, *ours["state"]} if not (shared and _is_users(unit))}
    return [
        f"start {unit}: theirs {expected.get(unit)}, ours {ours['state'].get(unit)}"
        for unit in sorted(units)
        if expected.get(unit) != ours["state"].get(unit)
    ]


def _of_reward(
    theirs: dict[str, Any], ours: dict[str, Any], deviations: Counter[str], domain: str
) -> list[str]:
    errors = sum(call["error"] for call in theirs["calls"] if call is not None)
    if errors >= MAX_ERRORS:
        deviations[LIMIT] += 1
        return [] if ours["reward"] == 0.0 else [f"reward: {errors} errors, ours {ours['reward']}"]
    if "raises" in theirs:
        deviations[RAISES] += 1
        return [] if ours["reward"] == 0.0 else [f"reward: theirs {theirs['raises']}, ours {ours['reward']}"]
    found = []
    if theirs["reward"] != ours["reward"]:
        found.append(f"reward: theirs {theirs['reward']}, ours {ours['reward']} ({ours['reason']})")
    for kind, score in theirs["parts"].items():
        if (our := ours["parts"].get(PARTS[kind])) != score:
            found.append(f"part {kind}: theirs {score}, ours {our}")
    for kind, details in theirs["details"].items():
        met = details if details is None or isinstance(details, bool) else all(details)
        our = ours["parts"].get(PARTS[kind])
        if met is not None and our is not None and kind not in theirs["parts"] and float(met) != our:
            if kind == "DB" and GOLD in KEPT[domain]:
                deviations[GOLD] += 1
            else:
                found.append(f"diagnostic {kind}: theirs {details}, ours {our}")
    if theirs["asked"] != ours["asked"]:
        found.append(f"judge asked: theirs {theirs['asked']}, ours {ours['asked']}")
    return found
