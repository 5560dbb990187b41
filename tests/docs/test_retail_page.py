"""The page about the retail bundle lists what is in the bundle."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pages import ROOT
from pages import table as table_of

from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.agent.database import Database

BUNDLE = ROOT / "tau_retail_task"
PAGE = ROOT / "docs" / "retail.md"
TEXT = PAGE.read_text(encoding="utf-8")


def table(header: str) -> list[list[str]]:
    """The cells of the table whose header begins like this, without the header."""
    return table_of(TEXT[TEXT.index(f"| {header} |") :])


def load(dataset: str) -> list[Any]:
    with TaskBundle.load(BUNDLE / dataset) as bundle:
        return bundle.tasks


def test_the_tools_are_those_of_the_bundle() -> None:
    registry = load("task_dev.jsonl")[0].registry
    listed = {name.strip("`"): effect for name, effect in table("tool")}
    assert list(listed) == list(registry.tools)
    assert [name for name, effect in listed.items() if "ends" in effect] == [
        name for name, tool in registry.tools.items() if tool.terminal
    ]


def test_the_tables_are_those_of_the_seed(tmp_path: Path) -> None:
    listed = {name: int(rows) for names, rows, _ in table("table") for name in re.findall(r"`(\w+)`", names)}
    drawn = set(re.findall(r"^    (\w+) \|.* (\w+) : ", TEXT, re.MULTILINE))
    assert {name for pair in drawn for name in pair} == set(listed)
    with Database.seed(tmp_path / "base.db", (BUNDLE / "seed.sql").read_text(encoding="utf-8")) as base:
        db = base.read_only()
        names = [name for (name,) in db.fetch_all("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        own = [name for name in names if not name.startswith("sqlite_")]
        counts = {name: db.fetch_val(f"SELECT count(*) FROM {name}") for name in own}
        keys = {name: db.fetch_all(f"PRAGMA foreign_key_list({name})") for name in own}
        references = {(row["table"], name) for name, rows in keys.items() for row in rows}
    assert listed == counts
    assert drawn <= references


def test_the_datasets_have_the_sizes_that_the_page_says() -> None:
    for name, tasks, first, calls, with_outputs in table("dataset"):
        rows = [task.row for task in load(name.strip("`"))]
        assert f"`{rows[0].id}` …" == first
        counted = [len(rows), sum(len(row.actions) for row in rows), sum(bool(row.outputs) for row in rows)]
        assert counted == [int(tasks), int(calls), int(with_outputs)]


WRITES = ("cancel", "exchange", "modify", "return")
DIFFERENCES: dict[str, Callable[[Any], Any]] = {
    "gold calls that change data": lambda row: [a for a in row.actions if a.name.startswith(WRITES)],
    "lookups among the gold calls": lambda row: [a for a in row.actions if not a.name.startswith(WRITES)],
    "outputs": lambda row: row.outputs,
}


def test_the_corrections_are_those_of_the_rows() -> None:
    corrected, classic = ([task.row for task in load(name)] for name in ("task.jsonl", "task_classic.jsonl"))
    pairs = list(zip(corrected, classic, strict=True))
    listed = {what: {int(index) for index in indexes.split(",")} for what, indexes in table("what differs")}
    for what, field in DIFFERENCES.items():
        assert listed[what] == {i for i, (new, old) in enumerate(pairs) if field(new) != field(old)}, what
    prompts = {i for i, (new, old) in enumerate(pairs) if new.sim_user_prompt != old.sim_user_prompt}
    assert listed["what the customer wants or says"] <= prompts
    counts = re.search(r"customer of (\d+) more tasks.*?; (\d+) rows are corrected", TEXT, re.DOTALL)
    assert counts is not None
    more, altogether = map(int, counts.groups())
    told = {i for i, row in enumerate(corrected) if "correction" in row.metadata}
    assert len(told) == altogether
    assert len(told - set.union(*listed.values())) == more
