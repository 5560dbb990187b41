"""An option of an evaluation: what the command line, Python and the stored configuration make of it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from reward_kit.agent.base.text import closest, cut
from reward_kit.errors import UnknownOptionError, UsageError

MAX_ROLLOUTS = 1_000_000
"""Rollouts of one row; all are planned before the first one runs."""
NAME = re.compile(r"[A-Za-z0-9._-]+")
LONGEST_NAME = 200
"""Characters in an evaluation's name; its files' names are about 50 longer, and file systems take 255."""
_WANTED = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True, slots=True)
class Option:
    """An option: a field of the configuration and its command-line form.

    ``kind`` is the type of its value (``dict``: repeated ``key=value``). ``env`` names the environment
    variable that is the default. ``bare`` is the value of a flag that nothing follows. ``without`` says what
    omitting the option means, where other tools have 0 for it. ``--help`` lists the ``usual`` options,
    ``--help-all`` all but ``hidden`` ones, which another option or command has replaced. The command line
    accepts ``several`` values of an option. ``other_names`` are those in other tools.

    A ``fixed`` option cannot change when an evaluation is resumed, since results under different values do
    not belong together; a ``scored`` one can, and changes the scores. A resumed evaluation keeps its options
    but those of the ``run``, and those of the ``command``, which do nothing in Python: ``in_python`` says
    what does; branches of one of its rollouts leave those of the ``whole``, too. ``in_sweep`` says what to do
    instead in an evaluation of several models. A ``recorded`` option has its own value in a results file.
    ``secret`` values may hold keys. ``for_objects`` is the remedy for an object in place of a text.
    ``is_path`` marks the places of dataset and bundle.
    """

    flags: tuple[str, ...]
    help: str
    group: str
    kind: type = str
    metavar: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    env: str | None = None
    bare: str | None = None
    without: str | None = None
    usual: bool = False
    hidden: bool = False
    several: bool = False
    other_names: tuple[str, ...] = ()
    fixed: bool = False
    scored: bool = False
    scope: Literal["evaluation", "whole", "run", "command"] = "evaluation"
    in_python: str | None = None
    in_sweep: str | None = None
    recorded: bool = False
    secret: bool = False
    for_objects: str | None = None
    is_path: bool = False

    @property
    def flag(self) -> str:
        """The long flag: ``--max-steps``."""
        return next(flag for flag in self.flags if flag.startswith("--")).split("/")[0]

    def check(self, value: Any) -> None:
        """Raise ``UsageError`` for a value of the wrong type or out of range."""
        if not _fits(self.kind, value):
            fault = f"{self.flag} takes {_WANTED[self.kind]}, not {value!r}"
            raise UsageError(fault, remedy=self.for_objects)
        if self.choices and value not in self.choices:
            raise UsageError(f"{self.flag} must be one of {', '.join(self.choices)}, not {value!r}")
        if self.minimum is not None and not value >= self.minimum:  # nan is not more, either
            remedy = f"Omit {self.flag} for {self.without}." if self.without else None
            raise UsageError(f"{self.flag} must be at least {self.minimum:g}, not {value}", remedy=remedy)
        if self.maximum is not None and value > self.maximum:
            raise UsageError(f"{self.flag} must be at most {self.maximum:.15g}, not {value}")


def unknown_option(name: str, known: Collection[str], meant: str | None) -> UnknownOptionError:
    """The error for an unknown option, with the name that was probably ``meant``."""
    meant = meant or closest(name, known)
    return UnknownOptionError(
        f"unknown option {name!r}", remedy=f"Did you mean {meant!r}?" if meant else None
    )


def split_ids(task_ids: str | Iterable[str | int]) -> tuple[str, ...]:
    """Row ids and positions, from a list or a comma-separated text."""
    if not isinstance(task_ids, Iterable):
        raise UsageError(
            f"--rows takes ids or positions, not {task_ids!r}",
            remedy='Give a list, or a text such as "0,3".',
        )
    parts = task_ids.split(",") if isinstance(task_ids, str) else map(str, task_ids)
    return tuple(part.strip() for part in parts if part.strip())


def key_values(given: Mapping[str, Any] | Iterable[str] | None, option: Option) -> dict[str, Any]:
    """Names and values, from a dict or from texts ``KEY=VALUE`` with values in JSON or plain text."""
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    if not isinstance(given, Iterable):
        raise UsageError(f"{option.flag} takes names and values, not {given!r}", remedy="Give a dict.")
    parsed = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise UsageError(f"{option.flag} {item!r} is not KEY=VALUE")
        try:
            parsed[name] = json.loads(text)
        except ValueError:
            parsed[name] = text
    return parsed


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
