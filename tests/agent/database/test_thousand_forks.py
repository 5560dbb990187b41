"""Many rollouts at once on one event loop, each with a fork of its own."""

import asyncio
import gc
import hashlib
import threading
from pathlib import Path

import pytest
from shop_database import SHOP
from thorough import often

from reward_kit.agent.database import Database
from reward_kit.errors import DatabaseError

FORKS = often(1000)
MANY_ORDERS = (
    "INSERT INTO orders(id, customer_id, status, total)"
    " WITH RECURSIVE c(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM c WHERE x < 200)"
    " SELECT 'X' || x, 1 + x % 3, 'pending', x / 4.0 FROM c;"
)


@pytest.fixture
def base_path(tmp_path: Path) -> Path:
    Database.seed(tmp_path / "base.db", SHOP + MANY_ORDERS).close()
    return tmp_path / "base.db"


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def succeeding_call(db: Database, number: int) -> None:
    async with db.tool_call() as call:
        wanted = {"id": f"X{1 + number % 200}"}
        order = await db.fetch_one("SELECT id, total FROM orders WHERE id = :id", wanted)
        await asyncio.sleep(0)
        update = "UPDATE orders SET status = 'cancelled', total = :total WHERE id = :id"
        await db.execute(update, {"id": order.id, "total": order.total + number})
        await asyncio.sleep(0)
        await db.execute("INSERT INTO customers(name) VALUES (:name)", {"name": f"customer {number}"})
    assert len(call.changes) == 2


async def failing_call(db: Database, number: int) -> None:
    async with db.tool_call():
        update = "UPDATE orders SET status = 'paid' WHERE id LIKE 'X%' AND customer_id = :id"
        await db.execute(update, {"id": 1 + number % 3})
        await asyncio.sleep(0)
        await db.execute("INSERT INTO customers(name) VALUES ('Alice')")


def totals(number: int) -> dict[str, float]:
    """The total that the call sets; number 0 leaves it as it was."""
    return {"total": (1 + number % 200) / 4.0 + number} if number else {}


async def test_many_forks_work_side_by_side_without_threads_or_descriptors(base_path: Path) -> None:
    content = hashlib.sha256(base_path.read_bytes()).digest()
    with Database.open(base_path) as base:
        forks = [base.fork(seed=number) for number in range(FORKS)]
        gc.collect()  # what earlier tests left behind is not to be closed in between
        descriptors, threads = open_descriptors(), threading.active_count()

        async def rollout(number: int) -> None:
            db = forks[number]
            with pytest.raises(DatabaseError, match=r"UNIQUE constraint failed: customers\.name"):
                await failing_call(db, number)
            failing = failing_call(db, number + 1), failing_call(db, number + 2)
            calls = (failing[0], succeeding_call(db, number), failing[1])
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [DatabaseError, type(None), DatabaseError]

        await asyncio.gather(*(rollout(number) for number in range(FORKS)))

        # the updates of the failing calls may be slow enough to be moved to one of the four shared threads
        assert open_descriptors() == descriptors
        assert threading.active_count() <= threads + 4
        for number, db in enumerate(forks):
            inserted, *updated = db.changes()
            assert inserted.after == {"id": 4, "name": f"customer {number}", "credit": 0.0}
            (order,) = updated
            assert order.key == {"id": f"X{1 + number % 200}"}
            assert order.after == {"status": "cancelled", **totals(number)}
        for db in forks:
            db.close()
    assert hashlib.sha256(base_path.read_bytes()).digest() == content
