"""What was set differently in two evaluations, and which code was another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.evaluation_config import OPTIONS, flag_of
from reward_kit.agent.results import asked_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.runs.stored_evaluation import StoredEvaluation

ALSO_TELLING = ("errors_as_failures",)
"""Options that may differ when an evaluation goes on, and yet change its numbers."""
UNTELLING = ("platform",)
"""Versions that say nothing of results."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An option or a version that is not the same; the values as a person reads them."""

    name: str
    a: str
    b: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "a": self.a, "b": self.b}


def different_settings(a: StoredEvaluation, b: StoredEvaluation) -> Iterator[Setting]:
    """The options that results depend on, and versions."""
    for name, option in OPTIONS.items():
        in_both = name in a.configuration and name in b.configuration
        if in_both and (option.fixed or name in ALSO_TELLING):
            yield from _different(flag_of(name), _value(a, name), _value(b, name))
    for name, version in a.versions.items():
        if name in b.versions and name not in UNTELLING:
            yield from _different(f"version of {name}", version, b.versions[name])


def different_code(a: StoredEvaluation, b: StoredEvaluation) -> dict[str, tuple[str | None, str | None]]:
    """The modules of bundle, agent and user that are not the same, with their fingerprints (None: not there).

    Nothing where one of the two has no log, which alone tells.
    """
    if not a.fingerprints or not b.fingerprints:
        return {}
    both = {name: (a.code.get(name), b.code.get(name)) for name in dict.fromkeys([*a.code, *b.code])}
    return {name: (before, now) for name, (before, now) in both.items() if before != now}


def _value(stored: StoredEvaluation, name: str) -> Any:
    """What was set; a model that a person's own agent left unasked counts for nothing."""
    if name == "model":
        return asked_model(stored.configuration, stored.usage, stored.outcomes)
    return stored.configuration[name]


def _different(name: str, a: Any, b: Any) -> Iterator[Setting]:
    if a != b:
        yield Setting(name, _shown(a), _shown(b))


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
