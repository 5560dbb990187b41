"""A tool call is one transaction: what it wrote is kept as a whole, or nothing of it is."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reward_kit.agent.database import Database
from reward_kit.agent.tools.registry import ToolRegistry
from reward_kit.errors import DatabaseError, ToolError


@pytest.fixture(params=["overlay", "file"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    schema = """
    PRAGMA foreign_keys = ON;
    CREATE TABLE flights(id INTEGER PRIMARY KEY);
    CREATE TABLE bookings(
        id INTEGER PRIMARY KEY, flight INTEGER REFERENCES flights(id) DEFERRABLE INITIALLY DEFERRED
    );
    INSERT INTO flights VALUES (1);
    """
    with Database.seed(tmp_path / "base.db", schema, mode=request.param) as base, base.fork() as fork:
        yield fork


async def bookings(database: Database) -> int:
    count: int = await database.fetch_val("SELECT count(*) FROM bookings")
    return count


async def test_a_call_keeps_what_it_wrote_and_tells_which_rows(database: Database) -> None:
    registry = ToolRegistry("tools")

    @registry.tool
    async def book(flight: int, db):
        await db.execute("INSERT INTO bookings(flight) VALUES (?)", [flight])
        return await db.fetch_all("SELECT * FROM bookings")

    @registry.tool
    def book_blocking(flight: int, db):
        db.execute("INSERT INTO bookings(flight) VALUES (:f)", {"f": flight})
        return db.execute("SELECT id, flight FROM bookings").all()

    first = await registry.call("book", {"flight": 1}, db=database)
    second = await registry.call("book_blocking", {"flight": 1}, db=database)

    assert first.content == '[{"id": 1, "flight": 1}]'
    assert second.content == '[{"id": 1, "flight": 1}, {"id": 2, "flight": 1}]'
    keys = [[row.key for row in result.changes or ()] for result in (first, second)]
    assert keys == [[{"id": 1}], [{"id": 2}]]


@pytest.mark.parametrize("kind", ["async def", "def"])
@pytest.mark.parametrize("ending", ["refuses", "fails", "exits", "returns itself", "hangs"])
async def test_a_call_that_fails_leaves_the_database_as_it_was(
    database: Database, kind: str, ending: str
) -> None:
    registry = ToolRegistry("tools", tool_timeout=0.2 if ending == "hangs" else 30)
    itself: list[Any] = []
    itself.append(itself)
    errors = {"refuses": ToolError("no"), "fails": ValueError("no"), "exits": SystemExit(1)}

    async def async_tool(db):
        await db.execute("INSERT INTO bookings(flight) VALUES (1)")
        if ending == "hangs":
            await asyncio.Event().wait()
        if ending in errors:
            raise errors[ending]
        return itself

    def sync_tool(db):
        db.execute("INSERT INTO bookings(flight) VALUES (1)")
        if ending == "hangs":
            time.sleep(5)
            return None  # long after the test: whatever is done then happens in the midst of another one
        if ending in errors:
            raise errors[ending]
        return itself

    registry.tool(name="book")(async_tool if kind == "async def" else sync_tool)
    before = database.changes()

    result = await registry.call("book", {}, db=database)

    assert result.status == ("refused" if ending == "refuses" else "failed")
    assert result.content.startswith("Error: ")
    assert result.changes is None
    assert await bookings(database) == 0
    assert database.changes().equals(before)


async def test_a_thread_that_was_given_up_cannot_write_any_more(database: Database) -> None:
    registry = ToolRegistry("tools", tool_timeout=1.0)
    go_on, done = threading.Event(), threading.Event()
    late: list[Exception] = []

    @registry.tool
    def slow(db):
        db.execute("INSERT INTO bookings(flight) VALUES (1)")
        go_on.wait(30)
        try:
            db.execute("INSERT INTO bookings(flight) VALUES (1)")
        except DatabaseError as error:
            late.append(error)
        done.set()

    @registry.tool
    async def book(db):
        await db.execute("INSERT INTO bookings(flight) VALUES (1)")
        go_on.set()
        assert await asyncio.to_thread(done.wait, 30)
        return await db.fetch_val("SELECT count(*) FROM bookings")

    first = await registry.call("slow", {}, db=database)
    registry.tool_timeout = 60
    second = await registry.call("book", {}, db=database)

    assert (first.status, second.content) == ("failed", "1")
    assert len(late) == 1
    assert await bookings(database) == 1


async def write_in_a_pool(db: Any) -> None:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(2) as pool:
        write = partial(db.sync.execute, "INSERT INTO bookings(flight) VALUES (1)")
        await asyncio.gather(loop.run_in_executor(pool, write), loop.run_in_executor(pool, write))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("begun", [False, True], ids=["", "the call has read something"])
async def test_threads_of_an_async_tool_write_for_its_call(database: Any, fails: bool, begun: bool) -> None:
    registry = ToolRegistry("tools")

    @registry.tool
    async def book(db):
        if begun:
            await bookings(db)
        await write_in_a_pool(db)
        if fails:
            raise ToolError("refused after all")

    result = await registry.call("book", {}, db=database)
    assert len(result.changes or ()) == (0 if fails else 2)
    assert await bookings(database) == (0 if fails else 2)


async def test_transactions_of_threads_end_each_by_itself(database: Database) -> None:
    registry = ToolRegistry("tools")

    @registry.tool
    def book(db):
        def write(number):
            with db.transaction():
                db.execute("INSERT INTO bookings VALUES (?, 1)", [number])
                time.sleep(0.005)
                if number % 2:
                    raise KeyError(number)

        with ThreadPoolExecutor(4) as pool:
            ended = [pool.submit(write, number) for number in range(6)]
            more = pool.submit(db.executemany, "INSERT INTO flights VALUES (?)", [(9,), (10,)])
        return [type(one.exception()).__name__ for one in (*ended, more)]

    result = await registry.call("book", {}, db=database)
    assert result.value == ["NoneType", "KeyError"] * 3 + ["NoneType"]
    assert [change.key["id"] for change in result.changes or ()] == [0, 2, 4, 9, 10]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("around", ["nothing", "a transaction", "a transaction that has written"])
async def test_threads_of_a_def_tool_write_for_a_call(database: Database, fails: bool, around: str) -> None:
    registry = ToolRegistry("tools")

    def write_twice(db):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: db.execute("INSERT INTO bookings(flight) VALUES (1)"), range(2)))

    @registry.tool
    def book(db):
        if around == "nothing":
            write_twice(db)
        else:
            with db.transaction():
                if around.endswith("written"):
                    db.execute("INSERT INTO flights VALUES (2)")
                write_twice(db)
        if fails:
            raise ToolError("refused after all")

    result = await registry.call("book", {}, db=database)
    assert (result.status, await bookings(database)) == (("refused", 0) if fails else ("ok", 2))
    written = [change.table for change in result.changes or ()]
    assert written.count("bookings") == (0 if fails else 2)
