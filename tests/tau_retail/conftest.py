"""The retail domain, seeded once for all tests."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
for folder in (str(HERE.parents[1]), str(HERE)):  # the bundle itself, and the helper modules beside this file
    if folder not in sys.path:
        sys.path.insert(0, folder)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The seeded base; every test forks it."""
    from places import BUNDLE

    from reward_kit.agent.database import Database

    path = tmp_path_factory.mktemp("retail") / "base.db"
    with Database.seed(path, (BUNDLE / "seed.sql").read_text(encoding="utf-8")) as database:
        yield database


@pytest.fixture
def db(base: Any) -> Iterator[Any]:
    """A private copy of the seeded data."""
    with base.fork() as fork:
        yield fork


@pytest.fixture(scope="session")
def seeded_data(base: Any) -> Any:
    """The data of the benchmark, which nothing may change."""
    from reference import domain_of

    return domain_of(base.read_only())


@pytest.fixture
def data(seeded_data: Any) -> Any:
    """A private copy of the data of the benchmark."""
    from reference import private

    return private(seeded_data)


@pytest.fixture
def call(db: Any) -> Any:
    """``await call(name, **arguments)``: what the model sees of a call on the private copy."""
    from tau_retail_task.tools import R

    async def call_tool(name: str, **arguments: Any) -> str:
        return await R.execute_tool(name, arguments, db=db)

    return call_tool
