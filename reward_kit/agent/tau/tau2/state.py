"""The benchmark's data as rows: a row per object in the table ``objects``, read when it is touched.

``objects`` (kind, id, json) is what changes, comparisons and rules see. The hidden table ``tau2_state`` has
each object that differs from the seed once more, with its exact types (``exact``), and the state that the
benchmark keeps in its Python objects. A call reads that table, and of the seed what it touches; objects of
the seed are parsed once per process and shared by the calls that only read.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from reward_kit.agent.objects import SCHEMA as OBJECTS
from reward_kit.agent.objects import TABLE
from reward_kit.agent.tau.tau2.models import Field, exact_text, exact_value, json_of, mark_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reward_kit.agent.tau.tau2.view import Items, Objects

STATE = "tau2_state"
SCHEMA = (
    f"{OBJECTS};\nCREATE TABLE {STATE} (kind TEXT, id TEXT, json TEXT, added INTEGER, PRIMARY KEY (kind, id))"
)
SEED = "@seed"
"""The kind of the row with the key of the seed."""
NAME = "@name"
"""The kind of the row that names a state other than the seed's."""
SHARED = "@shared"
"""The kind of the row that says that the user's tools work on the agent's data."""

_PROGRAM, _COUNT = token_hex(8), count()
"""Parts of names that no other process gives, a forked one neither."""

_SELECT_STATE = f"SELECT kind, id, json, added FROM {STATE} ORDER BY rowid"  # noqa: S608 - constants
_SELECT_NAME = f"SELECT json FROM {STATE} WHERE kind IN ('{NAME}', '{SEED}') ORDER BY kind"  # noqa: S608
_PUT_STATE = (
    f"INSERT INTO {STATE} VALUES (?, ?, ?, ?) "  # noqa: S608
    "ON CONFLICT DO UPDATE SET json = excluded.json, added = excluded.added"
)
_DROP_STATE = f"DELETE FROM {STATE} WHERE kind = ? AND id = ?"  # noqa: S608
_SELECT_KIND = f"SELECT id, json FROM {TABLE} WHERE kind = ? ORDER BY rowid"  # noqa: S608
_SELECT_ONE = f"SELECT json FROM {TABLE} WHERE kind = ? AND id = ?"  # noqa: S608
_INSERT = f"INSERT INTO {TABLE} VALUES (?, ?, ?)"  # noqa: S608
_UPDATE = f"UPDATE {TABLE} SET json = ? WHERE kind = ? AND id = ?"  # noqa: S608
_DELETE = f"DELETE FROM {TABLE} WHERE kind = ? AND id = ?"  # noqa: S608


# --- the objects of the seed


@dataclass(slots=True)
class _Seeded:
    """An object of the seed: its text, and when it was needed, its value and mark."""

    text: str
    value: Any = None
    mark: bytes | None = None


@dataclass(slots=True)
class _Seed:
    """The objects of a seed that this process has read; ``complete`` are the kinds of which all are."""

    kinds: dict[str, dict[str, _Seeded]] = field(default_factory=dict)
    complete: set[str] = field(default_factory=set)


_SEEDS: OrderedDict[str, _Seed] = OrderedDict()
_MOST_SEEDS = 8


def _seed(key: str) -> _Seed:
    found = _SEEDS.setdefault(key, _Seed())
    _SEEDS.move_to_end(key)
    if len(_SEEDS) > _MOST_SEEDS:
        _SEEDS.popitem(last=False)
    return found


# --- the state of one call


