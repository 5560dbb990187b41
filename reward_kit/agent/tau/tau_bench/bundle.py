"""The bundle of a checkout of tau-bench: code of ``tau_retail_task``, texts of the benchmark."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from itertools import chain, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tau_retail_task
from reward_kit.agent import Database, TaskBundle
from reward_kit.agent.tau.source import SourceError, new_folder, put
from reward_kit.agent.tau.tau_bench.checkout import Domain, read_checkout
from reward_kit.errors import RewardKitError
from tau_retail_task.tools import R

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reward_kit.agent.tau.tau_bench.checkout import Checkout

BUNDLE = Path(tau_retail_task.__file__).resolve().parent
SEED = BUNDLE / "seed.sql"

FINGERPRINTS = {
    "users.json": "9357f363970c71f2aa9cee4641553b0d233b17c2f52a9aa8031a0bd573b4e4ac",
    "products.json": "83eb2cf14d9c4ad60ed30d1fa040ec8a16076547b2c74b43f96a60458868f7c5",
    "orders.json": "af98e9fd917b342ef3d675c398a5075b44acae9388aa7d36390695a9bab8ea3a",
}
"""SHA-256 of ``json.dumps(data)`` of that seed, which does not depend on a file's indentation."""

SAME = "equal to tau-bench commit 59a200c, checked by hash; the seed is that of `tau_retail_task`"
OTHER = (
    "different from tau-bench commit 59a200c; the seed was made from them, and the tools show every user, "
    "product and order as the source has it"
)
_ADDRESS = ("address1", "address2", "city", "country", "state", "zip")
_WRITTEN = Path(__file__).parent / "written"
_DIFFERENCES = """\
The benchmark no longer updates these tasks: some gold actions and outputs are known to be wrong, and are \
unchanged here.
`act` and `react`: the system prompts are the benchmark's, but reward-kit parses the answers. It accepts \
JSON with small faults, and asks again after an `Action:` without JSON; the benchmark sends such a text to \
the user.
`--user react`: the agent does not see the user's thought, which the benchmark passes on. ###STOP### in a \
thought does not end the conversation.
`--user verify` and `reflection`: the questions about a draft are the benchmark's, but verify shows the \
user's line where the benchmark shows the repr of an object. After a rejected draft, reward-kit asks again \
with a note and uses the last draft; the benchmark repeats the question for verify, and may return to the \
first draft for reflection.
`--agent few-shot`: the rollout's seed selects the five examples.
Each rollout has its own seed, which is sent to the models. After an empty answer the model is asked again. \
A rollout that ends with an error is played again; `--errors-as-failures` counts it as failed.
Calls with missing or wrong arguments, calls of unknown tools and calculations that would take too long get \
reward-kit's own errors and change nothing.
""".splitlines()
"""Differences from the benchmark, for the bundle's README."""


def port(source: str | Path, out: str | Path) -> tuple[list[str], Sequence[str]]:
    """Write the bundle of ``source`` to the folder ``out``; write nothing if it raises ``SourceError``.

    Returns the report for a terminal, and warnings.
    """
    target = Path(out).resolve()
    if target.exists():
        raise SourceError(f"{out} exists. Choose another folder, or remove it")
    found = read_checkout(Path(source))
    sql, seed = make_seed(found.domain)
    left_out = ", ".join(found.left_out)
    warnings = (f"These tools have no code here and are left out: {left_out}.",) if left_out else ()
    tools = {"tools": found.tools, "terminal": ["transfer_to_human_agents"], "parallel_tool_calls": False}
    named = {"toolset": f"{target.name}.tools"}
    files: dict[str, str | bytes] = {
        **{f"retail_tools/{path.name}": path.read_bytes() for path in (BUNDLE / "tools").glob("*.py")},
        "retail_tools/item_details.py": (_WRITTEN / "item_details.py").read_bytes(),
        "tools.py": (_WRITTEN / "tools.py").read_bytes(),
        "reward.py": (BUNDLE / "reward.py").read_bytes(),
        "__init__.py": '"""The retail tasks of tau-bench."""\n',
        "descriptions.json": json.dumps(tools, indent=2, ensure_ascii=False) + "\n",
        "seed.sql": sql,
        "README.md": _readme(target.name, found, seed, warnings),
        **{
            file: "".join(f"{json.dumps({'id': row['id'], **named, **row})}\n" for row in rows)
            for file, rows in found.rows.items()
        },
        **found.texts,
    }
    with new_folder(target) as folder:
        for name, content in files.items():
            put(folder / name, content)
    for file, rows in found.rows.items():
        if rows:
            asyncio.run(_mark_refused(target / file))
    counts = ", ".join(f"{file} ({len(rows)} tasks)" for file, rows in found.rows.items())
    return [f"{target}: tau-bench, {found.version}", counts, f"Data: {seed}."], warnings


