"""The cost of a private copy of a database: fork against opening a file and against copying it.

    python benchmarks/fork_cost.py [--sizes 3,100] [--large] [--rounds 200]

Each measurement makes the database available, opens it, runs one query by primary key and closes it.  A fork
takes over the connection of the one before; "Database.open and fork" has to open its own.  Methods take turns
in random order. The table has medians, and ratios against the baselines that its head names.
Everything happens in a temporary folder, which needs twice the largest size and is removed at the end.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import click

from reward_kit.agent.database import Database
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.seeding import seed_base
from reward_kit.agent.database.vfs import BaseImage

QUERY = "SELECT status FROM orders WHERE order_id = ?"
BYTES_PER_ORDER = 1000
TARGET = 1.1
"""``Database.fork`` against opening an existing file, at every size."""

Method = Callable[[str], Awaitable[None]]


@dataclass
class Times:
    """Seconds of one method, round by round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def build(path: Path, megabytes: int) -> int:
    """A base of about that size; returns the number of orders in it."""
    orders = megabytes * 1_000_000 // BYTES_PER_ORDER
    filler = BYTES_PER_ORDER // 2 - 40
    seed_base(
        path,
        f"""
        CREATE TABLE orders (order_id TEXT PRIMARY KEY, status TEXT, address TEXT);
        CREATE INDEX orders_by_status ON orders (status);
        WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {orders})
        INSERT INTO orders SELECT printf('#W%09d', i), 'pending', hex(randomblob({filler})) FROM n;
        """,
    )
    return orders


def methods(base_path: Path, folder: Path) -> dict[str, Method]:
    """The ways to a private or read-only copy of the base, by name."""
    image = BaseImage.open(base_path)
    database = Database.open(base_path)
    copy = folder / "copy.db"

    async def open_apsw(key: str) -> None:
        connection = apsw.Connection(str(base_path), flags=apsw.SQLITE_OPEN_READONLY)
        connection.execute(QUERY, [key]).fetchall()
        connection.close()

    async def open_sqlite3(key: str) -> None:
        connection = sqlite3.connect(base_path)
        connection.execute(QUERY, [key]).fetchall()
        connection.close()

    async def fork_overlay(key: str) -> None:
        connection = Overlay(image).connect()
        connection.execute(QUERY, [key]).fetchall()
        connection.close()

    async def fork_database(key: str) -> None:
        with database.fork(seed=1) as fork:
            await fork.fetch_val(QUERY, [key])

    async def fork_written(key: str) -> None:
        with database.fork(seed=1) as fork:
            await fork.execute("UPDATE orders SET status = 'paid' WHERE order_id = ?", [key])
            await fork.fetch_val(QUERY, [key])

    async def fork_first(key: str) -> None:
        with Database.open(base_path) as opened, opened.fork(seed=1) as fork:
            await fork.fetch_val(QUERY, [key])

    async def copy_file(key: str) -> None:
        shutil.copyfile(base_path, copy)
        connection = sqlite3.connect(copy)
        connection.execute(QUERY, [key]).fetchall()
        connection.close()
        copy.unlink()

    return {
        "open existing, apsw": open_apsw,
        "open existing, sqlite3": open_sqlite3,
        "fork (pages only)": fork_overlay,
        "Database.fork": fork_database,
        "Database.fork, updated": fork_written,
        "Database.open and fork": fork_first,
        "copy file, sqlite3": copy_file,
    }


async def measure(candidates: dict[str, Method], orders: int, rounds: int, copies: int) -> dict[str, Times]:
    """Every method ``rounds`` times (copying: ``copies`` times), in random order."""
    order = random.Random(0)
    turns = [name for name in candidates for _ in range(copies if name.startswith("copy") else rounds)]
    order.shuffle(turns)
    times = {name: Times() for name in candidates}
    for name in list(candidates) + turns:  # the first round of each warms up
        key = f"#W{order.randrange(1, orders):09d}"
        cpu, wall = time.process_time(), time.perf_counter()
        await candidates[name](key)
        times[name].wall.append(time.perf_counter() - wall)
        times[name].cpu.append(time.process_time() - cpu)
    return times


def report(megabytes: int, size: int, times: dict[str, Times]) -> None:
    """The table of one size."""
    medians = {
        name: (statistics.median(t.wall[1:]), statistics.median(t.cpu[1:])) for name, t in times.items()
    }
    opened, sqlite, copied = (
        medians[n][0] for n in ("open existing, apsw", "open existing, sqlite3", "copy file, sqlite3")
    )
    click.echo(f"\n{megabytes} MB ({size:,} bytes)")
    click.echo(
        f"{'':24}{'ms wall':>10}{'ms CPU':>10}{'x open apsw':>13}{'x open sqlite3':>16}{'x copy':>12}{'n':>6}"
    )
    for name, (wall, cpu) in medians.items():
        click.echo(
            f"{name:24}{wall * 1e3:10.3f}{cpu * 1e3:10.3f}{wall / opened:13.2f}{wall / sqlite:16.2f}"
            f"{wall / copied:12.4f}{len(times[name].wall) - 1:6}"
        )
    ratio = medians["Database.fork"][1] / medians["open existing, apsw"][1]
    verdict = "met" if ratio <= TARGET else "MISSED"
    click.echo(f"CPU of Database.fork / open existing, apsw = {ratio:.2f}; target {TARGET}: {verdict}")


@click.command()
@click.option("--sizes", default="3,100", show_default=True, help="Megabytes, comma separated.")
@click.option("--large", is_flag=True, help="Add 1000 MB.")
@click.option(
    "--rounds", default=200, show_default=True, help="Rounds per method; copies of big files take fewer."
)
def main(sizes: str, large: bool, rounds: int) -> None:
    """Measure and print."""
    wanted = [int(size) for size in sizes.split(",")] + [1000] * large
    for megabytes in wanted:
        with tempfile.TemporaryDirectory(prefix="fork_cost_") as name:
            folder = Path(name)
            path = folder / "base.db"
            orders = build(path, megabytes)
            copies = max(3, min(rounds, 600 // megabytes))
            times = asyncio.run(measure(methods(path, folder), orders, rounds, copies))
            report(megabytes, path.stat().st_size, times)


if __name__ == "__main__":
    main()
