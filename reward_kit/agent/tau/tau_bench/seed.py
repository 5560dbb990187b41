"""The seed of the new bundle: that of ``tau_retail_task`` if the source has the same data, else a new one."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent import Database
from reward_kit.errors import RewardKitError
from tau_retail_task.tools import R

from .build_seed import FINGERPRINTS, SEED, seed_sql
from .source import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

Domain = dict[str, dict[str, Any]]
SAME = "equal to tau-bench commit 59a200c, checked by hash; the seed is that of `tau_retail_task`"
OTHER = (
    "different from tau-bench commit 59a200c; the seed was made from them, and the tools show every user, "
    "product and order as the source has it"
)
_WITHOUT_ROWS = re.compile(
    r"^(?:INSERT INTO [^\n]* VALUES\n;|WITH given \([^\n]*\) AS \(VALUES\n\n\)\nINSERT INTO .*?;)\n",
    re.MULTILINE | re.DOTALL,
)
"""Statements without rows, for a source without credit cards for example: SQL has no empty VALUES."""
_ORDER = {
    "name": ("first_name", "last_name"),
    "address": ("address1", "address2", "city", "country", "state", "zip"),
}


def make_seed(domain: Domain, known: Mapping[str, str] = FINGERPRINTS) -> tuple[str, str]:
    """Return the SQL and a sentence about the data; raise ``SourceError`` for data that do not fit.

    ``known`` has the SHA-256 of the data in the seed of ``tau_retail_task``, by file.
    """
    fingerprints = {
        f"{name}.json": hashlib.sha256(json.dumps(content).encode()).hexdigest()
        for name, content in domain.items()
    }
    if fingerprints == known:
        return SEED.read_text(encoding="utf-8"), SAME
    for name in ("users", "products"):
        if not domain[name]:
            raise SourceError(f"the source has no {name}")
    try:
        sql = _WITHOUT_ROWS.sub("", seed_sql(**_in_order(domain)))
        asyncio.run(_check(sql, domain))
    except SourceError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, StopIteration) as error:
        raise SourceError(
            f"the source's data do not fit the tables: {type(error).__name__}: {error}"
        ) from error
    except RewardKitError as error:
        raise SourceError(f"the source's data do not fit the tables: {error}") from error
    return sql, OTHER


def _in_order(domain: Domain) -> Domain:
    """Return the same data with the keys of names and addresses in the order of the seed's columns."""
    return {
        collection: {
            key: {
                name: {part: value[part] for part in _ORDER[name]} if _is_record(name, value) else value
                for name, value in record.items()
            }
            for key, record in records.items()
        }
        for collection, records in domain.items()
    }


def _is_record(name: str, value: Any) -> bool:
    return name in _ORDER and isinstance(value, dict)


async def _check(sql: str, domain: Domain) -> None:
    """Raise ``SourceError`` if a tool shows a record that differs from the source."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Database.seed(Path(folder) / "seed.db", sql, origin="seed.sql") as base,
        base.fork() as db,
    ):
        for collection, tool, parameter in (
            ("users", "get_user_details", "user_id"),
            ("products", "get_product_details", "product_id"),
            ("orders", "get_order_details", "order_id"),
        ):
            for key, record in domain[collection].items():
                shown = await R.execute_tool(tool, {parameter: key}, db=db)
                if _canonical(_parsed(shown)) != _canonical(record):
                    raise SourceError(
                        f"the source's data do not fit the tables: {collection[:-1]} {key} would show "
                        f"{_difference(_parsed(shown), record)}"
                    )


def _parsed(shown: str) -> Any:
    try:
        return json.loads(shown)
    except ValueError:
        return shown


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _difference(shown: Any, record: Any) -> str:
    """List the parts of a record that differ."""
    if not isinstance(shown, dict) or not isinstance(record, dict):
        return f"{shown!r} instead of {record!r}"
    absent = object()
    names = [
        name
        for name in {**record, **shown}
        if _text(shown.get(name, absent)) != _text(record.get(name, absent))
    ]
    return "; ".join(
        f"{name} {_text(shown.get(name, absent))} instead of {_text(record.get(name, absent))}"
        for name in names
    )


def _text(value: Any) -> str:
    try:
        return _canonical(value)
    except TypeError:
        return "nothing"