async def _mark_refused(dataset: Path) -> None:
    """Run the gold calls of each row of a new dataset, and mark those that the tools refuse."""
    rows = [json.loads(line) for line in dataset.read_text(encoding="utf-8").splitlines()]
    with TaskBundle.load(dataset) as bundle, tempfile.TemporaryDirectory() as folder:
        tools, seed = bundle.tasks[0].registry, bundle.tasks[0].seed  # all rows have the same
        with Database.seed(Path(folder) / "base.db", seed.sql, origin=seed.origin) as base:
            for row in rows:
                with base.fork() as db:
                    for action in row["actions"]:
                        result = await tools.call(action["name"], action["arguments"], db=db)
                        if result.status == "refused":
                            action["refused"] = True
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _readme(name: str, source: Checkout, seed: str, warnings: Sequence[str]) -> str:
    """Return the README of the bundle ``name``; ``seed`` is the sentence about its data."""
    datasets = "\n".join(f"| `{file}` | {len(rows)} |" for file, rows in source.rows.items())
    differences = "\n".join(f"- {sentence}" for sentence in (*warnings, *_DIFFERENCES))
    files = "\n".join(f"| `{path}` | `{digest}` |" for path, digest in sorted(source.files.digests.items()))
    return f"""\
# {name}: the retail tasks of tau-bench

Written by `reward-kit port tau-bench`. The instructions, policy, prompts, tool descriptions,
gold actions and outputs are those of the benchmark. The tables, the tools and the reward come
from reward-kit's `tau_retail_task`. The second command has the benchmark's temperature.

```bash
reward-kit agent-eval --dataset {name} --agent gold
reward-kit agent-eval --dataset {name} --model MODEL --user-model MODEL --temperature 0
```

| dataset | tasks |
|---|---|
{datasets}

## Source

- Benchmark: tau-bench, https://github.com/sierra-research/tau-bench
- Version: {source.version}
- SHA-256 over all source files: `{source.files.content_hash()}`
- Data: {seed}.
- Licence: see `LICENSE`
- Please cite: Yao, Shinn, Razavi, Narasimhan: τ-bench: A Benchmark for Tool-Agent-User Interaction in \
Real-World Domains, 2024, https://arxiv.org/abs/2406.12045

## Differences from the benchmark

{differences}

## Source files

| file | SHA-256 |
|---|---|
{files}
"""


# --- the seed: that of ``tau_retail_task`` if the source has the same data, else a new one


def make_seed(domain: Domain) -> tuple[str, str]:
    """Return the SQL and a sentence about the data; raise ``SourceError`` for data that do not fit."""
    fingerprints = {
        f"{name}.json": hashlib.sha256(json.dumps(content).encode()).hexdigest()
        for name, content in domain.items()
    }
    if fingerprints == FINGERPRINTS:
        return SEED.read_text(encoding="utf-8"), SAME
    for name in ("users", "products"):
        if not domain[name]:
            raise SourceError(f"the source has no {name}")
    try:
        sql = seed_sql(**domain)
        asyncio.run(_check(sql, domain))
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, RewardKitError) as error:
        fault = f"{error}" if isinstance(error, RewardKitError) else f"{type(error).__name__}: {error}"
        raise SourceError(f"the source's data do not fit the tables: {fault}") from error
    return sql, OTHER


