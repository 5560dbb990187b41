"""A small shop, as a base and as a fork, in both modes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from shop_database import SHOP

from reward_kit.agent.database import Database


@pytest.fixture(params=["overlay", "file"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def base(tmp_path: Path, mode: str) -> Iterator[Database]:
    with Database.seed(tmp_path / "base.db", SHOP, mode=mode) as database:
        yield database


@pytest.fixture
def db(base: Database) -> Iterator[Database]:
    with base.fork() as database:
        yield database
