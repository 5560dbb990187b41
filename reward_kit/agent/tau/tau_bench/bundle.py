"""The bundle of a checkout of tau-bench: code of ``tau_retail_task``, texts of the benchmark."""

from __future__ import annotations

import asyncio
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent import Database, TaskBundle
from reward_kit.agent.tau.source import SourceError, new_folder, put
from reward_kit.agent.tau.tau_bench.checkout import Checkout, Row, read_checkout
from reward_kit.agent.tau.tau_bench.seed import BUNDLE, make_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

_WRITTEN = Path(__file__).parent / "written"
_HOME = "https://github.com/sierra-research/tau-bench"
_PAPER = (
    "Yao, Shinn, Razavi, Narasimhan: τ-bench: A Benchmark for Tool-Agent-User Interaction in "
    "Real-World Domains, 2024, https://arxiv.org/abs/2406.12045"
)
_DIFFERENCES = """\
The benchmark no longer updates these tasks: some gold actions and outputs are known to be wrong, and are \
unchanged here.
`act` and `react`: the system prompts are the benchmark's, but reward-kit parses the answers. It accepts \
JSON with small faults, and asks again after an `Action:` without JSON; the benchmark sends such a text to \
the user.
`--user react`: the agent does not see the user's thought, which the benchmark passes on. ###STOP### in a \
thought does not end the conversation.
`--user verify` and `reflection`: the questions about a draft are the benchmark's, but verify shows the \
user's line where the benchmark shows the repr of an object. After a rejected draft, reward-kit asks again \
with a note and uses the last draft; the benchmark repeats the question for verify, and may return to the \
first draft for reflection.
`--agent few-shot`: the rollout's seed selects the five examples.
Each rollout has its own seed, which is sent to the models. After an empty answer the model is asked again. \
A rollout that ends with an error is played again; `--errors-as-failures` counts it as failed.
Calls with missing or wrong arguments, calls of unknown tools and calculations that would take too long get \
reward-kit's own errors and change nothing.
""".splitlines()
"""Differences from the benchmark, for the bundle's README."""


@dataclass(frozen=True, slots=True)
class Written:
    """The result: the folder, the checkout, a sentence about the data, and warnings."""

    folder: Path
    source: Checkout
    seed: str
    warnings: tuple[str, ...]

    def lines(self) -> list[str]:
        """The report for a terminal."""
        counts = ", ".join(f"{file} ({len(rows)} tasks)" for file, rows in self.source.rows.items())
        return [f"{self.folder}: tau-bench, {self.source.version}", counts, f"Data: {self.seed}."]


def port(source: str | Path, out: str | Path) -> Written:
    """Write the bundle of ``source`` to the folder ``out``; write nothing if it raises ``SourceError``."""
    target = Path(out).resolve()
    if target.exists():
        raise SourceError(f"{out} exists. Choose another folder, or remove it")
    found = read_checkout(Path(source))
    sql, seed = make_seed(found.domain)
    left_out = ", ".join(found.left_out)
    warnings = (f"These tools have no code here and are left out: {left_out}.",) if left_out else ()
    tools = {"tools": found.tools, "terminal": ["transfer_to_human_agents"], "parallel_tool_calls": False}
    files: dict[str, str | bytes] = {
        **{f"retail_tools/{path.name}": path.read_bytes() for path in (BUNDLE / "tools").glob("*.py")},
        "retail_tools/item_details.py": (_WRITTEN / "item_details.py").read_bytes(),
        "tools.py": (_WRITTEN / "tools.py").read_bytes(),
        "reward.py": (BUNDLE / "reward.py").read_bytes(),
        "__init__.py": '"""The retail tasks of tau-bench."""\n',
        "descriptions.json": json.dumps(tools, indent=2, ensure_ascii=False) + "\n",
        "seed.sql": sql,
        "README.md": _readme(target.name, found, seed, warnings),
        **{file: _dataset(rows, target.name) for file, rows in found.rows.items()},
        **found.texts,
    }
    with new_folder(target) as folder:
        for name, content in files.items():
            put(folder / name, content)
    for file, rows in found.rows.items():
        if rows:
            asyncio.run(_mark_refused(target / file))
    return Written(target, found, seed, warnings)


def _dataset(rows: Sequence[Row], name: str) -> str:
    lines = ({"id": row["id"], "toolset": f"{name}.tools", **row} for row in rows)
    return "".join(f"{json.dumps(line)}\n" for line in lines)


async def _mark_refused(dataset: Path) -> None:
    """Run the gold calls of each row of a new dataset, and mark those that the tools refuse."""
    rows = [json.loads(line) for line in dataset.read_text(encoding="utf-8").splitlines()]
    with TaskBundle.load(dataset) as bundle, tempfile.TemporaryDirectory() as folder:
        tools, seed = bundle.tasks[0].registry, bundle.tasks[0].seed  # all rows have the same
        with Database.seed(Path(folder) / "base.db", seed.sql, origin=seed.origin) as base:
            for row in rows:
                with base.fork() as db:
                    for action in row["actions"]:
                        result = await tools.call(action["name"], action["arguments"], db=db)
                        if result.status == "refused":
                            action["refused"] = True
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _readme(name: str, source: Checkout, seed: str, warnings: Sequence[str]) -> str:
    """Return the README of the bundle ``name``; ``seed`` is the sentence about its data."""
    datasets = "\n".join(f"| `{file}` | {len(rows)} |" for file, rows in source.rows.items())
    differences = "\n".join(f"- {sentence}" for sentence in (*warnings, *_DIFFERENCES))
    files = "\n".join(f"| `{path}` | `{digest}` |" for path, digest in sorted(source.files.digests.items()))
    return f"""\
# {name}: the retail tasks of tau-bench

Written by `reward-kit port tau-bench`. The instructions, policy, prompts, tool descriptions,
gold actions and outputs are those of the benchmark. The tables, the tools and the reward come
from reward-kit's `tau_retail_task`. The second command has the benchmark's temperature.

```bash
reward-kit agent-eval --dataset {name} --agent gold
reward-kit agent-eval --dataset {name} --model MODEL --user-model MODEL --temperature 0
```

| dataset | tasks |
|---|---|
{datasets}

## Source

- Benchmark: tau-bench, {_HOME}
- Version: {source.version}
- SHA-256 over all source files: `{source.files.content_hash()}`
- Data: {seed}.
- Licence: see `LICENSE`
- Please cite: {_PAPER}

## Differences from the benchmark

{differences}

## Source files

| file | SHA-256 |
|---|---|
{files}
"""
