"""One row of a query, usable as a tuple, by column name and by attribute."""

from __future__ import annotations

import functools
import keyword
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_OWN_NAMES = frozenset({"keys", "get"})


class Row(tuple[Any, ...]):
    """A tuple of column values that also answers ``row["name"]``, ``row.name`` and ``dict(row)``.

    Equal to any tuple of the same values.  Where two columns share a name, the name means the first one.
    Instances come from :func:`row_type`, one subclass per list of columns.
    """

    __slots__ = ()
    _fields: tuple[str, ...] = ()
    _positions: dict[str, int] = {}  # noqa: RUF012 - replaced per subclass, never changed

    def __getitem__(self, key: Any) -> Any:
        """The value at a position, the values of a slice, or the value of the column called ``key``."""
        if isinstance(key, str):
            position = self._positions.get(key)
            if position is None:
                raise KeyError(f"no column {key!r}; there are: {', '.join(self._fields)}")
            return tuple.__getitem__(self, position)
        return tuple.__getitem__(self, key)

    def __getattr__(self, name: str) -> Any:
        position = self._positions.get(name)
        if position is None:
            raise AttributeError(f"no column {name!r}; there are: {', '.join(self._fields)}")
        return tuple.__getitem__(self, position)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
        return f"Row({values})"

    def __reduce__(self) -> tuple[Callable[..., Row], tuple[tuple[str, ...], tuple[Any, ...]]]:
        return _rebuild, (self._fields, tuple(self))

    def keys(self) -> tuple[str, ...]:
        """The column names, in order."""
        return self._fields

    def get(self, key: str, default: Any = None) -> Any:
        """The value of the column called ``key``, or ``default``."""
        position = self._positions.get(key)
        return default if position is None else tuple.__getitem__(self, position)

    def _asdict(self) -> dict[str, Any]:
        return {name: tuple.__getitem__(self, position) for name, position in self._positions.items()}

    @property
    def _mapping(self) -> dict[str, Any]:
        """The row as a dict, under the name that SQLAlchemy's rows have for it."""
        return self._asdict()


@functools.lru_cache(maxsize=4096)
def row_type(columns: tuple[str, ...]) -> Callable[[Iterable[Any]], Row]:
    """The class of rows with these column names, called with the values of one row."""
    positions: dict[str, int] = {}
    for position, name in enumerate(columns):
        positions.setdefault(name, position)
    attributes: dict[str, Any] = {"__slots__": (), "_fields": columns, "_positions": positions}
    for name, position in positions.items():
        # a column called `count` or `index` is meant before tuple's method of that name
        if (
            name.isidentifier()
            and not keyword.iskeyword(name)
            and not name.startswith("_")
            and name not in _OWN_NAMES
        ):
            attributes[name] = property(itemgetter(position))
    return type("Row", (Row,), attributes)


def _rebuild(columns: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return row_type(columns)(values)
