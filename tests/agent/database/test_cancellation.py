"""Statements that take too long, and what becomes of them when nobody waits any more."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from shop_database import RUNAWAY, RUNAWAY_WRITE, SHOP

from reward_kit.agent.database import Database, Limits
from reward_kit.errors import DatabaseError, QueryTimeoutError


@pytest.fixture
def hurried(tmp_path: Path, mode: str) -> Iterator[Database]:
    """A fork whose statements may take 0.2 s."""
    limits, path = Limits(timeout=0.2), tmp_path / "hurried.db"
    with Database.seed(path, SHOP, mode=mode, limits=limits) as base, base.fork(seed=1) as database:
        yield database


async def count(db: Database) -> int:
    return await db.fetch_val("SELECT count(*) FROM customers")


@pytest.mark.parametrize("sql", [RUNAWAY, RUNAWAY_WRITE])
async def test_a_runaway_statement_is_stopped_and_undone_by_cancelling(db: Database, sql: str) -> None:
    async def tool() -> None:
        async with db.tool_call():
            await db.fetch_val("SELECT 1")
            await db.execute(sql)

    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(tool(), 0.1)
    assert await count(db) == 3
    assert len(db.changes()) == 0


@pytest.mark.parametrize("sql", [RUNAWAY, RUNAWAY_WRITE])
async def test_a_statement_is_stopped_at_its_time_limit(hurried: Database, sql: str) -> None:
    with pytest.raises(QueryTimeoutError, match=r"stopped after 0\.2 s"):
        await hurried.execute(sql)
    with pytest.raises(QueryTimeoutError, match=r"stopped after 0\.2 s"):
        await asyncio.to_thread(hurried.sync.execute, sql)
    assert await count(hurried) == 3


async def test_a_write_stopped_at_its_time_limit_fails_the_whole_call(hurried: Database) -> None:
    async def tool() -> None:
        async with hurried.tool_call():
            await hurried.execute("INSERT INTO customers(name) VALUES ('Dora')")
            with pytest.raises(QueryTimeoutError):
                await hurried.execute(RUNAWAY_WRITE)

    with pytest.raises(DatabaseError, match=r"takes no further statements, because of: .*stopped after"):
        await tool()
    assert await count(hurried) == 3


async def test_a_read_stopped_at_its_time_limit_leaves_the_call_intact(hurried: Database) -> None:
    async with hurried.tool_call():
        await hurried.execute("INSERT INTO customers(name) VALUES ('Dora')")
        with pytest.raises(QueryTimeoutError):
            await hurried.execute(RUNAWAY)
        await hurried.execute("INSERT INTO customers(name) VALUES ('Emil')")
    assert await count(hurried) == 5


async def test_a_call_cancelled_while_it_waits_for_its_turn_lets_the_others_through(db: Database) -> None:
    order: list[str] = []

    async def tool(name: str) -> None:
        async with db.tool_call():
            await db.execute("INSERT INTO customers(name) VALUES (?)", [name])
            await asyncio.sleep(0.01)
            order.append(name)

    tasks = [asyncio.create_task(tool(name)) for name in "abcd"]
    await asyncio.sleep(0.005)
    tasks[1].cancel()
    tasks[2].cancel()
    await asyncio.wait(tasks, timeout=5)
    assert order == ["a", "d"]
    assert await count(db) == 5
