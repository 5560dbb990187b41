"""Data of JSON objects in a table, for tools that were written for a dict (docs/from-json.md).

``seed.py`` writes the objects, a row each; a tool reads and changes them as a dict of dicts. Only the objects
that are touched are parsed. Those that have changed are written back at the end, one row each, so that
changes, comparisons and rules see them one by one. ``on_objects`` makes tools of functions whose first
parameter is the data.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Self

from reward_kit.errors import BundleError, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import BaseModel

TABLE = "objects"
SCHEMA = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (kind TEXT, id TEXT, json TEXT NOT NULL, PRIMARY KEY (kind, id))"
)
READ = f"SELECT json FROM {TABLE} WHERE kind = ? AND id = ?"  # noqa: S608 - a constant
READ_ALL = f"SELECT id, json FROM {TABLE} WHERE kind = ? ORDER BY rowid"  # noqa: S608
_IDS = f"SELECT id FROM {TABLE} WHERE kind = ? ORDER BY rowid"  # noqa: S608
INSERT = f"INSERT INTO {TABLE} VALUES (?, ?, ?)"  # noqa: S608
UPDATE = f"UPDATE {TABLE} SET json = ? WHERE kind = ? AND id = ?"  # noqa: S608
DELETE = f"DELETE FROM {TABLE} WHERE kind = ? AND id = ?"  # noqa: S608


def seed_objects(db: Any, data: Mapping[str, Mapping[str, Any]]) -> None:
    """Write ``{kind: {id: object}}`` in its order; makes the table ``objects`` (kind, id, json) if need be.

    Objects are JSON values or pydantic models. Raises ``BundleError`` for an object that JSON cannot hold,
    and for a kind whose objects have no ids.
    """
    db.execute(SCHEMA)
    for kind, found in data.items():
        if not isinstance(found, Mapping):
            fault = f"the objects of {kind!r} have no ids: they are of the type {type(found).__name__}"
            raise BundleError(fault, remedy='Give a dict, such as {one["id"]: one for one in objects}.')
    rows = (
        (kind, key, _text(kind, key, value)) for kind, found in data.items() for key, value in found.items()
    )
    db.executemany(INSERT, rows)


class Objects(MutableMapping[str, "ObjectsOfKind"]):
    """The objects of a synchronous database by kind, then by id; as attributes, too (``data.tickets``).

    ``models`` are pydantic models by kind, which its objects become. The end of the block writes what has
    changed, unless it ends with an exception.
    """

    def __init__(self, db: Any, models: Mapping[str, type[BaseModel]] | None = None) -> None:
        self._db = db
        self._models = models or {}
        self._kinds: dict[str, ObjectsOfKind] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.write()

    def write(self) -> None:
        """Write the objects that have changed, been added or been removed since they were read."""
        for kind in self._kinds.values():
            kind.write()

    def __contains__(self, kind: object) -> bool:
        return isinstance(kind, str) and len(self[kind]) > 0

    def __getitem__(self, kind: str) -> ObjectsOfKind:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = ObjectsOfKind(self._db, kind, self._models.get(kind))
        return found

    def __getattr__(self, kind: str) -> ObjectsOfKind:
        if kind.startswith("_"):
            raise AttributeError(kind)
        return self[kind]

    def __setattr__(self, kind: str, values: Any) -> None:
        if kind.startswith("_"):
            super().__setattr__(kind, values)
        else:
            self[kind] = values

    def __setitem__(self, kind: str, values: Any) -> None:
        found = self[kind]
        if values is not found:
            found.clear()
            found.update(values)

    def __delitem__(self, kind: str) -> None:
        self[kind].clear()

    def __iter__(self) -> Iterator[str]:
        stored = self._db.fetch_all(f"SELECT kind FROM {TABLE} GROUP BY kind ORDER BY min(rowid)")  # noqa: S608
        names = dict.fromkeys([*(row[0] for row in stored), *self._kinds])
        return iter([name for name in names if len(self[name])])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class ObjectsOfKind(MutableMapping[str, Any]):
    """The objects of one kind by id, in the order in which they were added.

    Each is parsed when it is first read, and remembered.
    """

    def __init__(self, db: Any, name: str, model: type[BaseModel] | None = None) -> None:
        self._db = db
        self._name = name
        self._model = model
        self._known: dict[str, Any] = {}
        self._texts: dict[str, str] = {}  # of stored objects, as read
        self._added: dict[str, None] = {}
        self._removed: dict[str, None] = {}

    def __getitem__(self, key: str) -> Any:
        if key in self._known:
            return self._known[key]
        is_gone = not isinstance(key, str) or key in self._removed
        if is_gone or (row := self._db.fetch_one(READ, (self._name, key))) is None:
            raise KeyError(key)
        return self._read(key, row[0])

    def _read(self, key: str, text: str) -> Any:
        try:
            value = json.loads(text) if self._model is None else self._model.model_validate_json(text)
        except ValueError as error:  # of the data, and no refusal of the function
            words = str(error).partition(" [type=")[0].split()
            raise BundleError(f"{self._name} {key!r} cannot be read: {' '.join(words)}") from error
        self._texts[key] = _text(self._name, key, value)  # as it would be written unchanged
        self._known[key] = value
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise TypeError(f"the ids of {self._name} are texts, as in JSON, not {key!r}")
        if not self._is_stored(key):
            self._added[key] = None
        self._known[key] = value

    def __delitem__(self, key: str) -> None:
        stored = self._is_stored(key)
        if not stored and key not in self._added:
            raise KeyError(key)
        self._known.pop(key, None)
        self._added.pop(key, None)
        if stored:
            self._removed[key] = None

    def _is_stored(self, key: str) -> bool:
        """True if the table has the object, and it was not removed since; notes its text."""
        if key in self._removed:
            return False
        if key not in self._texts and key not in self._added:
            row = self._db.fetch_one(READ, (self._name, key))
            if row is not None:
                self._texts[key] = _text(self._name, key, json.loads(row[0]))
        return key in self._texts

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and (key in self._added or self._is_stored(key))

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids())

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._ids())

    def __len__(self) -> int:
        return len(self._ids())

    def _ids(self) -> list[str]:
        stored = (row[0] for row in self._db.fetch_all(_IDS, (self._name,)))
        return [*(key for key in stored if key not in self._removed), *self._added]

    def clear(self) -> None:
        """Remove all objects, without reading them."""
        self._removed |= dict.fromkeys(key for key in self._ids() if key not in self._added)
        self._known, self._added = {}, {}

    def popitem(self) -> tuple[str, Any]:
        """Remove and return the id and the object that were added last."""
        for key in reversed(self):
            return key, self.pop(key)
        raise KeyError(f"there are no {self._name}")

    def values(self) -> Any:
        """The objects, read in one query."""
        self._read_all()
        return super().values()

    def items(self) -> Any:
        """The ids and objects, read in one query."""
        self._read_all()
        return super().items()

    def _read_all(self) -> None:
        for key, text in self._db.fetch_all(READ_ALL, (self._name,)):
            if key not in self._known and key not in self._removed:
                self._read(key, text)

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{key!r}: …' for key in self)}}}"

    def write(self) -> None:
        """Write the changed objects."""
        for key in self._removed:
            self._db.execute(DELETE, (self._name, key))
            self._texts.pop(key, None)
        for key, value in self._known.items():
            text = _text(self._name, key, value)
            before = self._texts.get(key)
            if before is None:
                self._db.execute(INSERT, (self._name, key, text))
            elif before != text:
                self._db.execute(UPDATE, (text, self._name, key))
            self._texts[key] = text
        self._added.clear()
        self._removed.clear()


def _text(kind: str, key: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=_of_model)
    except (TypeError, ValueError) as error:
        raise BundleError(f"{kind} {key!r} cannot be written as JSON: {error}") from error


def _of_model(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is no JSON value")


def on_objects(
    function: Callable[..., Any],
    *,
    models: Mapping[str, type[BaseModel]] | None = None,
    errors: tuple[type[Exception], ...] = (ValueError,),
) -> Callable[..., Any]:
    """The function on a rollout's objects in place of its first parameter, to be registered with ``R.tool``.

    Exceptions of the types ``errors`` become ``ToolError``, which the model reads; after any exception
    nothing is written.
    """
    if inspect.iscoroutinefunction(function):
        raise BundleError("on_objects() takes no async function", remedy='Write a plain "def".')
    _, *own = inspect.signature(function, eval_str=True).parameters.values()

    @functools.wraps(function)
    def call(db: Any, **arguments: Any) -> Any:
        with Objects(db, models) as data:
            try:
                return function(data, **arguments)
            except errors as error:
                raise ToolError(f"there is no {error}" if type(error) is KeyError else str(error)) from error

    database = inspect.Parameter("db", inspect.Parameter.KEYWORD_ONLY)
    call.__signature__ = inspect.Signature([*own, database])  # type: ignore[attr-defined]  # what R.tool reads
    call.__annotations__ = {}
    return call