async def _check(sql: str, domain: Domain) -> None:
    """Raise ``SourceError`` if a tool shows a record that differs from the source."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Database.seed(Path(folder) / "seed.db", sql, origin="seed.sql") as base,
        base.fork() as db,
    ):
        for kind, collection in (("user", "users"), ("product", "products"), ("order", "orders")):
            for key, record in domain[collection].items():
                shown = await R.execute_tool(f"get_{kind}_details", {f"{kind}_id": key}, db=db)
                if difference := _difference(shown, record):
                    raise SourceError(f"{kind} {key} would show {difference}")


def _difference(shown: str, record: dict[str, Any]) -> str:
    """List the parts of a record that a tool shows otherwise."""
    theirs = {name: json.dumps(value, sort_keys=True) for name, value in record.items()}
    try:
        ours = {name: json.dumps(value, sort_keys=True) for name, value in json.loads(shown).items()}
    except ValueError:
        return f"{shown!r} instead of {record!r}"
    pairs = {name: (ours.get(name, "nothing"), theirs.get(name, "nothing")) for name in {**theirs, **ours}}
    return "; ".join(
        f"{name} {one} instead of {other}" for name, (one, other) in pairs.items() if one != other
    )


# --- the statements


def seed_sql(users: dict[str, Any], products: dict[str, Any], orders: dict[str, Any]) -> str:
    """Return the text of ``seed.sql``: the schema, which is that of the bundle's seed, then the rows."""
    schema = SEED.read_text(encoding="utf-8").partition("\nINSERT INTO ")[0]
    tables: dict[str, list[dict[str, Any]]] = {}
    for table, row in chain(_user_rows(users), _product_rows(products), _order_rows(users, orders)):
        tables.setdefault(table, []).append(row)
    return "\n".join([schema, *starmap(_insert, tables.items())])


def _user_rows(users: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for position, (user_id, user) in enumerate(users.items(), 1):
        name = _parts(user["name"], ("first_name", "last_name"))
        address = _parts(user["address"], _ADDRESS)
        yield "users", {"user_id": user_id, "position": position, **name, "email": user["email"], **address}
        for place, method in enumerate(user["payment_methods"].values(), 1):
            details = {name: method.get(name) for name in ("source", "brand", "last_four", "balance")}
            key = {"payment_method_id": method["id"], "user_id": user_id, "place": place}
            yield "payment_methods", key | details


def _product_rows(products: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for product_id, product in products.items():
        yield "products", {"product_id": product_id, "name": product["name"]}
        for place, item in enumerate(product["variants"].values(), 1):
            key = {"item_id": item["item_id"], "product_id": product_id, "place": place}
            yield "items", key | _parts(item, ("price", "available"))
            for number, (name, value) in enumerate(item["options"].items(), 1):
                option = {"item_id": item["item_id"], "place": number, "name": name, "value": value}
                yield "item_options", option


def _order_rows(users: dict[str, Any], orders: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The orders; each was paid once, and cancelled ones were refunded."""
    for order_id, order in orders.items():
        place = users[order["user_id"]]["orders"].index(order_id) + 1
        key = {"order_id": order_id, "user_id": order["user_id"], "place": place, "status": order["status"]}
        yield "orders", key | _parts(order["address"], _ADDRESS)
        for number, item in enumerate(order["items"], 1):
            yield "order_items", {"order_id": order_id, "place": number, "item_id": item["item_id"]}
        paid = _parts(order["payment_history"][0], ("amount", "payment_method_id"))
        kinds = ["payment", "refund"] if order["status"] == "cancelled" else ["payment"]
        for number, kind in enumerate(kinds, 1):
            yield "payments", {"order_id": order_id, "place": number, "transaction_type": kind, **paid}
        for tracking_id in chain.from_iterable(one["tracking_id"] for one in order["fulfillments"]):
            yield "fulfillments", {"order_id": order_id, "tracking_id": tracking_id}


def _parts(record: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: record[name] for name in names}


def _insert(table: str, rows: list[dict[str, Any]]) -> str:
    values = ",\n".join(f"({','.join(map(_literal, row.values()))})" for row in rows)
    return f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES\n{values};\n"


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'{}'".format(value.replace("'", "''"))
    return "NULL" if value is None else str(int(value)) if isinstance(value, bool) else repr(value)
