"""Parsing and checking of option values."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import cut
from reward_kit.errors import UnknownOptionError, UsageError

if TYPE_CHECKING:
    from reward_kit.agent.config import Option

MAX_ROLLOUTS = 1_000_000
"""Rollouts of one row; all are planned before the first one runs."""
NAME = re.compile(r"[A-Za-z0-9._-]+")
LONGEST_NAME = 200
"""Characters in an evaluation's name; its files' names are about 50 longer, and file systems take 255."""
OTHER_NAMES = {
    "limit": "max_tasks",
    "epochs": "n_rollouts",
    "num_trials": "n_rollouts",
    "log_dir": "output_dir",
    "agent_strategy": "agent",
    "user_strategy": "user",
    "user_model": "sim_model",
    "model_arg": "model_args",
}
"""Names of options in other tools and in older flags."""
_FOR_OBJECTS = {
    **{
        f"--{player}": f"Give it to evaluate() as {player}=, or name it by its import path, module:factory "
        "(__main__:factory in a notebook or the script itself)."
        for player in ("agent", "user")
    },
    "--model": "Give a model of your own as models={'agent': model}.",
    "--sim-model": "Give a model of your own as models={'user': model}.",
}
_WANTED = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


def unknown_option(name: str, known: Sequence[str]) -> UnknownOptionError:
    """The error for an unknown option, with the name that was probably meant."""
    meant = OTHER_NAMES.get(name) or next(iter(get_close_matches(name, known, n=1)), None)
    return UnknownOptionError(
        f"unknown option {name!r}", remedy=f"Did you mean {meant!r}?" if meant else None
    )


def split_ids(task_ids: str | Iterable[str | int]) -> tuple[str, ...]:
    """Row ids and positions, from a list or a comma-separated text."""
    if not isinstance(task_ids, Iterable):
        raise UsageError(
            f"--task-ids takes ids or positions, not {task_ids!r}",
            remedy='Give a list, or a text such as "0,3".',
        )
    parts = task_ids.split(",") if isinstance(task_ids, str) else map(str, task_ids)
    return tuple(part.strip() for part in parts if part.strip())


def key_values(given: Mapping[str, Any] | Iterable[str] | None, flag: str) -> dict[str, Any]:
    """Names and values, from a dict or from texts ``KEY=VALUE`` with values in JSON or plain text."""
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    if not isinstance(given, Iterable):
        raise UsageError(f"{flag} takes names and values, not {given!r}", remedy="Give a dict.")
    parsed = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise UsageError(f"{flag} {item!r} is not KEY=VALUE")
        try:
            parsed[name] = json.loads(text)
        except ValueError:
            parsed[name] = text
    return parsed


def check_value(option: Option, value: Any) -> None:
    """Raise ``UsageError`` for a value of the wrong type or out of range."""
    flag, kind = option.flag, option.kind
    if value is None:
        return
    if not _fits(kind, value):
        raise UsageError(f"{flag} takes {_WANTED[kind]}, not {value!r}", remedy=_FOR_OBJECTS.get(flag))
    if option.choices and value not in option.choices:
        raise UsageError(f"{flag} must be one of {', '.join(option.choices)}, not {value!r}")
    if option.minimum is not None and not value >= option.minimum:  # nan is not more, either
        remedy = f"Omit {flag} for {option.without}." if option.without else None
        raise UsageError(f"{flag} must be at least {option.minimum:g}, not {value}", remedy=remedy)
    if option.maximum is not None and value > option.maximum:
        raise UsageError(f"{flag} must be at most {option.maximum:.15g}, not {value}")


def _fits(kind: type, value: Any) -> bool:
    if kind is bool:
        return value in (True, False)
    if kind in (int, float):
        return isinstance(value, kind | int) and not isinstance(value, bool)
    return kind is not str or isinstance(value, str | os.PathLike | tuple)


def check_eval_id(name: object, flag: str = "--eval-id") -> None:
    """Raise ``UsageError`` unless an evaluation can have this name, which names files."""
    if not isinstance(name, str):
        raise UsageError(f"{flag} takes the name of an evaluation, not {name!r}")
    if not NAME.fullmatch(name) or name in (".", "..") or len(name) > LONGEST_NAME:
        raise UsageError(
            f"{flag} {cut(name, LONGEST_NAME)!r} is not a valid file name",
            remedy=f"Use at most {LONGEST_NAME} letters, digits, '.', '_' and '-'.",
        )
    if name == "latest" and flag == "--eval-id":
        raise UsageError(f"{flag} latest means the last evaluation", remedy="Choose another name.")
