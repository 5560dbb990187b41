"""Seeds: where they come from, and when two of them are the same."""

import sqlite3
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from reward_kit.agent.bundles.seed import SeedScript, SeedSource, folder_source
from reward_kit.errors import BundleError


def script(folder: Path, source: str) -> SeedScript:
    (folder / "seed.py").write_text(source)
    return SeedScript(folder / "seed.py")


def run(seed_script: SeedScript) -> list[object]:
    with sqlite3.connect(":memory:") as db:
        seed_script(db)
        return [row[0] for row in db.execute("SELECT x FROM t ORDER BY x")]


def test_seed_sql_runs_before_seed_py(tmp_path: Path) -> None:
    (tmp_path / "seed.sql").write_text("CREATE TABLE t (x);")
    (tmp_path / "seed.py").write_text("def seed(db):\n    db.execute('INSERT INTO t VALUES (1)')\n")
    seed = folder_source(tmp_path).at()
    assert seed.sql == "CREATE TABLE t (x);"
    assert seed.origin == f"{tmp_path.name}/seed.sql"
    with sqlite3.connect(":memory:") as db:
        db.executescript(seed.sql)
        assert seed.script is not None
        seed.script(db)
        assert db.execute("SELECT x FROM t").fetchall() == [(1,)]


def test_equal_contents_have_equal_keys_wherever_they_are(tmp_path: Path) -> None:
    keys = set()
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "seed.sql").write_text("SELECT 1;")
        keys.add(folder_source(folder).at().key)
    keys.add(SeedSource("SELECT 1;", origin="task.jsonl:1 seed_sql").at("2025-05-19").key)
    assert len(keys) == 1
    assert len(keys.pop()) == 64


def test_other_sql_another_script_or_another_input_file_gives_another_key(tmp_path: Path) -> None:
    keys = [folder_source(tmp_path).at().key]
    (tmp_path / "data").mkdir()
    for name, text in (
        ("seed.sql", "SELECT 1;"),
        ("seed.py", "SEED_FILES = ['data/*.json']\ndef seed(db): pass\n"),
        ("data/users.json", "[]"),
        ("data/users.json", "[1]"),
    ):
        (tmp_path / name).write_text(text)
        keys.append(folder_source(tmp_path).at().key)
    assert len(set(keys)) == len(keys)
    (tmp_path / "other.json").write_text("{}")
    assert folder_source(tmp_path).at().key == keys[-1]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (date('now', '+1 day'));",
        'INSERT INTO t VALUES (date("now"));',
        "INSERT INTO t VALUES (strftime('%Y-%m-%d'), 1);",
        "INSERT INTO t VALUES (unixepoch('subsec'));",
        'db.execute("INSERT INTO t VALUES (date(?))", ["now"])',
        'db.execute("INSERT INTO t VALUES (date(:d))", {"d": "now"})',
        "CREATE TABLE t (at TEXT DEFAULT CURRENT_TIMESTAMP);",
        "db.execute('INSERT INTO t VALUES (?)', [time.localtime().tm_year])",
    ],
)
def test_a_seed_that_reads_the_clock_has_a_key_for_each_time(sql: str) -> None:
    source = SeedSource(sql)
    assert source.at("2025-05-19").key != source.at("2025-05-20").key
    assert source.at("2025-05-19").now == "2025-05-19"
    assert source.at().key == source.at(datetime.now(UTC).date().isoformat()).key


@pytest.mark.parametrize(
    "text", ["Nowak", "Now (me)", "Unknown (see note)", "subsection", '{"when": "now"}', 'day.strftime("%Y")']
)
def test_words_do_not_read_the_clock(text: str) -> None:
    source = SeedSource(f"INSERT INTO t VALUES ('{text}', date('2024-05-15'));")
    assert source.at("2025-05-19").key == source.at("2025-05-20").key


def test_a_seed_script_fills_the_database_and_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("VALUES = [3, 1, 2]\n")
    source = (
        "from .data import VALUES\n"
        f"from {tmp_path.name}.data import VALUES as SAME\n"
        "def seed(db):\n"
        "    db.execute('CREATE TABLE t (x)')\n"
        "    db.executemany('INSERT INTO t VALUES (?)', [(x,) for x in VALUES if x in SAME])\n"
    )
    tmp_path.joinpath("seed.py").write_text(source)
    before = list(sys.path)
    assert run(SeedScript(tmp_path / "seed.py")) == [1, 2, 3]
    assert sys.path == before
    assert not [name for name in sys.modules if name.startswith("_reward_kit_seed")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def sed(db): pass\n", 'has no "def seed(db)"'),
        ("def seed(db):\nx\n", "seed.py:2: SyntaxError: expected an indented block"),
        ("SEED_FILES = 'data.json'\ndef seed(db): pass\n", 'seed.py:1: "SEED_FILES" must be a literal list'),
    ],
)
def test_a_faulty_script_is_refused_before_it_runs(tmp_path: Path, source: str, expected: str) -> None:
    (tmp_path / "seed.py").write_text(source)
    with pytest.raises(BundleError) as caught:
        folder_source(tmp_path).at()
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("source", "line", "fault"),
    [
        ("def seed(db):\n    db.execute('SELECT nonsense')\n", 2, "no such column: nonsense"),
        ("import not_there\ndef seed(db): pass\n", 1, "No module named 'not_there'"),
        ("def seed(db):\n    raise SystemExit(3)\n", 2, "SystemExit"),
    ],
)
def test_what_a_script_raises_is_told_with_line(tmp_path: Path, source: str, line: int, fault: str) -> None:
    with pytest.raises(BundleError) as caught:
        run(script(tmp_path, source))
    assert f"seed.py:{line}:" in str(caught.value)
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [("/etc/*", "SEED_FILES"), ("../outside.txt", "outside of the bundle"), ("link.txt", "outside of the")],
)
def test_input_files_outside_of_the_folder_are_not_read(tmp_path: Path, pattern: str, fault: str) -> None:
    folder = tmp_path / "my_task"
    folder.mkdir()
    (tmp_path / "outside.txt").write_text("x")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    made = script(folder, f"SEED_FILES = [{pattern!r}]\ndef seed(db):\n    pass\n")
    with pytest.raises(BundleError, match=fault) as caught:
        made.fingerprint()
    assert caught.value.place == str(folder / "seed.py")
