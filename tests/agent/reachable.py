"""A walk over the objects that one leads to."""

from collections.abc import Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any


def reachable(start: Any) -> list[Any]:
    """All objects that attributes, slots, closures, bound methods and containers lead to from ``start``."""
    seen: dict[int, Any] = {}
    waiting = [start]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, ModuleType | type | BuiltinFunctionType):
            continue
        seen[id(one)] = one
        waiting += _leads_to(one)
    return list(seen.values())


def _leads_to(one: Any) -> list[Any]:
    if isinstance(one, str | bytes | int | float | Path):
        return []
    if isinstance(one, Mapping):
        return [*one.keys(), *one.values()]
    if isinstance(one, list | tuple | set | frozenset):
        return list(one)
    found = []
    if isinstance(one, FunctionType):
        found += [cell.cell_contents for cell in one.__closure__ or ()]
    for name in dir(one):
        if name.startswith("__") and name not in FOLLOWED:
            continue
        try:
            found.append(getattr(one, name))
        except (Exception, SystemExit):  # noqa: BLE001 - a property that raises leads nowhere
            continue
    return found


FOLLOWED = ("__self__", "__func__", "__wrapped__", "__dict__", "__defaults__", "__kwdefaults__")
