"""One tool call is one transaction, whatever happens in it and beside it."""

import asyncio

import pytest

from reward_kit.agent.database import Database
from reward_kit.errors import DatabaseError


async def count(db: Database, table: str = "customers") -> int:
    return await db.fetch_val(f"SELECT count(*) FROM {table}")


async def insert(db: Database, name: str) -> None:
    await db.execute("INSERT INTO customers(name) VALUES (:name)", {"name": name})


async def test_a_call_that_ends_well_is_kept_and_tells_the_rows_it_changed(db: Database) -> None:
    async with db.tool_call() as call:
        await insert(db, "Dora")
        await db.execute("UPDATE orders SET status = 'cancelled' WHERE id = 'W1'")
        await db.execute("UPDATE orders SET total = 1 WHERE id = 'W2'")
        await db.execute("UPDATE orders SET total = 5.25 WHERE id = 'W2'")
        await db.execute("DELETE FROM orders WHERE id = 'W3'")

    dora = {"id": 4, "name": "Dora", "credit": 0.0}
    third = {"id": "W3", "customer_id": 2, "status": "pending", "total": 99.0, "note": "hi"}
    status = {"before": {"status": "pending"}, "after": {"status": "cancelled"}}
    assert call.changes.to_json() == [
        {"table": "customers", "op": "insert", "key": {"id": 4}, "after": dora},
        {"table": "orders", "op": "update", "key": {"id": "W1"}, **status},
        {"table": "orders", "op": "delete", "key": {"id": "W3"}, "before": third},
    ]
    assert db.changes() == call.changes


async def test_each_call_tells_its_own_changes_only(db: Database) -> None:
    await insert(db, "before any call")
    async with db.tool_call() as first:
        await db.execute("UPDATE customers SET credit = 1 WHERE id = 2")
    async with db.tool_call() as reading:
        await count(db)
    async with db.tool_call() as idle:
        pass
    async with db.tool_call() as second:
        await db.execute("UPDATE customers SET credit = 2 WHERE id = 2")

    (one,), (two,) = first.changes, second.changes
    assert (one.op, one.before, one.after) == ("update", {"credit": 0.0}, {"credit": 1.0})
    assert len(reading.changes) == len(idle.changes) == 0
    assert (two.before, two.after) == ({"credit": 1.0}, {"credit": 2.0})
    assert len(db.changes()) == 2
    assert db.changes(since=first.changes) != db.changes()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
async def test_a_call_that_raises_leaves_nothing_behind(db: Database, error: type[BaseException]) -> None:
    async def failing() -> None:
        async with db.tool_call():
            await insert(db, "Dora")
            await db.execute("CREATE TABLE t(a)")
            raise error

    with pytest.raises(error):
        await failing()
    assert await count(db) == 3
    assert len(db.changes()) == 0
    async with db.tool_call() as call:
        await insert(db, "Emil")
    assert [change.after["id"] for change in call.changes] == [4]


async def test_a_deferred_constraint_fails_the_call_at_its_end(base: Database) -> None:
    with base.fork() as db:
        await db.execute("CREATE TABLE child(id REFERENCES customers(id) DEFERRABLE INITIALLY DEFERRED)")
        with pytest.raises(DatabaseError, match="FOREIGN KEY constraint failed"):
            async with db.tool_call():
                await db.execute("INSERT INTO child VALUES (77)")
        assert await count(db, "child") == 0
        async with db.tool_call():
            await db.execute("INSERT INTO child VALUES (77)")
            await db.execute("INSERT INTO customers(id, name) VALUES (77, 'Dora')")
        assert await count(db, "child") == 1


async def test_a_call_inside_a_call_is_undone_by_itself(db: Database) -> None:
    async with db.tool_call() as outer:
        await insert(db, "Dora")

        async def failing() -> None:
            async with db.tool_call():
                await insert(db, "Emil")
                raise ValueError("inner")

        with pytest.raises(ValueError, match="inner"):
            await failing()
        async with db.tool_call() as inner:
            await insert(db, "Fred")
    assert [change.after["name"] for change in inner.changes] == ["Fred"]
    assert [change.after["name"] for change in outer.changes] == ["Dora", "Fred"]


async def test_parallel_calls_have_the_database_to_themselves_one_after_the_other(db: Database) -> None:
    log: list[str] = []

    async def tool(name: str) -> None:
        async with db.tool_call():
            before = await count(db)
            log.append(f"{name} starts")
            await asyncio.sleep(0.001)
            await insert(db, name)
            await asyncio.sleep(0.001)
            assert await count(db) == before + 1
            log.append(f"{name} ends")

    names = [f"tool {number}" for number in range(8)]
    await asyncio.gather(*map(tool, names))
    assert log == [f"{name} {event}" for name in names for event in ("starts", "ends")]


async def test_a_task_that_outlives_its_call_cannot_write_any_more(db: Database) -> None:
    async def straggler() -> None:
        await asyncio.sleep(0.01)
        await insert(db, "late")

    async with db.tool_call():
        await insert(db, "Dora")
        task = asyncio.create_task(straggler())
    with pytest.raises(DatabaseError, match="has ended"):
        await task
    assert await count(db) == 4


async def test_a_rollback_by_the_schema_ends_the_call_even_if_the_tool_ignores_it(db: Database) -> None:
    rollback = "BEGIN SELECT raise(ROLLBACK, 'orders are kept'); END"
    await db.execute(f"CREATE TRIGGER guard BEFORE DELETE ON orders {rollback}")

    async def failing() -> None:
        async with db.tool_call():
            await insert(db, "Dora")
            with pytest.raises(DatabaseError, match="orders are kept"):
                await db.execute("DELETE FROM orders")
            with pytest.raises(DatabaseError, match="because of: orders are kept"):
                await insert(db, "Emil")

    with pytest.raises(DatabaseError, match="takes no further statements, because of: orders are kept"):
        await failing()

    assert await count(db) == 3
    async with db.tool_call():
        await insert(db, "Fred")
    assert await count(db) == 4


async def test_waiting_for_a_call_on_the_event_loop_is_an_error_and_not_a_deadlock(db: Database) -> None:
    started, proceed = asyncio.Event(), asyncio.Event()

    async def tool() -> None:
        async with db.tool_call():
            await insert(db, "Dora")
            started.set()
            await proceed.wait()

    running = asyncio.create_task(tool())
    await started.wait()
    with pytest.raises(DatabaseError, match="would block the event loop"):
        db.sync.execute("SELECT 1")
    proceed.set()
    await running
    assert db.sync.execute("SELECT 1").scalar_one() == 1


async def test_a_savepoint_outside_a_call_is_refused(db: Database) -> None:
    with pytest.raises(DatabaseError, match="SAVEPOINT needs a transaction around it"):
        await db.execute("SAVEPOINT here")
