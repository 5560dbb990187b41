"""Random numbers and the clock of a rollout: repeatable where a seed and a time are given, real where not."""

import asyncio
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from reward_kit.agent.database import Database, Limits
from reward_kit.errors import DatabaseError

NOW = "2025-05-19T09:30:15.250Z"


async def ask(db: Database) -> list[object]:
    """Several questions that draw random numbers, in tool calls, transactions and by themselves."""
    answers: list[object] = [await db.fetch_val("SELECT hex(randomblob(4))")]
    async with db.tool_call():
        answers.append(await db.fetch_one("SELECT random(), random(), hex(randomblob(16))"))
        answers += await db.fetch_all("SELECT id FROM orders ORDER BY random()")
    await db.execute("INSERT INTO customers(name) VALUES (hex(randomblob(8)))")
    answers.append(await db.fetch_val("SELECT name FROM customers ORDER BY id DESC"))
    answers.append(await asyncio.to_thread(db.sync.fetch_val, "SELECT abs(random() % 1000)"))
    return answers


async def test_the_same_seed_gives_the_same_answers(base: Database) -> None:
    with base.fork(seed=7) as first, base.fork(seed=7) as second:
        assert await ask(first) == await ask(second)
        assert first.changes() == second.changes()


async def test_a_call_that_is_rolled_back_leaves_no_trace_in_the_numbers_to_come(base: Database) -> None:
    async def book(db: Database) -> str:
        async with db.tool_call():
            return await db.fetch_val("SELECT hex(randomblob(4))")

    async def fail(db: Database, error: type[BaseException]) -> None:
        async with db.tool_call():
            await book(db)
            await db.execute("INSERT INTO customers(name) VALUES (hex(randomblob(8)))")
            raise error

    async def fail_outside_a_call(db: Database) -> None:
        async with db.transaction():
            await db.fetch_val("SELECT random()")
            raise ValueError

    with base.fork(seed=7) as straight, base.fork(seed=7) as bumpy:
        expected = [await book(straight), await book(straight)]
        got = [await book(bumpy)]
        for error in (ValueError, asyncio.CancelledError):
            with pytest.raises(error):
                await fail(bumpy, error)
        with pytest.raises(ValueError):
            await fail_outside_a_call(bumpy)
        got.append(await book(bumpy))

    assert got == expected


async def test_what_is_tried_again_within_a_call_draws_other_numbers(base: Database) -> None:
    drawn = []
    with base.fork(seed=7) as db:
        async with db.tool_call():
            for _ in range(3):
                with suppress(DatabaseError):
                    async with db.transaction():
                        drawn.append(await db.fetch_val("SELECT random()"))
                        await db.execute("INSERT INTO customers(id, name) VALUES (1, 'taken')")
    assert len(set(drawn)) == 3


async def test_how_fast_the_machine_is_does_not_show_in_the_numbers(tmp_path: Path, mode: str) -> None:
    # a statement that takes too long for the event loop is started again elsewhere
    sql = (
        "WITH RECURSIVE c(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM c WHERE x < 3000)"
        " SELECT sum(random() % 1000), hex(randomblob(3)) FROM c"
    )
    answers = []
    for seconds in (60.0, 0.0):
        limits = Limits(inline_seconds=seconds)
        base = Database.seed(tmp_path / "b.db", "CREATE TABLE t(a)", mode=mode, limits=limits)
        with base, base.fork(seed=7) as db:
            async with db.tool_call():
                first = await db.fetch_one(sql)
                await db.execute(f"INSERT INTO t {sql.replace(', hex(randomblob(3))', '')}")
            rest = await db.fetch_one("SELECT a, random() FROM t")
            answers.append((first, rest))

    assert answers[0] == answers[1]


async def test_a_fork_of_a_fork_goes_on_where_its_origin_stands(base: Database) -> None:
    with base.fork(seed=7, now=NOW) as origin:
        await origin.fetch_val("SELECT random()")
        with origin.fork() as same, origin.fork(seed=8) as other, origin.fork(now="2030-01-01") as later:
            expected = await origin.fetch_one("SELECT random(), date('now')")
            assert await same.fetch_one("SELECT random(), date('now')") == expected
            assert await other.fetch_val("SELECT random()") != expected[0]
            assert await later.fetch_one("SELECT random(), date('now')") == (expected[0], "2030-01-01")


CLOCK = """
SELECT date('now') AS d, time('now') AS t, datetime('now') AS dt, CURRENT_DATE AS cd, CURRENT_TIME AS ct,
    CURRENT_TIMESTAMP AS cts, julianday('now') AS j, unixepoch('now') AS u,
    strftime('%Y-%m-%d %H:%M:%f', 'now') AS f,
    date() AS bare, strftime('%Y') AS year, date('NOW', 'start of month', '+1 month', '-1 day') AS last,
    date('2020-02-29', '+1 year') AS other, datetime(0, 'unixepoch') AS epoch, date('nonsense') AS wrong
"""


async def test_the_clock_stands_still_at_now(base: Database) -> None:
    with base.fork(now=NOW) as db:
        row = dict(await db.fetch_one(CLOCK))
        assert row.pop("j") == pytest.approx(2460814.8960098, abs=1e-6)
        date, time, both = "2025-05-19", "09:30:15", "2025-05-19 09:30:15"
        same = {"d": date, "t": time, "dt": both, "cd": date, "ct": time, "cts": both}
        more = {"u": 1747647015, "f": f"{both}.250", "bare": date, "year": "2025", "last": "2025-05-31"}
        real = {"other": "2021-03-01", "epoch": "1970-01-01 00:00:00", "wrong": None}
        assert row == {**same, **more, **real}
        await asyncio.sleep(0.01)
        assert await db.fetch_val("SELECT strftime('%f', 'now')") == "15.250"
        assert db.read_only().execute("SELECT date('now')").scalar_one() == "2025-05-19"


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2025-05-19", "2025-05-19 00:00:00"),
        ("2025-05-19T01:30:00+02:00", "2025-05-18 23:30:00"),
        (datetime(2025, 5, 19, 9, 30, tzinfo=timezone(timedelta(hours=-7))), "2025-05-19 16:30:00"),
    ],
)
async def test_now_may_be_written_in_many_ways(base: Database, now: str | datetime, expected: str) -> None:
    with base.fork(now=now) as db:
        assert await db.fetch_val("SELECT datetime('now')") == expected


def test_a_now_that_is_no_time_is_an_error(base: Database) -> None:
    with pytest.raises(DatabaseError, match="now='tomorrow' is not a date or time"):
        base.fork(now="tomorrow")
