"""The databases of τ²-bench as the oracle compares them: texts, hashes, and objects that were touched."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

import pydantic_core

if TYPE_CHECKING:
    from their_code import Tau2

RANDOM_BILL = re.compile(r"\bB[0-9a-f]{8}\b")
TIMING = re.compile(r"\[Timing: [^\]]*\]")
OF_MANY_OBJECTS = {"FlightDB", "RetailDB"}
MISSING = "absent"


def without_chance(text: str) -> str:
    """The text without what differs from run to run: ids of new bills, and timings."""
    return TIMING.sub("[Timing: …]", RANDOM_BILL.sub("B<random>", text))


def canonical(value: Any) -> str:
    """The JSON that τ²-bench hashes."""
    return json.dumps(value, sort_keys=True, default=str)


def digest(text: str) -> str:
    return hashlib.sha256(without_chance(text).encode()).hexdigest()[:16]


class Watched(dict[Any, Any]):
    """A dict that notes which of its values were handed out: ever, and since the last check."""

    def __init__(self, values: Any) -> None:
        super().__init__(values)
        self.touched: set[Any] = set()
        self.recent: set[Any] = set()

    def _note(self, keys: Any) -> None:
        self.touched.update(keys)
        self.recent.update(keys)

    def __getitem__(self, key: Any) -> Any:
        self._note((key,))
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._note((key,))
        super().__setitem__(key, value)

    def get(self, key: Any, default: Any = None) -> Any:
        self._note((key,))
        return super().get(key, default)

    def values(self) -> Any:
        self._note(self)
        return super().values()

    def items(self) -> Any:
        self._note(self)
        return super().items()


class Pool:
    """Loaded databases of one class, each put back into its first state before it is used again."""

    def __init__(self, cls: Any, text: str) -> None:
        self.cls = cls
        self.raw = json.loads(text)
        first = cls.model_validate(self.raw)
        self.texts = {
            name: {key: pydantic_core.to_json(each) for key, each in getattr(first, name).items()}
            for name in cls.model_fields
        }
        self.free: list[Any] = []
        self.used: list[Any] = []

    def take(self) -> Any:
        db = self.free.pop() if self.free else self.cls.model_validate(self.raw)
        for name in self.cls.model_fields:
            setattr(db, name, Watched(getattr(db, name)))
        self.used.append(db)
        return db

    def put_back(self) -> None:
        for db in self.used:
            for name, key in self.changed(db):
                self._restore(db, name, key)
            if all(list(getattr(db, name)) == list(self.texts[name]) for name in self.texts):
                self.free.append(db)
        self.used.clear()

    def changed(self, db: Any) -> list[tuple[str, str]]:
        """The objects that differ from the data as loaded."""
        found = []
        for name, texts in self.texts.items():
            now = getattr(db, name)
            for key in now.touched:
                before = texts.get(key)
                value = dict.get(now, key, MISSING)
                if (None if value is MISSING else pydantic_core.to_json(value)) != before:
                    found.append((name, key))
        return sorted(found)

    def _restore(self, db: Any, name: str, key: str) -> None:
        now = getattr(db, name)
        if key not in self.texts[name]:
            dict.pop(now, key, None)
        else:
            example = next(iter(dict.values(now)))
            dict.__setitem__(now, key, type(example).model_validate(copy.deepcopy(self.raw[name][key])))


class State:
    """Both databases of an environment in units: the objects of big databases, the fields of others."""

    def __init__(self, tau2: Tau2, environment: Any, *, values: bool) -> None:
        self.tau2, self.environment, self.values = tau2, environment, values
        self.texts = {unit: pydantic_core.to_json(value) for unit, value in self._units()}

    def _units(self) -> Any:
        """The units that may have changed: of kept databases those touched since the last check."""
        for side, kit in (("agent", self.environment.tools), ("user", self.environment.user_tools)):
            if kit is None or (side == "user" and kit.db is self.environment.tools.db):
                continue
            for name in type(kit.db).model_fields:
                value = getattr(kit.db, name)
                if type(kit.db).__name__ not in OF_MANY_OBJECTS:
                    yield f"{side}:{name}", value
                    continue
                keys = list(value.recent if isinstance(value, Watched) else value)
                yield from ((f"{side}:{name}/{key}", dict.get(value, key, MISSING)) for key in keys)
                if isinstance(value, Watched):
                    value.recent.clear()

    def changed(self) -> dict[str, Any]:
        """The hashes of the units that have changed since the last call; None for one that is gone."""
        found: dict[str, Any] = {}
        seen = set()
        for unit, value in self._units():
            seen.add(unit)
            if isinstance(value, str) and value == MISSING:
                if self.texts.pop(unit, None) is not None:
                    found[unit] = None
                continue
            text = pydantic_core.to_json(value)
            if unit not in self.texts and "/" in unit and not self.tau2.plain:
                field, key = unit.split(":", 1)[1].split("/", 1)
                pool = self.tau2.pools[type(self.environment.tools.db)]
                self.texts[unit] = pool.texts[field].get(key)
            if self.texts.get(unit) != text:
                self.texts[unit] = text
                found[unit] = self._shown(value)
        if gone := {unit for unit in self.texts if "/" not in unit} - seen:
            found |= dict.fromkeys(gone)
            for unit in gone:
                del self.texts[unit]
        return dict(sorted(found.items()))

    def everything(self) -> dict[str, str]:
        """The hashes of all units."""
        for kit in filter(None, (self.environment.tools, self.environment.user_tools)):
            for name in type(kit.db).model_fields:
                if isinstance(value := getattr(kit.db, name), Watched):
                    value.recent.update(value)
        return {unit: self._shown(value) for unit, value in self._units()}

    def _shown(self, value: Any) -> str:
        text = canonical(plain_value(value))
        return without_chance(text) if self.values else digest(text)


def plain_value(value: Any) -> Any:
    """Models, also in lists and dicts, as τ²-bench dumps them."""
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if isinstance(value, list):
        return [plain_value(each) for each in value]
    if isinstance(value, dict):
        return {key: plain_value(each) for key, each in value.items()}
    return value
