"""A forgotten ``await`` is named with its line."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from reward_kit.agent.base.places import MissingAwaitError, PendingLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

MISSING = "was never awaited: an await is missing"


class Db:
    """Stands in for a database of a call."""

    def __init__(self, log: PendingLog) -> None:
        self._log = log
        self.ran: list[str] = []

    def execute(self, sql: str, params: Any = None) -> Coroutine[Any, Any, Any]:
        """Run a statement."""
        return self._log.noted(self._execute(sql, params), "db.execute", sql)

    async def _execute(self, sql: str, params: Any) -> Any:
        await asyncio.sleep(0)
        self.ran.append(sql)
        return params


async def call(tool: Callable[[Db], Awaitable[Any]]) -> Any:
    """As a tool is called; Python itself says nothing of a coroutine that was never awaited."""
    log = PendingLog()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with log:
                value = await tool(Db(log))
            log.check()
        finally:
            gc.collect()
            assert [str(one.message) for one in said if "never awaited" in str(one.message)] == []
    return value


async def test_all_ways_of_awaiting_count() -> None:
    async def tool(db: Db) -> list[Any]:
        found = [await db.execute("a", 1)]
        found += await asyncio.gather(db.execute("b", 2), db.execute("c", params=3))
        found.append(await asyncio.create_task(db.execute("d", 4)))
        found.append(await asyncio.wait_for(db.execute("e", 5), 1))
        work = db.execute("f", 6)
        found.append(await work)
        db.execute("not wanted").close()
        with pytest.raises(RuntimeError, match="cannot reuse"):
            await work
        return [*found, len(db.ran)]

    assert await call(tool) == [1, 2, 3, 4, 5, 6, 6]


async def forgets(db: Db) -> None:
    await db.execute("a")
    db.execute("DELETE\n  FROM flights")


async def test_a_forgotten_one_is_named_with_its_line_and_the_remedy() -> None:
    line = forgets.__code__.co_firstlineno + 2
    with pytest.raises(MissingAwaitError) as raised:
        await call(forgets)
    assert str(raised.value) == (
        f"test_pending.py:{line}: db.execute('DELETE FROM flights') {MISSING}. Put `await` before db.execute."
    )


@pytest.mark.parametrize(
    ("use", "remedy"),
    [
        (lambda work: work.scalar_one(), "Write `(await db.execute(...)).scalar_one`."),
        (lambda work: work[0], "Write `(await db.execute(...))`."),
        (lambda work: 1 if work else 0, "Put `await` before db.execute."),
        (list, "Write `(await db.execute(...))`."),
        (len, "Write `(await db.execute(...))`."),
        (float, "Write `(await db.execute(...))`."),
        (lambda work: 1 + work, "Write `(await db.execute(...))`."),
        (lambda work: f"{work}", "Put `await` before db.execute."),
        (lambda work: work == 1, "Put `await` before db.execute."),
    ],
)
async def test_one_that_is_used_as_its_result(use: Callable[[Any], Any], remedy: str) -> None:
    async def tool(db: Db) -> None:
        use(db.execute("SELECT 1"))

    with pytest.raises(MissingAwaitError) as raised:
        await call(tool)
    assert str(raised.value).endswith(f"db.execute('SELECT 1') {MISSING}. {remedy}")


async def test_the_one_that_is_used_is_named_among_several() -> None:
    async def tool(db: Db) -> None:
        later = db.execute("SELECT 1")
        db.execute("SELECT 2").rowcount  # type: ignore[attr-defined]  # noqa: B018 - the mistake that is tested
        await later

    with pytest.raises(MissingAwaitError, match="SELECT 2"):
        await call(tool)


async def test_an_error_of_the_calls_own_is_not_explained_away() -> None:
    async def tool(db: Db) -> None:
        db.execute("SELECT 1")
        raise TypeError("of its own")

    with pytest.raises(TypeError, match="of its own"):
        await call(tool)
