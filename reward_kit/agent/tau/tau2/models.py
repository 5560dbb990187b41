"""The names that the benchmark's data models import: base classes, and the update of a model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

M = TypeVar("M", bound=BaseModel)

DATA_DIR = Path("data")
"""Their folder of data, which no code of a ported bundle reads."""


class BaseModelNoExtra(BaseModel):
    """A model that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


class DB(BaseModelNoExtra):
    """The base of a domain's database."""


def get_dict_hash(obj: Any) -> str:
    """The hash by which τ²-bench compares states."""
    return hashlib.sha256(json.dumps(obj, sort_keys=True, default=str).encode()).hexdigest()


def get_pydantic_hash(obj: BaseModel) -> str:
    """The hash of a model."""
    return get_dict_hash(obj.model_dump())


def update_pydantic_model_with_dict(model_instance: M, update_data: dict[str, Any]) -> M:
    """The model with the values of ``update_data``, objects within objects merged, validated anew."""
    return type(model_instance).model_validate(merged(model_instance.model_dump(), update_data))


def merged(data: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    """``data`` with the values of ``update``; a dict is merged into a dict, anything else replaces."""
    result = dict(data)
    for key, value in update.items():
        old = result.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result
