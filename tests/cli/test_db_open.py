"""``reward-kit db``: what it prints and returns when SQL, a file or a path is wrong."""

import os
from pathlib import Path
from typing import Any

import pytest
from command import Finished, run_command

from reward_kit.agent.database.seeding import seed_base


def db(*arguments: str | Path, **options: Any) -> Finished:
    return run_command("db", *arguments, **options)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return seed_base(tmp_path / "base.db", "CREATE TABLE t (x); INSERT INTO t VALUES (41);")


def test_an_error_is_printed_once(base: Path) -> None:
    done = db("open", base, "SELECT * FROM nosuch")
    assert done.code == 1
    assert done.err.count("no such table: nosuch") == 1


@pytest.mark.parametrize("end", ["", ".exit\n"])
def test_a_script_with_an_error_goes_on_and_returns_1(base: Path, end: str) -> None:
    done = db("open", base, typed=f"SELECT * FROM nosuch;\nSELECT x + 1 FROM t;\n{end}")
    assert (done.code, done.out.strip()) == (1, "42")
    assert done.err.count("no such table: nosuch") == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
@pytest.mark.parametrize(
    "arguments", [("open", "pipe", "SELECT 1"), ("changes", "pipe"), ("export", "base.db", "pipe", "--force")]
)
def test_a_pipe_is_neither_waited_for_nor_replaced(base: Path, arguments: tuple[str, ...]) -> None:
    os.mkfifo(base.parent / "pipe")
    done = db(*arguments, cwd=base.parent)
    assert done.code == 2
    assert "pipe" in done.err
    assert len(done.err.splitlines()) <= 4
    assert (base.parent / "pipe").is_fifo()
