"""Equality of two databases up to the ids that tools made up."""

import itertools
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_task import small_task

from reward_kit.agent import Database, ToolRegistry
from reward_kit.agent.rewards import database_equal_up_to_ids
from reward_kit.agent.rollout.episode import Episode
from reward_kit.errors import RewardError

TABLES = """
    CREATE TABLE bookings(id {id} PRIMARY KEY, flight INTEGER, name TEXT);
    CREATE TABLE payments(id {id} PRIMARY KEY, {booking}, amount INTEGER);
    CREATE TABLE users(name TEXT PRIMARY KEY, history TEXT);
    INSERT INTO users VALUES ('ann', '[]'), ('bob', '[]');"""
SEEDS = {
    "numbers": TABLES.format(id="INTEGER", booking="booking_id INTEGER"),
    "foreign keys": TABLES.format(id="INTEGER", booking="paid_for INTEGER REFERENCES bookings"),
    "texts": TABLES.format(id="TEXT", booking="what TEXT"),
}


def airline(kind: str) -> ToolRegistry:
    registry = ToolRegistry("airline")
    make = "lower(hex(randomblob(4)))" if kind == "texts" else "NULL"

    @registry.tool(description="Book", parameters={"flight": int, "name": str})
    async def book(flight: int, name: str, db: Any) -> Any:
        sql = f"INSERT INTO bookings VALUES ({make}, :f, :n) RETURNING id"
        made = await db.fetch_val(sql, {"f": flight, "n": name})
        if kind == "texts":
            sql = "UPDATE users SET history = json_insert(history, '$[#]', :id) WHERE name = :n"
            await db.execute(sql, {"id": made, "n": name})
        return made

    @registry.tool(description="Pay", parameters={"booking": str, "amount": int})
    async def pay(booking: str, amount: int, db: Any) -> Any:
        value = booking if kind == "texts" else int(booking)
        sql = f"INSERT INTO payments VALUES ({make}, :b, :a) RETURNING id"
        return await db.fetch_val(sql, {"b": value, "a": amount})

    @registry.tool(description="Take a seat", parameters={"number": int})
    async def take(number: int, db: Any) -> None:
        await db.execute("INSERT INTO bookings VALUES (:n, 0, 'seat')", {"n": number})

    @registry.tool(description="Take a seat of a flight", parameters={"number": int, "flight": int})
    async def seat(number: int, flight: int, db: Any) -> None:
        await db.execute("INSERT INTO bookings VALUES (:n, :f, 'seat')", {"n": number, "f": flight})

    return registry


async def verdict(folder: Path, kind: str, done: list[Any], gold: list[Any], **options: Any) -> Any:
    """The check of a rollout that made the calls ``done`` against one that made ``gold``.

    A call is ``("book", flight, name)``, or ``("pay", position of the booking's call, amount)``.
    """
    states = []
    with Database.seed(folder / f"{random.random()}.db", SEEDS[kind]) as base:
        for calls in (done, gold):
            episode = Episode(small_task(folder, registry=airline(kind)), base=base, seed=len(states))
            states.append(episode)
            results: list[str] = []
            for name, *values in calls:
                if name == "pay":
                    values[0] = results[values[0]].strip('"')
                names = {"book": ("flight", "name"), "pay": ("booking", "amount"), "take": ("number",)}
                names["seat"] = ("number", "flight")
                names = names[name]
                results.append((await episode.call(name, dict(zip(names, values, strict=True)))).content)
        db, gold_db = (episode.database.read_only() for episode in states)

        done_calls = states[0].tool_calls
        gold_calls = [SimpleNamespace(name=one.name, arguments=one.arguments) for one in states[1].tool_calls]
        rollout = SimpleNamespace(tool_calls=done_calls, gold=gold_calls)
        found = database_equal_up_to_ids(db, gold_db, rollout, **options)
        for episode in states:
            episode.close()
    return found


ANN, BOB, TWIN = ("book", 7, "ann"), ("book", 9, "bob"), ("book", 7, "ann")


@pytest.mark.parametrize("kind", SEEDS)
@pytest.mark.parametrize(
    ("done", "gold", "equal"),
    [
        ([ANN, BOB], [BOB, ANN], True),
        ([ANN, BOB, ("pay", 0, 50)], [BOB, ANN, ("pay", 1, 50)], True),
        ([ANN, BOB, ("pay", 1, 50)], [BOB, ANN, ("pay", 1, 50)], False),  # the wrong booking is paid
        ([ANN, BOB, ("pay", 0, 50)], [ANN, BOB, ("pay", 1, 50)], False),
        ([ANN, BOB, ("pay", 1, 1), ("pay", 0, 2)], [BOB, ANN, ("pay", 1, 2), ("pay", 0, 1)], True),
        ([ANN, TWIN, ("pay", 0, 1), ("pay", 0, 2)], [ANN, TWIN, ("pay", 0, 2), ("pay", 0, 1)], True),
        ([ANN, TWIN, ("pay", 0, 1), ("pay", 1, 2)], [ANN, TWIN, ("pay", 1, 2), ("pay", 1, 1)], False),
        ([ANN], [ANN, TWIN], False),
        ([ANN], [BOB], False),
    ],
)
async def test_ids_that_tools_made_up_may_differ_but_not_what_refers_to_them(
    tmp_path: Path, kind: str, done: list[Any], gold: list[Any], equal: bool
) -> None:
    found = await verdict(tmp_path, kind, done, gold)
    assert (found.score == 1.0) is equal, found.reason


