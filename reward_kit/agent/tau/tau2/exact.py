"""Values of the benchmark's models as JSON text that gives back the same types.

The JSON of a model alone does not: a text in a field of an enumeration, which the benchmark's tools store
without a check, would be read as the enumeration, and 60 in a field of floats as 60.0.
"""

from __future__ import annotations

import json
from datetime import date, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN = frozenset({str, int, float, bool, type(None)})


def exact_text(value: Any) -> str:
    """The text of a value; raises ``TypeError`` for a type that it cannot give back."""
    return json.dumps(_encoded(value), ensure_ascii=False, separators=(",", ":"))


def exact_value(text: str, classes: Mapping[str, type]) -> Any:
    """The value of a text; ``classes`` are models and enumerations by name."""
    return _decoded(json.loads(text), classes)


def _encoded(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [one if type(one) in _PLAIN else _encoded(one) for one in value]
    if isinstance(value, BaseModel):
        fields = {
            key: one if type(one) in _PLAIN else _encoded(one)  # most are, and a call costs more than this
            for key, one in vars(value).items()
        }
        return {"model": kind.__name__, "is": fields}
    if isinstance(value, dict):
        return {"dict": [[_encoded(key), _encoded(one)] for key, one in value.items()]}
    if isinstance(value, Enum):
        return {"enum": kind.__name__, "is": value.value}
    if isinstance(value, datetime):
        return {"datetime": value.isoformat()}
    if isinstance(value, date):
        return {"date": value.isoformat()}
    if isinstance(value, tuple | set | frozenset):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return {kind.__name__: [_encoded(one) for one in items]}
    if hasattr(value, "__dict__"):
        return {"object": _encoded(vars(value))}
    raise TypeError(f"a value of the type {kind.__name__} cannot be stored")


_SEQUENCES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def _decoded(value: Any, classes: Mapping[str, type]) -> Any:
    if isinstance(value, list):
        return [_decoded(one, classes) for one in value]
    if not isinstance(value, dict):
        return value
    (form, content), *more = value.items()
    if form == "model":
        fields = {
            key: one if type(one) in _PLAIN else _decoded(one, classes) for key, one in more[0][1].items()
        }
        return classes[content].model_construct(**fields)  # type: ignore[attr-defined]
    if form == "dict":
        return {_decoded(key, classes): _decoded(one, classes) for key, one in content}
    if form == "enum":
        return classes[content](more[0][1])
    if form == "datetime":
        return datetime.fromisoformat(content)
    if form == "date":
        return date.fromisoformat(content)
    if form == "object":
        return _decoded(content, classes)
    return _SEQUENCES[form](_decoded(one, classes) for one in content)


def restore(target: dict[str, Any], stored: Mapping[str, Any]) -> None:
    """Give attributes their stored values; those of plain objects, and dicts, are changed in place."""
    for name, value in stored.items():
        old = target.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            old.clear()
            old.update(value)
        elif isinstance(value, dict) and hasattr(old, "__dict__") and not isinstance(old, BaseModel):
            restore(vars(old), value)
        else:
            target[name] = value