class State:
    """The objects of a database for one call; with ``writes`` they are the call's own and are written."""

    def __init__(self, db: Any, classes: Mapping[str, type], *, writes: bool) -> None:
        self.db = db
        self.classes = classes
        self.writes = writes
        self.changed: dict[str, dict[str, tuple[str | None, bool]]] = {}
        for kind, key, text, added in db.fetch_all(_SELECT_STATE):
            self.changed.setdefault(kind, {})[key] = text, bool(added)
        self.seed = _seed(self.note(SEED) or "")
        self.name = self.note(NAME) or self.note(SEED)
        self.is_dirty = False
        self.parts: list[Objects | Items] = []

    def note(self, kind: str, key: str = "") -> str | None:
        """A row of the hidden table that is no object."""
        return self.changed.get(kind, {}).get(key, (None, False))[0]

    def set_note(self, kind: str, text: str, key: str = "") -> None:
        if self.note(kind, key) != text:
            self.put(kind, key, text, added=False)

    def put(self, kind: str, key: str, text: str | None, *, added: bool) -> None:
        """Write a row of the hidden table."""
        self.is_dirty = True
        self.db.execute(_PUT_STATE, (kind, key, text, int(added)))
        self.changed.setdefault(kind, {})[key] = text, added

    def seeded(self, kind: str) -> dict[str, _Seeded]:
        """The objects of a kind that are as in the seed, in its order."""
        known = self.seed.kinds.setdefault(kind, {})
        if kind in self.seed.complete:
            return known
        changed = self.changed.get(kind, {})
        rows = self.db.fetch_all(_SELECT_KIND, (kind,))
        found = {key: known.get(key) or _Seeded(text) for key, text in rows if key not in changed}
        if not changed:
            self.seed.kinds[kind] = found
            self.seed.complete.add(kind)
        else:
            known.update(found)
        return found

    def one_seeded(self, kind: str, key: str) -> _Seeded | None:
        known = self.seed.kinds.setdefault(kind, {})
        if key in known or kind in self.seed.complete:
            return known.get(key)
        text = self.db.fetch_val(_SELECT_ONE, (kind, key))
        if text is not None:
            known[key] = _Seeded(text)
        return known.get(key)

    def keys(self, kind: str) -> list[str]:
        """The ids of a kind, in their order."""
        changed = self.changed.get(kind)
        if not changed:
            return list(self.seeded(kind))
        if kind in self.seed.complete:
            kept = [key for key in self.seeded(kind) if key not in changed or _stays(changed[key])]
            return [*kept, *(key for key, (text, added) in changed.items() if added and text is not None)]
        return [key for key, _ in self.db.fetch_all(_SELECT_KIND, (kind,))]

    def has(self, kind: str, key: str) -> bool:
        changed = self.changed.get(kind, {}).get(key)
        return self.one_seeded(kind, key) is not None if changed is None else changed[0] is not None

    def read(self, one: Field, key: str) -> tuple[Any, bytes]:
        """An object and its mark; raises ``KeyError``."""
        changed = self.changed.get(one.kind, {}).get(key)
        if changed is not None:
            if changed[0] is None:
                raise KeyError(key)
            value = exact_value(changed[0], self.classes)
            return value, mark_of(value)
        seeded = self.one_seeded(one.kind, key)
        if seeded is None:
            raise KeyError(key)
        if not self.writes:
            if seeded.value is None:
                seeded.value = one.adapter.validate_json(seeded.text)
            return seeded.value, b""
        value = one.adapter.validate_json(seeded.text)
        if seeded.mark is None:
            seeded.mark = mark_of(value)
        return value, seeded.mark

    def write(self) -> None:
        for part in self.parts:
            part.write()

    def rename(self) -> None:
        """Give the state a name of its own, if it has changed since it was named."""
        if self.is_dirty:
            self.name = f"{_PROGRAM}-{os.getpid()}-{next(_COUNT)}"
            self.set_note(NAME, self.name)
            self.is_dirty = False

    def write_one(self, kind: str, key: str, value: Any, *, is_new: bool) -> None:
        """Write one object; ``is_new`` puts it at the end."""
        text, exact = json_of(value), exact_text(value)
        if not is_new:
            self.db.execute(_UPDATE, (text, kind, key))
            self.put(kind, key, exact, added=self.changed.get(kind, {}).get(key, (None, False))[1])
            return
        self.db.execute(_INSERT, (kind, key, text))
        if self.changed.get(kind, {}).pop(key, None) is not None:
            self.db.execute(_DROP_STATE, (kind, key))  # it was removed before, and now comes last
        self.put(kind, key, exact, added=True)

    def delete_one(self, kind: str, key: str) -> None:
        self.db.execute(_DELETE, (kind, key))
        self.put(kind, key, None, added=True)


def name_of(db: Any) -> str | None:
    """The name of the state of a database: the same name, the same state."""
    name: str | None = db.fetch_val(_SELECT_NAME)
    return name


def _stays(changed: tuple[str | None, bool]) -> bool:
    return changed[0] is not None and not changed[1]
