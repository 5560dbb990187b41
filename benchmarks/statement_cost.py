"""CPU time of one statement: the faces of this package against plain apsw, aiosqlite and SQLAlchemy.

    python benchmarks/statement_cost.py [--rounds 40] [--rows 8000]

All contenders run in one process, block by block in random order, so that a busy machine slows all of
them alike.  A tool call of ours tells which rows it changed; every 30 calls it gets a new fork, as a new
rollout does, and the cost of that is part of it.  Printed are medians of the CPU time per operation in µs
(threads included), and their ratios to the two baselines that the targets name.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiosqlite
import apsw
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from reward_kit.agent.database import Database

SCHEMA = """
CREATE TABLE items(id INTEGER PRIMARY KEY, order_id INTEGER NOT NULL, name TEXT, price REAL, status TEXT);
CREATE INDEX items_by_order ON items(order_id);
CREATE TABLE notes(id INTEGER PRIMARY KEY, item_id INTEGER, body TEXT);
"""
PK_SELECT = "SELECT price FROM items WHERE id = :id"
TWENTY_ROWS = "SELECT id, name, price, status FROM items WHERE order_id = :id"
UPDATE = "UPDATE items SET price = price + 1 WHERE id = :id"
INSERT = "INSERT INTO notes(item_id, body) VALUES (:id, 'packed and sent')"
TUNED = "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF"
OPERATIONS = ("pk select", "20 rows", "update", "insert", "call, one read", "call, one write")
BLOCKS = {"apsw": 300, "ours": 300, "aiosqlite": 60, "SQLAlchemy async": 15}
TARGETS = {"pk select": 10, "call, one read": 10, "call, one write": 25}
"""Microseconds on a machine on which apsw takes 1.8 for a select by key."""
CALLS_PER_FORK = 30

Operation = Callable[[int], Awaitable[Any]]


def seed(path: Path, rows: int) -> Database:
    values = ",".join(f"({n}, {n // 20}, 'item {n}', {n * 0.25}, 'pending')" for n in range(1, rows + 1))
    return Database.seed(path, f"{SCHEMA}INSERT INTO items VALUES {values};")


def plain_apsw(path: Path, pragmas: str) -> dict[str, Operation]:
    connection = apsw.Connection(str(path))
    connection.execute(pragmas).fetchall()

    def statement(sql: str) -> Operation:
        async def run(number: int) -> None:
            key = number // 20 if sql is TWENTY_ROWS else number
            connection.execute(sql, {"id": key}).fetchall()

        return run

    def call(sql: str) -> Operation:
        async def run(number: int) -> None:
            connection.execute("BEGIN")
            connection.execute(sql, {"id": number}).fetchall()
            connection.execute("COMMIT")

        return run

    return operations(statement, statement, call)


def operations(
    query: Callable[[str], Operation], write: Callable[[str], Operation], call: Callable[[str], Operation]
) -> dict[str, Operation]:
    made = [query(PK_SELECT), query(TWENTY_ROWS), write(UPDATE), write(INSERT), call(PK_SELECT), call(UPDATE)]
    return dict(zip(OPERATIONS, made, strict=True))


def our_async_face(base: Database) -> dict[str, Operation]:
    db = base.fork(seed=1)
    calls = 0

    def fresh() -> Database:
        """A fork that has seen no more calls than that of a rollout."""
        nonlocal calls, db
        calls += 1
        if calls % CALLS_PER_FORK == 0:
            db.close()
            db = base.fork(seed=1)
        return db

    def query(sql: str) -> Operation:
        async def one(number: int) -> None:
            await db.fetch_val(sql, {"id": number})

        async def all_rows(number: int) -> None:
            await db.fetch_all(sql, {"id": number // 20})

        return one if sql is PK_SELECT else all_rows

    def write(sql: str) -> Operation:
        async def run(number: int) -> None:
            await db.execute(sql, {"id": number})

        return run

    def call(sql: str) -> Operation:
        async def run(number: int) -> None:
            fork = fresh()
            async with fork.tool_call():
                await fork.fetch_val(sql, {"id": number})

        return run

    return operations(query, write, call)


def our_sync_face(db: Database) -> dict[str, Operation]:
    face = db.sync

    def query(sql: str) -> Operation:
        async def one(number: int) -> None:
            face.execute(sql, {"id": number}).scalar_one()

        async def all_rows(number: int) -> None:
            face.execute(sql, {"id": number // 20}).all()

        return one if sql is PK_SELECT else all_rows

    def write(sql: str) -> Operation:
        async def run(number: int) -> None:
            face.execute(sql, {"id": number})

        return run

    return dict(
        zip(OPERATIONS, [query(PK_SELECT), query(TWENTY_ROWS), write(UPDATE), write(INSERT)], strict=False)
    )


def with_aiosqlite(connection: aiosqlite.Connection) -> dict[str, Operation]:
    def statement(sql: str) -> Operation:
        async def run(number: int) -> None:
            key = number // 20 if sql is TWENTY_ROWS else number
            await connection.execute_fetchall(sql, {"id": key})

        return run

    def call(sql: str) -> Operation:
        async def run(number: int) -> None:
            await connection.execute("BEGIN")
            await connection.execute_fetchall(sql, {"id": number})
            await connection.execute("COMMIT")

        return run

    return operations(statement, statement, call)


def with_sqlalchemy(engine: AsyncEngine, connection: AsyncConnection) -> dict[str, Operation]:
    def query(sql: str) -> Operation:
        clause = text(sql)

        async def run(number: int) -> None:
            key = number // 20 if sql is TWENTY_ROWS else number
            (await connection.execute(clause, {"id": key})).all()

        return run

    def write(sql: str) -> Operation:
        clause = text(sql)

        async def run(number: int) -> None:
            await connection.execute(clause, {"id": number})
            await connection.commit()

        return run

    def call(sql: str) -> Operation:
        clause = text(sql)

        async def run(number: int) -> None:
            async with engine.begin() as transaction:
                await transaction.execute(clause, {"id": number})

        return run

    return operations(query, write, call)


def make_engine(path: Path) -> AsyncEngine:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")

    @event.listens_for(engine.sync_engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        connection.cursor().execute("PRAGMA synchronous=OFF")

    return engine


async def measure(
    contenders: dict[str, dict[str, Operation]], rounds: int, rows: int
) -> dict[tuple[str, str], list[float]]:
    blocks = [(name, operation) for name, made in contenders.items() for operation in made]
    seconds: dict[tuple[str, str], list[float]] = {block: [] for block in blocks}
    draw = random.Random(1)
    for _ in range(rounds):
        draw.shuffle(blocks)
        for name, operation in blocks:
            size = next(size for prefix, size in BLOCKS.items() if name.startswith(prefix))
            numbers = [draw.randrange(1, rows) for _ in range(size)]
            run = contenders[name][operation]
            await run(numbers[0])
            started = time.process_time()
            for number in numbers:
                await run(number)
            seconds[name, operation].append((time.process_time() - started) / size)
    return seconds


def report(seconds: dict[tuple[str, str], list[float]], names: list[str]) -> None:
    median = {block: statistics.median(times) * 1e6 for block, times in seconds.items()}
    for baseline in ("apsw, tuned file", "aiosqlite"):
        print(f"\nCPU per operation: microseconds (x {baseline})")
        print(f"{'':26}" + "".join(f"{operation:>18}" for operation in OPERATIONS))
        for name in names:
            cells = [cell(median, (name, operation), (baseline, operation)) for operation in OPERATIONS]
            print(f"{name:26}" + "".join(f"{text:>18}" for text in cells))
    print()
    for operation, target in TARGETS.items():
        ours, theirs = median["ours, await", operation], median["aiosqlite", operation]
        print(f"{operation}: {ours:.1f} us (target: {target}), {ours / theirs:.2f} of aiosqlite")


def cell(median: dict[tuple[str, str], float], block: tuple[str, str], baseline: tuple[str, str]) -> str:
    return f"{median[block]:9.1f} {median[block] / median[baseline]:6.2f}x" if block in median else ""


async def main(rounds: int, rows: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="statement-cost-"))
    base = seed(folder / "base.db", rows)
    copies = {name: Path(shutil.copyfile(folder / "base.db", folder / f"{name}.db")) for name in "abcd"}
    engine = make_engine(copies["d"])
    connection = await aiosqlite.connect(copies["c"], isolation_level=None)
    await connection.execute("PRAGMA synchronous=OFF")
    pooled = await engine.connect()
    contenders = {
        "apsw, tuned file": plain_apsw(copies["a"], TUNED),
        "apsw, sync off": plain_apsw(copies["b"], "PRAGMA synchronous=OFF"),
        "ours, await": our_async_face(base),
        "ours, await, mode file": our_async_face(Database.open(folder / "base.db", mode="file")),
        "ours, sync (Result)": our_sync_face(base.fork(seed=1)),
        "aiosqlite": with_aiosqlite(connection),
        "SQLAlchemy async": with_sqlalchemy(engine, pooled),
    }
    # in mode "file" whole tables are compared to tell what a call changed: not a matter of microseconds
    del contenders["ours, await, mode file"]["call, one write"]
    seconds = await measure(contenders, rounds, rows)
    report(seconds, list(contenders))
    await connection.close()
    await pooled.close()
    await engine.dispose()
    shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rows", type=int, default=8000)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rounds, arguments.rows))
