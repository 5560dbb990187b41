"""``db.execute(…)`` in a reward behaves as a connection of SQLAlchemy does."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shop_database import SHOP
from sqlalchemy import Connection, bindparam, create_engine, text

from reward_kit.agent.database import Database, ReadOnlyDatabase

QUERIES = {
    "three rows": "SELECT id, name, credit FROM customers ORDER BY id",
    "one row": "SELECT id, name FROM customers WHERE id = 1",
    "one value": "SELECT count(*) FROM orders",
    "a null": "SELECT NULL AS void",
    "no row": "SELECT id, name FROM customers WHERE id = 99",
    "many rows": "SELECT id FROM customers UNION ALL SELECT id + 10 FROM customers ORDER BY 1",
    "equal rows": "SELECT 1 AS a, 2 AS b UNION ALL SELECT 1, 2 UNION ALL SELECT 3, 4",
    "equal names": "SELECT 1 AS a, 2 AS b, 3 AS a",
    "odd names": "SELECT 1 AS 'count', 2 AS 'x y', 3 AS \"index\", 4",
    "blobs": "SELECT id, note FROM orders ORDER BY id",
}

USES: dict[str, Callable[[Any], Any]] = {
    "all": lambda r: r.all(),
    "fetchone": lambda r: [r.fetchone(), r.fetchone()],
    "fetchmany": lambda r: [r.fetchmany(2), r.fetchmany(2), r.fetchmany()],
    "first": lambda r: r.first(),
    "one": lambda r: r.one(),
    "scalar": lambda r: r.scalar(),
    "scalar_one": lambda r: r.scalar_one(),
    "scalars": lambda r: r.scalars().all(),
    "scalars of a name": lambda r: r.scalars("name").all(),
    "mappings": lambda r: [dict(row) for row in r.mappings()],
    "keys": lambda r: list(r.keys()),
    "unique": lambda r: r.unique().all(),
    "columns by name": lambda r: r.columns("b", "a").all(),
    "closed": lambda r: [r.closed, r.close(), r.closed],
    "with": lambda r: with_result(r),
    "returns_rows": lambda r: r.returns_rows,
    "rowcount": lambda r: r.rowcount,
    "row by name": lambda r: [row.name for row in r],
    "row by text": lambda r: [row["name"] for row in r],
    "row as dict": lambda r: [row._asdict() for row in r],
    "row compared": lambda r: [row == tuple(row) for row in r],
}


IDS = bindparam("ids", expanding=True)


def with_result(result: Any) -> list[object]:
    with result as opened:
        rows = opened.all()
    return [rows, result.closed]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with Database.seed(tmp_path_factory.mktemp("shop") / "base.db", SHOP) as base:
        yield base


@pytest.fixture(scope="module")
def ours(shop: Database) -> ReadOnlyDatabase:
    return shop.read_only()


@pytest.fixture(scope="module")
def theirs(shop: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    file = shop.export(tmp_path_factory.mktemp("theirs") / "copy.db")
    engine = create_engine(f"sqlite:///{file}")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def outcome(use: Callable[[Any], Any], result: Any) -> object:
    """What ``use`` gives, or the type and the text of the error that it raises."""
    try:
        given = use(result)
    except Exception as error:  # noqa: BLE001 - whatever SQLAlchemy raises
        for kind in (KeyError, AttributeError):  # of an unknown column: the words differ
            if isinstance(error, kind):
                return kind
        return type(error), str(error)
    return given, type(given)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("query", QUERIES)
def test_results_behave_as_those_of_sqlalchemy(ours: Any, theirs: Connection, query: str, use: str) -> None:
    sql = QUERIES[query]
    assert outcome(USES[use], ours.execute(sql)) == outcome(USES[use], theirs.execute(text(sql)))


@pytest.mark.parametrize(
    ("clause", "params"),
    [
        (text("SELECT name FROM customers WHERE id = :id"), {"id": 2}),
        (text("SELECT name FROM customers WHERE id = :id").bindparams(id=3), None),
        (text("SELECT name FROM customers WHERE id = :id").bindparams(id=3), {"id": 1}),
        (text("SELECT name FROM customers WHERE id IN :ids").bindparams(IDS), {"ids": [1, 3]}),
        (text("SELECT \"name\", :name, 'a%b' FROM customers WHERE name LIKE :name || '%'"), {"name": "A"}),
        (text(r"SELECT 'at 9\:30'"), None),
        (text("SELECT :x, :x"), {"x": None}),
    ],
)
def test_text_takes_parameters_as_with_sqlalchemy(ours: Any, theirs: Any, clause: Any, params: Any) -> None:
    assert ours.execute(clause, params).all() == theirs.execute(clause, params).all()


@pytest.mark.parametrize(
    "use", ["all", "fetchone", "scalars", "keys", "rowcount", "returns_rows", "row by name"]
)
def test_a_write_has_the_result_that_it_has_in_sqlalchemy(base: Database, theirs: Any, use: str) -> None:
    sql = "UPDATE customers SET credit = credit WHERE id = 1"
    with base.fork() as fork:
        ours = outcome(USES[use], fork.sync.execute(sql))
    assert ours == outcome(USES[use], theirs.execute(text(sql)))


async def test_views_tell_changes_and_equality_like_the_database(base: Database) -> None:
    with base.fork() as db, base.fork() as gold, base.fork() as untouched:
        for fork, credit in ((db, 1), (gold, 2)):
            await fork.execute("UPDATE customers SET credit = ? WHERE id = 1", [credit])
        for view in (db.read_only(), db.read_only_async(), db.sync):
            assert view.changes() == db.changes()
            assert not view.equals(gold.read_only())
            assert not view.equals(untouched)
            assert view.equals(gold, ignore={"customers.credit"})
            assert view.equals(untouched.read_only_async(), ignore={"*.credit"})


def test_a_database_of_another_base_is_compared_row_by_row(tmp_path: Path, mode: str) -> None:
    one = Database.seed(tmp_path / "one.db", SHOP, mode=mode)
    other = SHOP + "UPDATE customers SET credit = 3 WHERE id = 3;"
    with one, Database.seed(tmp_path / "two.db", other, mode=mode) as two, one.fork() as fork:
        assert not fork.equals(two)
        assert fork.equals(two, ignore={"customers.credit"})
        fork.sync.execute("UPDATE customers SET credit = 3.0 WHERE id = 3")
        assert fork.equals(two)
        assert two.equals(fork)
