"""The benchmark's data as rows: a row per object in the table ``objects``, read when it is touched.

``objects`` (kind, id, json) is what changes, comparisons and rules see. The hidden table ``tau2_state`` has
each object that differs from the seed once more, with its exact types, and the state that the benchmark keeps
in its Python objects. A call reads that table, and of the seed what it touches; those objects are parsed once
per process and shared by the calls that only read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from secrets import token_hex
from typing import Any

from pydantic import BaseModel, TypeAdapter

from reward_kit.agent.objects import DELETE, INSERT, READ, READ_ALL, UPDATE
from reward_kit.agent.objects import SCHEMA as OBJECTS
from reward_kit.agent.tau.tau2.models import DataField, exact_text, exact_value, json_of, list_ids, mark_of

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


@lru_cache(maxsize=8)
def _seed(_key: str) -> _Seed:
    """The objects of the seed with a key that this process has read."""
    return _Seed()


# --- the state of one call


class WorldState:
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
        self.parts: list[ObjectsOfField | Items] = []

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
        rows = self.db.fetch_all(READ_ALL, (kind,))
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
        if (text := self.db.fetch_val(READ, (kind, key))) is not None:
            known[key] = _Seeded(text)
        return known.get(key)

    def keys(self, kind: str) -> list[str]:
        """The ids of a kind, in their order."""
        if not (changed := self.changed.get(kind)):
            return list(self.seeded(kind))
        if kind in self.seed.complete:
            there = {key: added for key, (text, added) in changed.items() if text is not None}
            kept = [key for key in self.seeded(kind) if not there.get(key, key in changed)]
            return [*kept, *(key for key, added in there.items() if added)]
        return [key for key, _ in self.db.fetch_all(READ_ALL, (kind,))]

    def has(self, kind: str, key: str) -> bool:
        changed = self.changed.get(kind, {}).get(key)
        return self.one_seeded(kind, key) is not None if changed is None else changed[0] is not None

    def read(self, one: DataField, key: str) -> tuple[Any, bytes]:
        """An object and its mark; raises ``KeyError``."""
        if (changed := self.changed.get(one.kind, {}).get(key)) is not None:
            if changed[0] is None:
                raise KeyError(key)
            value = exact_value(changed[0], self.classes)
            return value, mark_of(value)
        if (seeded := self.one_seeded(one.kind, key)) is None:
            raise KeyError(key)
        if not self.writes:
            if seeded.value is None:
                seeded.value = one.adapter.validate_json(seeded.text)
            return seeded.value, b""
        value = one.adapter.validate_json(seeded.text)
        if seeded.mark is None:
            seeded.mark = mark_of(value)
        return value, seeded.mark

    def rename(self) -> None:
        """Give the state a new name, if it has changed since it was named."""
        if self.is_dirty:
            self.name = f"{_PROGRAM}-{os.getpid()}-{next(_COUNT)}"
            self.set_note(NAME, self.name)
            self.is_dirty = False

    def write_one(self, kind: str, key: str, value: Any, *, is_new: bool) -> None:
        """Write one object; ``is_new`` puts it at the end."""
        text, exact = json_of(value), exact_text(value)
        if not is_new:
            self.db.execute(UPDATE, (text, kind, key))
            self.put(kind, key, exact, added=self.changed.get(kind, {}).get(key, (None, False))[1])
            return
        self.db.execute(INSERT, (kind, key, text))
        if self.changed.get(kind, {}).pop(key, None) is not None:
            self.db.execute(_DROP_STATE, (kind, key))  # it was removed before, and now comes last
        self.put(kind, key, exact, added=True)

    def delete_one(self, kind: str, key: str) -> None:
        self.db.execute(DELETE, (kind, key))
        self.put(kind, key, None, added=True)


def name_of(db: Any) -> str | None:
    """The name of the state of a database: the same name, the same state."""
    name: str | None = db.fetch_val(_SELECT_NAME)
    return name


# --- the databases as the benchmark's tools know them


class ObjectsOfField(MutableMapping[str, Any]):
    """The objects of one kind by id, as a dict of the benchmark's; each is parsed when it is read."""

    def __init__(self, state: WorldState, one: DataField) -> None:
        self._state = state
        self._field = one
        self._live: dict[Any, tuple[Any, bytes | None]] = {}
        self._removed: dict[str, None] = {}
        self._mark: bytes | None = None
        state.parts.append(self)

    def __getitem__(self, key: str) -> Any:
        if key in self._live:
            return self._live[key][0]
        if key in self._removed or not isinstance(key, str):
            raise KeyError(key)
        found = self._live[key] = self._state.read(self._field, key)
        return found[0]

    def __setitem__(self, key: str, value: Any) -> None:
        stored = self._live.get(key)
        if stored is None and key not in self._removed and self._state.has(self._field.kind, key):
            stored = self._state.read(self._field, key)
        self._live[key] = value, stored[1] if stored else None

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._live.pop(key, None)
        if self._state.has(self._field.kind, key):
            self._removed[key] = None

    def __contains__(self, key: object) -> bool:
        if key in self._live:
            return True
        return isinstance(key, str) and key not in self._removed and self._state.has(self._field.kind, key)

    def __iter__(self) -> Iterator[str]:
        stored = [key for key in self._state.keys(self._field.kind) if key not in self._removed]
        new = [key for key, (_, mark) in self._live.items() if mark is None]
        return iter([*stored, *new])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def replace(self, values: Mapping[str, Any]) -> None:
        """Hold ``values`` alone, in their order."""
        known = list(self)
        if list(values)[: len(known)] != known:
            self.clear()
        self.update(values)

    def write(self) -> None:
        whole = self._field.whole.dump_json({key: one[0] for key, one in self._live.items()}, warnings=False)
        if whole == self._mark and not self._removed:
            return
        self._mark = whole
        kind = self._field.kind
        for key in self._removed:
            self._state.delete_one(kind, key)
        self._removed.clear()
        for key, (value, before) in self._live.items():
            mark = mark_of(value)
            if mark != before:
                self._state.write_one(kind, key, value, is_new=before is None)
                self._live[key] = value, mark


