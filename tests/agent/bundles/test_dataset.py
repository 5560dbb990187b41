"""Reading a dataset: places of faults, what is passed over, what only looks odd."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reward_kit.agent.bundles.files import BundleFiles
from reward_kit.agent.rows.dataset import FORM, Dataset, read_dataset
from reward_kit.agent.rows.task_row import FaultyBundleError
from reward_kit.errors import BundleError


def row(row_id: str = "a", **fields: Any) -> str:
    said = [{"role": "user", "content": "hi"}]
    return json.dumps({"id": row_id, "toolset": "my_task.tools", "initial_messages": said, **fields})


def read(folder: Path, content: str | bytes) -> Dataset:
    path = folder / "task.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_dataset(path, BundleFiles(folder))


def faults(folder: Path, content: str | bytes) -> list[str]:
    with pytest.raises(FaultyBundleError) as caught:
        read(folder, content)
    return caught.value.faults


def test_rows_come_in_the_order_of_the_file_and_know_their_line(tmp_path: Path) -> None:
    dataset = read(tmp_path, f"{row('b')}\n{row('a')}\n")
    assert [(item.id, item.place) for item in dataset.rows] == [("b", "task.jsonl:1"), ("a", "task.jsonl:2")]
    assert dataset.warnings == []


def test_blank_lines_and_comments_are_passed_over(tmp_path: Path) -> None:
    dataset = read(tmp_path, f"# rows\n\n   \n{row('a')}\n  # {row('x')}\n{row('b')}")
    assert [item.place for item in dataset.rows] == ["task.jsonl:4", "task.jsonl:6"]


def test_a_row_may_be_wrapped_if_its_later_lines_are_indented(tmp_path: Path) -> None:
    wrapped = json.dumps(json.loads(row("wrapped")), indent=2)
    dataset = read(tmp_path, f"{row('a')}\n{wrapped}\n{row('b')}\n")
    assert [(item.id, item.place) for item in dataset.rows] == [
        ("a", "task.jsonl:1"), ("wrapped", "task.jsonl:2"), ("b", "task.jsonl:12"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"id": "a", "id": "b"}', "task.jsonl:1: not valid JSON: an object has the key 'id' twice"),
        ('{"id": "a", "x": 1e999}', "task.jsonl:1: not valid JSON: 1e999 is not a JSON number"),
        ('{"id": "a", "x": NaN}', "task.jsonl:1:18: not valid JSON: expected value"),
        ('{"id": "a",\n "x": "\\ud800"}', "task.jsonl:2:14: not valid JSON: unexpected end of hex escape"),
        ("[" * 100_000, "task.jsonl:1:202: not valid JSON: recursion limit exceeded"),
        ("nonsense", "task.jsonl:1:2: not valid JSON: expected ident"),
    ],
)
def test_json_that_cannot_be_used_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (fault,) = faults(tmp_path, text)
    assert fault.startswith(expected)


def test_text_that_is_not_utf8_is_refused_with_its_place(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, row().encode() + b'\n{"id": "\xff"}\n')
    assert re.match(r"task\.jsonl:2:(9|10): not valid JSON: invalid unicode", fault)
    with pytest.raises(BundleError, match="is UTF-16 text"):
        read(tmp_path, row().encode("utf-16"))


def test_the_faults_of_all_rows_are_told_together_one_line_each(tmp_path: Path) -> None:
    content = "\n".join([row("a", outputs=[4]), row("b"), "{", row("c", max_steps=0, outputs=3)])
    assert faults(tmp_path, content) == [
        "task.jsonl:1: row 'a', field 'outputs[0]': got 4 (a whole number), expected a string",
        f"task.jsonl:3:1: not valid JSON: EOF while parsing an object; {FORM}",
        "task.jsonl:4: row 'c', field 'outputs': got 3 (a whole number), expected a list of strings",
        "task.jsonl:4: row 'c', field 'max_steps': got 0 (a whole number), expected a whole number >= 1",
    ]


def test_ids_that_would_share_a_folder_name_both_lines(tmp_path: Path) -> None:
    same, other_case = faults(tmp_path, f"{row('Alice')}\n{row('Alice')}\n{row('alice')}\n")
    assert same == "task.jsonl:2: row 'Alice', field 'id': line 1 has the same id"
    assert "row 'alice', field 'id': line 1 has the id 'Alice', the same folder name" in other_case


def test_a_file_reference_becomes_the_text_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "policy.md").write_bytes(b"\xef\xbb\xbfBe kind.\r\nAlways.")
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "seed.sql").write_text("SELECT 1;")
    (tmp_path / "user.txt").write_text("You are Ann.")
    (item,) = read(
        tmp_path,
        row(system_prompt="file:policy.md", seed_sql="file:sql/seed.sql", sim_user_prompt="file:user.txt"),
    ).rows
    assert item.system_prompt == "file:policy.md"
    assert item.text("system_prompt") == "Be kind.\nAlways."
    assert item.text("sim_user_prompt") == "You are Ann."
    assert item.reward_fields()["seed_sql"] == "SELECT 1;"


def test_a_file_that_is_missing_or_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (tmp_path / "secret.md").write_text("secret")
    (bundle / "link.md").symlink_to(tmp_path / "secret.md")
    (bundle / "latin.md").write_bytes("line\nÄ".encode("latin-1"))
    names = ["missing.md", "../secret.md", str(tmp_path / "secret.md"), "link.md", ".", "", "latin.md"]
    found = faults(
        bundle, "\n".join(row(f"r{i}", system_prompt=f"file:{name}") for i, name in enumerate(names))
    )
    assert [fault.split("field 'system_prompt': ")[1].split(str(tmp_path))[0] for fault in found] == [
        "file 'missing.md' does not exist in ",
        "file '../secret.md' is outside of the bundle's folder ",
        "file '",
        "file 'link.md' is outside of the bundle's folder ",
        "file '.' is not a file in ",
        '"file:" names no file',
        "",
    ]
    assert found[-1].endswith("latin.md:2: is not UTF-8 text (unexpected end of data)")
    (bundle / "clinic.db").write_bytes(b"SQLite format 3\0" + bytes(80))
    (fault,) = faults(bundle, row(seed_sql="file:clinic.db"))
    assert fault.endswith(
        "is an SQLite database, not text. Write it as SQL: sqlite3 clinic.db .dump > clinic.sql"
    )


def test_likely_misspellings_are_told_once_with_their_number(tmp_path: Path) -> None:
    (warning,) = read(tmp_path, "\n".join(row(f"r{i}", n_rollout=4, difficulty=i) for i in range(3))).warnings
    assert warning.startswith("task.jsonl:1: row 'r0', field 'n_rollout': is kept as a field of your own;")
    assert warning.endswith("did you mean 'n_rollouts'? (also in 2 more rows)")


def test_a_row_that_says_nothing_to_the_agent_is_odd(tmp_path: Path) -> None:
    dataset = read(
        tmp_path, row("a", initial_messages=[]) + "\n" + row("b", initial_messages=[], sim_user_prompt="x")
    )
    (warning,) = dataset.warnings
    assert warning.startswith("task.jsonl:1: row 'a', field 'initial_messages'")


DEFAULTS = '{"defaults": {"toolset": ".tools", "n_rollouts": 4, "metadata": {"kind": "a"}, "own": [1]}}'


def test_defaults_are_fields_of_all_rows_that_lack_them(tmp_path: Path) -> None:
    own = {"id": "b", "n_rollouts": 1, "toolset": None, "initial_messages": [], "sim_user_prompt": "Bo"}
    dataset = read(tmp_path, f"# rows\n{DEFAULTS}\n\n{row('a')}\n{json.dumps(own)}\n")
    first, second = dataset.rows
    assert (first.place, first.toolset, first.n_rollouts) == ("task.jsonl:4", "my_task.tools", 4)
    assert (second.place, second.toolset, second.n_rollouts) == ("task.jsonl:5", ".tools", 1)
    assert (dict(second.more), second.metadata) == ({"own": [1]}, {"kind": "a"})
    assert dataset.warnings == []
    assert read(tmp_path, row("a", defaults={"x": 1})).rows[0].more == {"defaults": {"x": 1}}, "of a row"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (f"{row()}\n{DEFAULTS}", "task.jsonl:2: 'defaults' must be the first line; all rows get them"),
        (f"{DEFAULTS}\n{DEFAULTS}\n{row()}", "task.jsonl:2: 'defaults' must be the first line"),
        (f'{{"defaults": 3}}\n{row()}', "task.jsonl:1: 'defaults': got 3 (a whole number), expected an obj"),
        (f'{{"defaults": {{"id": "x"}}}}\n{row()}', "task.jsonl:1: 'defaults' has an 'id': each row has its"),
        (
            f'{{"defaults": {{"n_rollouts": 0}}}}\n{row("a")}\n{row("b")}',
            "task.jsonl:1: 'defaults', field 'n_rollouts': got 0 (a whole number), expected a whole number",
        ),
        (
            f'{{"defaults": {{"system_prompt": "file:no.md"}}}}\n{row("a")}\n{row("b")}',
            "task.jsonl:1: 'defaults', field 'system_prompt': file 'no.md' does not exist",
        ),
    ],
)
def test_faulty_defaults_are_told_once(tmp_path: Path, content: str, expected: str) -> None:
    (fault,) = faults(tmp_path, content)
    assert fault.startswith(expected)
