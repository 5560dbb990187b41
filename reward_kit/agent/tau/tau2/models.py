"""Values of the benchmark's models as JSON text that gives back the same types.

The JSON of a model alone does not: a text in a field of an enumeration, which the benchmark's tools store
without a check, would be read as the enumeration, and 60 in a field of floats as 60.0.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from inspect import isclass
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def mark_of(value: Any) -> bytes:
    """A text of an object, made quickly, which differs after each change."""
    if isinstance(value, BaseModel):
        return value.__pydantic_serializer__.to_json(value, warnings=False)
    return to_json(value, fallback=str)


def json_of(value: Any) -> str:
    """The JSON text of an object, as the benchmark writes it for its hashes, in the order of its keys."""
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return value.model_dump(warnings=False) if isinstance(value, BaseModel) else str(value)


def is_model(value: Any) -> bool:
    """True for the class of a model or an enumeration."""
    return isclass(value) and issubclass(value, BaseModel | Enum)


def models_in(annotation: Any, found: dict[type, None] | None = None) -> list[type]:
    """The models and enumerations that values of a type can hold."""
    found = {} if found is None else found
    if not is_model(annotation):
        for inner in get_args(annotation):
            models_in(inner, found)
    elif annotation not in found:
        found[annotation] = None
        for field in getattr(annotation, "model_fields", {}).values():
            models_in(field.annotation, found)
    return list(found)


# --- the shape of a database


@dataclass(frozen=True, slots=True)
class DataField:
    """A field of the database: ``form`` is dict, list, table (a model with a dict ``data``) or one.

    ``adapter`` is that of an object, ``whole`` that of the field.
    """

    name: str
    kind: str
    form: str
    adapter: TypeAdapter[Any]
    whole: TypeAdapter[Any]


def fields_of(database: type[BaseModel], prefix: str = "") -> dict[str, DataField]:
    """The fields of a database class; ``prefix`` begins their kinds."""
    found = {}
    for name, info in database.model_fields.items():
        annotation: Any = info.annotation
        form, value, whole = "one", annotation, annotation
        origin = get_origin(annotation)
        if origin in (dict, list):
            form, value = origin.__name__, get_args(annotation)[-1]
        elif isclass(annotation) and issubclass(annotation, BaseModel):
            data = annotation.model_fields.get("data")
            if data is not None and get_origin(data.annotation) is dict:
                form, value, whole = "table", get_args(data.annotation)[-1], data.annotation
        found[name] = DataField(name, f"{prefix}{name}", form, TypeAdapter(value), TypeAdapter(whole))
    return found


def rows_of(database: BaseModel, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """The rows (kind, id, json) of a database, for its seed."""
    for name, one in fields_of(type(database), prefix).items():
        value = getattr(database, name)
        if one.form == "list":
            values = dict(zip(list_ids(value), value, strict=True))
        elif one.form == "table":
            values = value.data
            yield f"{prefix}notes", name, json_of(value.notes)
        else:
            values = value if one.form == "dict" else {name: value}
        yield from ((one.kind, key, json_of(item)) for key, item in values.items())


def list_ids(values: list[Any]) -> list[str]:
    """Names for the items of a list: the first field that ends in ``_id``, else the position."""
    fields = type(values[0]).model_fields if values and isinstance(values[0], BaseModel) else ()
    field_name = next((name for name in fields if name.endswith("_id")), None)
    names = [
        str(position if field_name is None else getattr(value, field_name, position))
        for position, value in enumerate(values)
    ]
    if len(set(names)) < len(names):
        return [f"{name}#{position}" for position, name in enumerate(names)]
    return names


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