class Items:
    """The objects of one kind as a list of the benchmark's, or the single object of a field."""

    def __init__(self, state: WorldState, one: DataField) -> None:
        self._state = state
        self._field = one
        self._is_list = one.form == "list"
        self._marks: dict[str, bytes] = {}
        values = []
        for key in state.keys(one.kind):
            value, self._marks[key] = state.read(one, key)
            values.append(value)
        self.value: Any = values if self._is_list else values[0]
        self._whole = self._whole_mark()
        state.parts.append(self)

    def _whole_mark(self) -> bytes | None:
        """The mark of a list; that of a single object is its own."""
        if not self._is_list or not self._state.writes:
            return None
        return self._field.whole.dump_json(self.value, warnings=False)

    def write(self) -> None:
        whole = self._whole_mark()
        if self._is_list and whole == self._whole:
            return
        self._whole = whole
        kind = self._field.kind
        values = self.value if self._is_list else [self.value]
        keys = list_ids(values) if self._is_list else list(self._marks)
        if keys[: len(self._marks)] != list(self._marks):
            for key in self._marks:
                self._state.delete_one(kind, key)
            self._marks = {}
        for key, value in zip(keys, values, strict=True):
            mark, before = mark_of(value), self._marks.get(key)
            if mark != before:
                self._state.write_one(kind, key, value, is_new=before is None)
                self._marks[key] = mark


_NOTES, _ALL_NOTES = TypeAdapter(str), TypeAdapter(dict[str, str])


class NotedObjects:
    """A model with the dict ``data``, whose objects are rows, and ``notes``."""

    def __init__(self, state: WorldState, one: DataField, prefix: str) -> None:
        self.data = ObjectsOfField(state, one)
        self._notes = ObjectsOfField(state, DataField("notes", f"{prefix}notes", "dict", _NOTES, _ALL_NOTES))
        self._name = one.name

    @property
    def notes(self) -> Any:
        return self._notes[self._name]


class View:
    """Stands for the benchmark's database object: its fields are read when they are first touched."""

    def __init__(
        self, state: WorldState, database: type[BaseModel], fields: Mapping[str, DataField], prefix: str
    ) -> None:
        vars(self).update(_state=state, _database=database, _fields=fields, _prefix=prefix, _parts={})

    def _part(self, name: str) -> Any:
        part = self._parts.get(name)
        if part is None:
            one = self._fields[name]
            if one.form == "table":
                part = NotedObjects(self._state, one, self._prefix)
            else:
                part = (ObjectsOfField if one.form == "dict" else Items)(self._state, one)
            self._parts[name] = part
        return part

    def __getattr__(self, name: str) -> Any:
        if name in self._fields:
            part = self._part(name)
            return part.value if isinstance(part, Items) else part
        found = vars(self._database).get(name)
        if callable(found):
            return found.__get__(self)
        raise AttributeError(f"'{self._database.__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._fields:
            raise ValueError(f'"{self._database.__name__}" object has no field "{name}"')
        part = self._part(name)
        if isinstance(part, Items):
            part.value = value
        elif isinstance(part, ObjectsOfField):
            part.replace(value)
        else:
            part.data.replace(value.data)

    def dump(self) -> dict[str, Any]:
        """All data as ``model_dump`` gives them."""
        return {name: _dumped(getattr(self, name)) for name in self._fields}

    def update(self, data: BaseModel) -> None:
        for name in self._fields:
            setattr(self, name, getattr(data, name))


def _dumped(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(warnings=False)
    if isinstance(value, NotedObjects):
        return {"data": _dumped(value.data), "notes": value.notes}
    if isinstance(value, Mapping):
        return {key: _dumped(one) for key, one in value.items()}
    return [_dumped(one) for one in value] if isinstance(value, list) else value
