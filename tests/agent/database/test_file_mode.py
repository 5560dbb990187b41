"""``database="file"``: each fork is a complete SQLite file with a path and an engine."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from shop_database import SHOP
from sqlalchemy import Float, String, select, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from reward_kit.agent.database import Database
from reward_kit.errors import DatabaseError


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String)
    credit: Mapped[float | None] = mapped_column(Float)


@pytest.fixture
def mode() -> str:
    return "file"


@pytest.fixture
def db(base: Database) -> Iterator[Database]:
    with base.fork(seed=3, now="2025-05-19") as database:
        yield database


def names(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM customers ORDER BY id")]


async def add_with_engine(db: Database, name: str) -> None:
    async with AsyncSession(db.engine) as session:
        session.add(Customer(name=name))
        await session.commit()


def add_with_sync_engine(db: Database, name: str) -> None:
    with Session(db.sync.engine) as session:
        session.add(Customer(name=name))
        session.commit()


async def test_each_fork_has_a_complete_file_of_its_own(base: Database, db: Database, tmp_path: Path) -> None:
    with base.fork() as other:
        await db.execute("INSERT INTO customers(name) VALUES ('Dora')")
        assert names(db.path) == ["Alice", "Bob", "Çiğdem", "Dora"]
        assert names(other.path) == names(tmp_path / "base.db") == ["Alice", "Bob", "Çiğdem"]
        assert (db.mode, db.sync.path, db.read_only().path) == ("file", db.path, db.path)


async def test_overlay_databases_and_bases_have_no_engine(base: Database, tmp_path: Path) -> None:
    with Database.seed(tmp_path / "overlay.db", SHOP) as overlay, overlay.fork() as fork:
        assert fork.path is None
        for view in (fork, fork.sync):
            with pytest.raises(DatabaseError, match=r'ToolRegistry.*database="file"'):
                _ = view.engine
    for view in (base, base.sync):
        with pytest.raises(DatabaseError, match=r"a base has no engine. fork\(\) it"):
            _ = view.engine


async def test_an_orm_works_on_the_engine(db: Database) -> None:
    async with db.tool_call() as call:
        async with AsyncSession(db.engine) as session:
            alice = (await session.execute(select(Customer).where(Customer.name == "Alice"))).scalar_one()
            alice.credit = 99
            session.add(Customer(name="Dora"))
            await session.commit()
        assert await db.fetch_val("SELECT credit FROM customers WHERE id = 1") == 99
    assert [(change.op, change.after) for change in call.changes] == [
        ("update", {"credit": 99.0}),
        ("insert", {"id": 4, "name": "Dora", "credit": None}),
    ]
    assert db.changes() == call.changes


async def test_writing_with_both_at_once_is_an_error_that_says_why(db: Database) -> None:
    async with db.engine.begin() as connection:
        await connection.execute(text("INSERT INTO customers(name) VALUES ('Dora')"))
        with pytest.raises(DatabaseError, match=r"locked.*db\.engine, or to db\.path.*In one call, write"):
            await db.execute("INSERT INTO customers(name) VALUES ('Emil')")
    async with db.tool_call():
        await db.execute("INSERT INTO customers(name) VALUES ('Emil')")
        for adding in (add_with_engine(db, "Fred"), asyncio.to_thread(add_with_sync_engine, db, "Fred")):
            with pytest.raises(
                OperationalError, match=r"locked: another .* that of `db`.*In one call, write"
            ):
                await adding
    assert names(db.path)[3:] == ["Dora", "Emil"]


async def test_the_engine_has_random_numbers_clock_and_keys_of_the_fork(base: Database, db: Database) -> None:
    question = "SELECT hex(randomblob(4)), random(), date('now'), CURRENT_TIMESTAMP"
    async with db.engine.connect() as connection:
        answer = (await connection.execute(text(question))).one()
        with pytest.raises(IntegrityError, match="FOREIGN KEY"):
            await connection.execute(text("INSERT INTO orders VALUES ('W9', 99, 'paid', 1, NULL)"))
    assert answer[2:] == ("2025-05-19", "2025-05-19 00:00:00")
    with base.fork(seed=3, now="2025-05-19") as twin:
        assert await twin.fetch_one(question) == answer
    with base.fork(seed=3, now="2025-05-19") as other, other.sync.engine.connect() as blocking:
        assert blocking.execute(text(question)).one() == answer
        with pytest.raises(IntegrityError, match="FOREIGN KEY"):
            blocking.execute(text("INSERT INTO orders VALUES ('W9', 99, 'paid', 1, NULL)"))


async def test_a_failing_call_undoes_what_db_wrote_and_leaves_what_the_engine_committed(db: Database) -> None:
    async def failing() -> None:
        async with db.tool_call():
            await add_with_engine(db, "Dora")
            await db.execute("DELETE FROM orders")
            raise ValueError

    with pytest.raises(ValueError):
        await failing()
    assert await db.fetch_val("SELECT count(*) FROM orders") == 3
    assert [change.after["name"] for change in db.changes()] == ["Dora"]
    async with db.tool_call() as call:
        await add_with_engine(db, "Emil")
    assert [change.after["name"] for change in call.changes] == ["Emil"]
