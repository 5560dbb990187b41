"""Seeds that reach out or never end, and rows that name what is not theirs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, ROW, SEED, Bundle
from hostile import GOLD_RUN, Command

from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.agent.database import Database, seeding
from reward_kit.errors import BundleError, DatabaseError

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"


@pytest.mark.parametrize(
    ("sql", "part"),
    [
        ("ATTACH '{world}/other.db' AS o;", "ATTACH"),
        ("VACUUM INTO '{world}/other.db';", "VACUUM INTO"),
        ("SELECT load_extension('{world}/evil.so');", "load_extension"),
        ("PRAGMA writable_schema = 1; DELETE FROM sqlite_schema;", "may not be modified"),
        ("SELECT readfile('{world}/secret.txt');", "readfile"),
        ("CREATE VIRTUAL TABLE z USING csv(filename='{world}/secret.txt');", "csv"),
        ("INSERT INTO bookings VALUES (zeroblob(3000000000), 1, 'a', 'b');", "too big"),
        (f"SELECT {'(' * 5000}1{')' * 5000};", "Recursion|depth|overflow|limit"),
        ("BEGIN;", "begun and never ended"),
        (".shell touch {world}/other.txt", "syntax error"),
        ("SELECT 'a\0b';", "NUL"),
    ],
)
def test_a_seed_that_reaches_out_is_refused(world: Path, tmp_path: Path, sql: str, part: str) -> None:
    before = sorted(world.rglob("*"))
    with pytest.raises((BundleError, DatabaseError)) as caught:
        Database.seed(tmp_path / "b.db", SEED + sql.replace("{world}", str(world)), origin="seed.sql")
    assert any(each in str(caught.value) for each in part.split("|")), caught.value
    assert str(caught.value).startswith("seed.sql")
    assert len(str(caught.value)) < 500
    assert sorted(world.rglob("*")) == before
    assert list(tmp_path.glob("b.db*")) == []


@pytest.mark.parametrize(
    "sql", [f"{ENDLESS} SELECT count(*) FROM c;", f"CREATE TABLE t AS {ENDLESS} SELECT x FROM c;"]
)
def test_a_seed_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    monkeypatch.setattr(seeding, "STATEMENT_SECONDS", 0.3)
    with pytest.raises((BundleError, DatabaseError), match=r"seed.sql:5: .*ran longer than 0.3 s"):
        Database.seed(tmp_path / "b.db", SEED + sql, origin="seed.sql")
    assert list(tmp_path.glob("b.db*")) == []


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ({"seed_sql": "file:{world}/secret.txt"}, "outside"),
        ({"system_prompt": "file:/etc/passwd"}, "outside"),
        ({"system_prompt": "file:link/secret.txt"}, "outside"),
        ({"system_prompt": "file:loop.txt"}, "cannot be opened"),
        ({"system_prompt": "file:pipe"}, "is not a file"),
        ({"seed_sql": "file:."}, "is not a file"),
        ({"id": ".."}, "folder name"),
        ({"id": "a/../../b"}, "folder name"),
        ({"id": "x" * 5000}, "at most 128"),
        ({"id": "fl\u0456ght"}, "folder name"),
        ({"id": "a\u202eb"}, "folder name"),
        ({"id": ".bases"}, "output directory"),
        ({"toolset": "os.path"}, "outside of the bundle's folder"),
        ({"reward": "os:system"}, "kwargs"),
        ({"now": "0001-01-01T00:00:00+23:59"}, "ISO 8601"),
    ],
)
def test_a_row_that_reaches_out_is_one_error_with_its_line(
    world: Path, bundle: Bundle, row: dict[str, Any], part: str
) -> None:
    (bundle.folder / "link.txt").symlink_to(world / "secret.txt")
    (bundle.folder / "link").symlink_to(world)
    (bundle.folder / "loop.txt").symlink_to("loop.txt")
    os.mkfifo(bundle.folder / "pipe")
    bundle.rows({name: value.replace("{world}", str(world)) for name, value in row.items()})
    with pytest.raises(BundleError) as caught:
        TaskBundle.load(bundle.dataset)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("task.jsonl:1: ")
    assert part in line
    assert len(line) < 6000
    assert "the-secret-of-the-neighbour" not in line


@pytest.mark.parametrize("name", ["seed.sql", "seed.py", "prompts/user.txt"])
def test_a_file_that_is_a_link_to_outside_is_not_read(world: Path, bundle: Bundle, name: str) -> None:
    bundle.rows({"seed_sql": None})
    (bundle.folder / "seed.sql").unlink()
    (bundle.folder / "prompts").mkdir()
    (bundle.folder / name).symlink_to(world / "secret.txt")
    with pytest.raises(BundleError, match="link to a file outside") as caught:
        TaskBundle.load(bundle.dataset)
    assert "the-secret-of-the-neighbour" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        '{"initial_messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function", '
        '"function": {"name": "f", "arguments": "' + "[" * 100_000 + '"}}]}]}',
        '{"metadata": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"actions": [{"name": "f", "arguments": ' + '{"a": ' * 150 + "1" + "}" * 150 + "}]}",
        '{"n_rollouts": ' + "1" * 10_000 + "}",
        '{"id": "a", "id": "b"}',
        '{"id": "\\ud800"}',
        "\ufeff\ufeff{}",
        "\0",
    ],
    ids=["arguments", "bottomless", "actions", "digits", "twice", "half", "BOM", "NUL"],
)
def test_a_line_that_breaks_parsers_is_one_error_with_its_number(bundle: Bundle, content: str) -> None:
    bundle.dataset.write_text(json.dumps(ROW) + "\n" + content + "\n", encoding="utf-8")
    with pytest.raises(BundleError) as caught:
        TaskBundle.load(bundle.dataset)
    assert {line[:12] for line in str(caught.value).splitlines()} == {"task.jsonl:2"}


def test_strange_ids_stay_inside_of_the_output_folder(agent_eval: Command, bundle: Bundle) -> None:
    strange = ["con", "...", ".x.tmp", "base.db", "a.", "x" * 128]
    bundle.rows(*({"id": name, "actions": GOLD, "n_rollouts": 1} for name in strange))
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["score"]) == (0, 1.0), ran.err
    there = {path.name for path in (bundle.folder / "runs").iterdir()}
    assert there == {*strange, "evals", ".bases", ".cache", ".gitignore"}
