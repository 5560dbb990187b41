"""The benchmark's databases, as its tools know them, on the rows of a ``State``."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter

from reward_kit.agent.tau.tau2.models import Field, list_ids, mark_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reward_kit.agent.tau.tau2.state import State


class Objects(MutableMapping[str, Any]):
    """The objects of one kind by id, as a dict of the benchmark's; each is parsed when it is read."""

    def __init__(self, state: State, one: Field) -> None:
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

    def __init__(self, state: State, one: Field) -> None:
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


class Table:
    """A model with the dict ``data``, whose objects are rows, and ``notes``."""

    def __init__(self, state: State, one: Field, prefix: str) -> None:
        self.data = Objects(state, one)
        self._notes = Objects(state, Field("notes", f"{prefix}notes", "dict", _NOTES, _ALL_NOTES))
        self._name = one.name

    @property
    def notes(self) -> str:
        text: str = self._notes[self._name]
        return text


class View:
    """Stands for the benchmark's database object: its fields are read when they are first touched."""

    def __init__(
        self, state: State, database: type[BaseModel], fields: Mapping[str, Field], prefix: str
    ) -> None:
        vars(self).update(_state=state, _database=database, _fields=fields, _prefix=prefix, _parts={})

    def _part(self, name: str) -> Any:
        part = self._parts.get(name)
        if part is None:
            one = self._fields[name]
            if one.form == "table":
                part = Table(self._state, one, self._prefix)
            else:
                part = (Objects if one.form == "dict" else Items)(self._state, one)
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
        elif isinstance(part, Objects):
            part.replace(value)
        else:
            part.data.replace(value.data)

    def dump(self) -> dict[str, Any]:
        """All data as ``model_dump`` gives them."""
        return {name: self._dumped(name) for name in self._fields}

    def _dumped(self, name: str) -> Any:
        value = getattr(self, name)
        if isinstance(value, Table):
            return {"data": _dumped(dict(value.data)), "notes": value.notes}
        return _dumped(dict(value) if isinstance(value, Objects) else value)

    def update(self, data: BaseModel) -> None:
        for name in self._fields:
            setattr(self, name, getattr(data, name))


def _dumped(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(warnings=False)
    if isinstance(value, dict):
        return {key: _dumped(one) for key, one in value.items()}
    return [_dumped(one) for one in value] if isinstance(value, list) else value