async def test_an_id_that_the_agent_chose_counts(tmp_path: Path) -> None:
    for three, two in ((3, 2), (3.0, 2.0)):
        found = await verdict(tmp_path, "numbers", [("take", three)], [("take", two)])
        assert found.score == 0.0
    found = await verdict(tmp_path, "numbers", [("take", 3)], [("take", 2)], ids=["bookings.id"])
    assert found.score == 1.0
    assert found == await verdict(tmp_path, "numbers", [("take", 3)], [("take", 2)], ids="Bookings.ID")
    for wrong in ("booking.id", "bookings.ids", "id"):
        with pytest.raises(RewardError, match=r"ids names .*, which is no column of the database\. Write"):
            await verdict(tmp_path, "numbers", [("take", 3)], [("take", 2)], ids=["bookings.id", wrong])
    done, gold = [("book", 2, "seat")], [("seat", 2, 2)]  # another tool chooses what gold has named
    assert (await verdict(tmp_path, "numbers", done, gold)).score == 0.0
    both = [[("seat", number, 2)] for number in (9, 2)]  # its key is another argument, too
    assert (await verdict(tmp_path, "numbers", *both)).score == 0.0


@pytest.mark.parametrize(
    ("done", "gold", "reason"),
    [
        ([BOB, ("pay", 0, 5)], [ANN, ("pay", 0, 5)], "bookings: missing row (flight=7, name='ann'); "),
        ([BOB, ANN, ("pay", 0, 5)], [BOB, ANN, ("pay", 1, 5)], "rows refer to other made-up ids than"),
    ],
)
async def test_the_reason_leaves_out_made_up_ids(tmp_path: Path, done: Any, gold: Any, reason: str) -> None:
    found = await verdict(tmp_path, "numbers", done, gold)
    assert found.reason.startswith(reason)
    assert "payments #1 booking_id: expected 2, got 1" in found.reason or "payments" not in found.reason


@pytest.mark.parametrize("seed", range(30))
async def test_verdict_is_that_of_trying_all_bijections(tmp_path: Path, seed: int) -> None:
    """Bookings that are often alike, paid at random; all assignments of bookings are tried as the oracle."""
    rng = random.Random(seed)
    bookings = [("book", rng.randint(1, 2), "ann") for _ in range(4)]
    payments = [(rng.randrange(4), rng.randint(1, 2)) for _ in range(5)]
    order = rng.sample(range(4), 4)
    other = [bookings[place] for place in order]
    moved = [(order.index(booking), amount) for booking, amount in payments]
    if seed % 3:
        place = rng.randrange(5)
        moved[place] = (rng.randrange(4), moved[place][1])
    equal = any(
        [bookings[one] for one in bijection] == other
        and sorted((bijection.index(booking), amount) for booking, amount in payments) == sorted(moved)
        for bijection in itertools.permutations(range(4))
    )
    done = bookings + [("pay", *one) for one in payments]
    gold = other + [("pay", *one) for one in rng.sample(moved, 5)]
    kind = "foreign keys" if seed % 2 else "numbers"
    found = await verdict(tmp_path, kind, done, gold, ids=["bookings.id", "payments.id"])
    assert (found.score == 1.0) is equal


@pytest.mark.parametrize(
    ("ours", "theirs", "score"),
    [([8], [8], 1.0), ([4, 4], [4, 4], 1.0), ([8], [4, 4], 0.0), ([6] * 6, [*[6] * 5, 3, 3], None)],
)
async def test_ids_with_equal_neighbours_are_told_apart_by_trying(
    tmp_path: Path, ours: list[int], theirs: list[int], score: float | None
) -> None:
    """Circles of ids: each has two neighbours, so that only whole assignments show a difference."""
    seed = """CREATE TABLE nodes(id INTEGER PRIMARY KEY);
        CREATE TABLE links(a REFERENCES nodes, b REFERENCES nodes);"""
    with Database.seed(tmp_path / "base.db", seed) as base, base.fork() as db, base.fork() as gold:
        for state, circles, first in ((db, ours, 100), (gold, theirs, 7)):
            for size in circles:
                nodes = list(range(first, first + size))
                await state.executemany("INSERT INTO nodes VALUES (?)", [[node] for node in nodes])
                links = list(zip(nodes, [*nodes[1:], nodes[0]], strict=True))
                await state.executemany("INSERT INTO links VALUES (?, ?)", links)
                first += size
        views = db.read_only(), gold.read_only()
        if score is None:
            with pytest.raises(RewardError, match="so alike that 500 attempts"):
                database_equal_up_to_ids(*views, ids=["nodes.id"])
        else:
            assert database_equal_up_to_ids(*views, ids=["nodes.id"]).score == score


def bunks() -> ToolRegistry:
    registry = ToolRegistry("bunks")

    @registry.tool(description="Add a room", parameters={"number": int})
    async def add(number: int, db: Any) -> None:
        await db.execute("INSERT INTO rooms(number) VALUES (:n)", {"n": number})

    @registry.tool(description="Book and pay by codes", parameters={"name": str})
    async def book(name: str, db: Any) -> Any:
        sql = "INSERT INTO bookings VALUES (abs(random()), :n) RETURNING code"
        return await db.fetch_val(sql, {"n": name})

    @registry.tool(description="Order and ship under a key of one name", parameters={"item": str})
    async def order(item: str, db: Any) -> Any:
        sql = "INSERT INTO orders VALUES (abs(random()), :item) RETURNING order_id"
        made = await db.fetch_val(sql, {"item": item})
        await db.execute("INSERT INTO shipments VALUES (:made, 'new')", {"made": made})
        return made

    @registry.tool(description="Fly under a key with the flight in it", parameters={"flight": str})
    async def fly(flight: str, db: Any) -> Any:
        sql = "INSERT INTO trips VALUES (:f || abs(random()), :f) RETURNING id"
        return await db.fetch_val(sql, {"f": flight})

    @registry.tool(description="Join under the name in an address", parameters={"mail": str})
    async def join(mail: str, db: Any) -> Any:
        sql = "INSERT INTO members VALUES (:key, :mail)"
        await db.execute(sql, {"key": mail.partition("@")[0], "mail": mail})

    @registry.tool(description="Pay", parameters={"booking": int})
    async def pay(booking: int, db: Any) -> Any:
        await db.execute("INSERT INTO payments VALUES (abs(random()), :b)", {"b": booking})

    return registry


@pytest.mark.parametrize(
    ("done", "gold", "score"),
    [
        ([("add", 9)], [("add", 2)], 0.0),  # 2 is the number of its beds, too
        ([("book", "a"), ("book", "b"), ("pay", 0)], [("book", "b"), ("book", "a"), ("pay", 1)], 1.0),
        ([("book", "a"), ("book", "b"), ("pay", 1)], [("book", "b"), ("book", "a"), ("pay", 1)], 0.0),
        ([("order", "a"), ("order", "b")], [("order", "b"), ("order", "a")], 1.0),
        ([("fly", "FL100"), ("fly", "FL200")], [("fly", "FL200"), ("fly", "FL100")], 1.0),
        ([("fly", "FL100"), ("fly", "FL100")], [("fly", "FL200"), ("fly", "FL100")], 0.0),
        ([("join", "bob.ray@x.org")], [("join", "ann.lee@x.org")], 0.0),
    ],
)
async def test_keys_of_one_name_and_values_that_a_row_repeats(
    tmp_path: Path, done: list[Any], gold: list[Any], score: float
) -> None:
    sql = """CREATE TABLE rooms(number INTEGER PRIMARY KEY, beds INTEGER DEFAULT 2);
    CREATE TABLE bookings(code INTEGER PRIMARY KEY, name TEXT);
    CREATE TABLE payments(code INTEGER PRIMARY KEY, booking_code INTEGER);
    CREATE TABLE orders(order_id INTEGER PRIMARY KEY, item TEXT);
    CREATE TABLE shipments(order_id INTEGER PRIMARY KEY, status TEXT);
    CREATE TABLE trips(id TEXT PRIMARY KEY, flight TEXT);
    CREATE TABLE members(login TEXT PRIMARY KEY, mail TEXT);"""
    states = []
    with Database.seed(tmp_path / "base.db", sql) as base:
        for calls in (done, gold):
            episode = Episode(small_task(tmp_path, registry=bunks()), base=base, seed=len(states))
            states.append(episode)
            results: list[Any] = []
            for name, value in calls:
                named = {"add": "number", "book": "name", "pay": "booking", "order": "item", "fly": "flight"}
                named["join"] = "mail"
                given = named[name]
                value = results[value] if name == "pay" else value
                results.append((await episode.call(name, {given: value})).value)
        rollout = SimpleNamespace(tool_calls=states[0].tool_calls, gold=states[1].tool_calls)
        db, gold_db = (episode.database.read_only() for episode in states)
        found = database_equal_up_to_ids(db, gold_db, rollout)
        of_async: list[Any] = [episode.database.read_only_async() for episode in states]
        assert database_equal_up_to_ids(*of_async, rollout) == found
        for episode in states:
            episode.close()
    assert found.score == score, found.reason
