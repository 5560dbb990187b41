"""The bundle of a domain: written to a folder beside its place, and moved there when it is complete."""

from __future__ import annotations

import hashlib
import json
import textwrap
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from reward_kit.agent.base.encoding import DAMAGED
from reward_kit.agent.bundles.imports import BundleImports, load_registry
from reward_kit.agent.objects import TABLE
from reward_kit.agent.tau.source import SourceError, new_folder, put
from reward_kit.agent.tau.tau2.domain import Tau2Registry
from reward_kit.agent.tau.tau2.models import rows_of
from reward_kit.agent.tau.tau2.port.source import DomainCode, read_code
from reward_kit.agent.tau.tau2.port.tasks import mark_refused, row_of, rows_by_file
from reward_kit.agent.tau.tau2.port.texts import (
    BANKING,
    KNOWLEDGE,
    VARIANTS,
    agent_prompt,
    check_variant,
    documents,
    greeting,
    judge_prompts,
    policy,
    solo_ending,
    stop_tokens,
    user_prompts,
)
from reward_kit.agent.tau.tau2.state import SCHEMA, SEED, STATE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.tau.tau2.domain import Domain
    from reward_kit.agent.tau.tau2.port.source import Tau2Source


_USER_TOOLS = '"""The tools of the user."""\n\nfrom .tools import DOMAIN\n\nR = DOMAIN.registry("user")\n'
_REWARD = '''\
"""The reward: the benchmark's rules, see README.md."""

from reward_kit import EvaluateResult, reward_function
from reward_kit.agent.tau.tau2 import judge

from .tools import DOMAIN

JUDGE = "openai/gpt-4.1-2025-04-14"
"""The model that judges the sentences of ``criteria`` where they count, unless another is named."""


@reward_function
def evaluate(messages, *, db, gold_db=None, rollout=None, **row) -> EvaluateResult:
    """Judge a rollout by the benchmark's rules."""
    return judge(DOMAIN, JUDGE, messages=messages, db=db, gold_db=gold_db, rollout=rollout, **row)
'''
_ROWS = 500
"""Rows of one statement of ``seed.sql``."""


def port_domain(
    source: Tau2Source, domain: str, out: Path, *, tasks: str | None = None, variant: str | None = None
) -> tuple[Path, dict[str, int]]:
    """Write the bundle ``tau2_DOMAIN`` to the folder ``out``; nothing if it raises ``SourceError``.

    Returns the bundle's folder, and the number of rows of each dataset. ``tasks`` names the one split that
    ``task.jsonl`` has, ``variant`` one of ``VARIANTS``.
    """
    variant = check_variant(domain, variant)
    target = out / f"tau2_{domain}"
    if target.exists():
        raise SourceError(f"{target} exists. Choose another folder, or remove it")
    if not source.code.has(f"domains/{domain}/tools.py"):
        raise SourceError(f"{source.files.name} has no domain {domain}. Give a checkout with --source")
    with new_folder(target) as folder:
        rows = _Writer(source, domain, variant, folder).write(tasks)
    return target, rows


@dataclass(frozen=True, slots=True)
class _Writer:
    source: Tau2Source
    domain: str
    variant: str
    folder: Path

    def write(self, only: str | None) -> dict[str, int]:
        """Write all files of the bundle; returns the number of rows of each dataset."""
        source, domain, folder = self.source, self.domain, self.folder
        search = KNOWLEDGE[self.variant] if domain == BANKING else None
        code = read_code(source, domain, ("retrieval_toolkits", search.toolkit) if search else None)
        done = solo_ending(source) if self.is_solo else None
        files = {
            "__init__.py": f'"""The domain {domain} of τ²-bench."""\n',
            **_own_code(domain, code, search.retrievers if search else (), done),
            **{f"theirs/{module}.py": text for module, text in code.modules.items()},
            "theirs/__init__.py": '"""Code and texts of τ²-bench, see LICENSE."""\n',
            "theirs/LICENSE": source.files.text(source.licence, "the licence of the benchmark"),
            **{f"theirs/{name}.txt": f"{text}\n" for name, text in judge_prompts(source).items()},
            **{f"{name}.txt": f"{text}\n" for name, text in user_prompts(source).items()},
            "prompts/stop.txt": "\n".join(stop_tokens(source)) + "\n",
        }
        if not self.has_prompts_of_tasks:
            files["system_prompt.md"] = self.system_prompt()
        if search is not None and search.retrievers:
            files["theirs/documents.json"] = json.dumps(documents(source), ensure_ascii=False) + "\n"
        for path, text in files.items():
            put(folder / path, text)
        with closing(BundleImports(folder)) as imports:
            registry = load_registry(imports, ".tools")
            assert isinstance(registry, Tau2Registry)
            found = registry.domain
            seed = _seed(source, domain, found)
            put(folder / "seed.sql", seed)
            datasets, tasks = self.datasets(found, only)
            every = {row["id"]: row for rows in datasets.values() for row in rows}
            mark_refused(found, seed, every.values())
        put(folder / "theirs/tasks.json", json.dumps(tasks, ensure_ascii=False) + "\n")
        for file, rows in datasets.items():
            put(folder / file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        counts = {file: len(rows) for file, rows in datasets.items()}
        has_gold = all("actions" in row for row in every.values())
        put(folder / "README.md", readme(source, domain, self.variant, counts, has_gold=has_gold))
        return counts

    @property
    def is_solo(self) -> bool:
        return self.variant.endswith("solo")

    @property
    def has_prompts_of_tasks(self) -> bool:
        """True if each task has its own system prompt."""
        return self.variant == "golden_retrieval"

    def system_prompt(self, task: dict[str, Any] | None = None) -> str:
        text = policy(self.source, self.domain, self.variant, task)
        return agent_prompt(self.source, text, solo=self.is_solo)

    def datasets(self, found: Domain, only: str | None) -> tuple[dict[str, list[dict[str, Any]]], list[Any]]:
        """The rows by file, and their tasks as the benchmark has them."""
        source, folder = self.source, f"domains/{self.domain}"
        path = f"{folder}/tasks.json"
        place = source.data.place(path)
        if self.domain == BANKING:
            names = source.data.names(f"{folder}/tasks", ".json")
            tasks = [source.data.value(f"{folder}/tasks/{name}", "a task") for name in names]
        else:
            tasks = source.data.value(path, "the tasks, a JSON list")
        if not isinstance(tasks, list) or not tasks:
            raise SourceError(f"{place} has no tasks. Expected there: a JSON list of tasks")
        rows, hello, prompt = {}, greeting(source), "file:system_prompt.md"
        for position, task in enumerate(tasks):
            try:
                prompt = self.system_prompt(task) if self.has_prompts_of_tasks else prompt
                row = row_of(task, prompt, hello, has_user_tools="user" in found.toolkits)
            except DAMAGED as error:
                raise SourceError(
                    f"{place}: task {position} cannot be read ({type(error).__name__}: {error}). Expected "
                    "there: a task with id, user_scenario and evaluation_criteria"
                ) from error
            if row["metadata"]["tau2_id"] in rows:
                raise SourceError(f"{place}: task {position} has the id of an earlier task")
            rows[row["metadata"]["tau2_id"]] = row
        path = f"{folder}/split_tasks.json"
        splits = source.data.value(path, "ids by split") if source.data.has(path) else None
        files = rows_by_file(rows, splits, place, only)
        written = {row["metadata"]["tau2_id"] for chosen in files.values() for row in chosen}
        return files, [task for task in tasks if str(task["id"]) in written]


def _own_code(domain: str, code: DomainCode, retrievers: Sequence[str], done: str | None) -> dict[str, str]:
    """``tools.py``, ``user_tools.py`` and ``reward.py``."""
    toolkits = [code.toolkits[side] for side in ("agent", "user") if side in code.toolkits]
    imports = [f"from .theirs.{module} import {name}\n" for module, name in toolkits]
    arguments = [json.dumps(domain), *(name for _, name in toolkits)]
    if "sync" in code.modules:
        imports.append("from .theirs.sync import sync_tools\n")
        arguments.append("sync=sync_tools")
    first = "from reward_kit.agent.tau.tau2 import Domain\n"
    if retrievers:
        first = f"from pathlib import Path\n\n{first}"
        first += f"from reward_kit.agent.tau.tau2.knowledge import {', '.join(retrievers)}\n"
        made = ", ".join(f"{name}(Path(__file__).parent)" for name in retrievers)
        arguments.append(f"search=[{made}]")
    ending = "" if done is None else f", done={json.dumps(done, ensure_ascii=False)}"
    return {
        "tools.py": (
            f'"""The tools of the agent; ``theirs`` has the code of the benchmark."""\n\n'
            f"{first}\n{''.join(sorted(imports))}\n"
            f'DOMAIN = Domain({", ".join(arguments)})\nR = DOMAIN.registry("agent"{ending})\n'
        ),
        "user_tools.py": _USER_TOOLS,
        "reward.py": _REWARD,
    }


def _seed(source: Tau2Source, domain: str, found: Domain) -> str:
    """``seed.sql``: the objects of both sides as their models read them."""
    rows: list[tuple[str, str, str]] = []
    for side, database in found.databases.items():
        if side == "user" and found.one_database:
            continue
        stem = "user_db" if side == "user" else "db"
        path = f"domains/{domain}/{stem}.toml"
        if not source.data.has(path):
            path = f"domains/{domain}/{stem}.json"
        data = source.data.value(path, "the data of the domain")
        try:
            loaded = database.model_validate(data)
        except ValidationError as error:
            place = source.data.place(path)
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise SourceError(f"{place} does not fit {database.__name__}: {where}: {first['msg']}") from error
        rows += rows_of(loaded, found.prefix(side))
    quoted = ([text.replace("'", "''") for text in row] for row in rows)
    texts = ["('{}', '{}', '{}')".format(*row) for row in quoted]
    key = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    groups = (",\n".join(texts[at : at + _ROWS]) for at in range(0, len(texts), _ROWS))
    inserts = [f"INSERT INTO {TABLE} VALUES\n{group};\n" for group in groups]
    note = f"INSERT INTO {STATE} VALUES ('{SEED}', '', '{key}', 0);\n"  # noqa: S608 - constants and a hash
    return f"-- The data of τ²-bench, see theirs/LICENSE.\n{SCHEMA};\n{''.join(inserts)}{note}"


# --- README.md


_USER = "--user-model openai/gpt-4.1-2025-04-14 --user-model-arg temperature=0"
_DEVIATIONS = """\
A check that raises gives 0, and the reason says so. τ²-bench's evaluation ends with the exception.
Each rollout starts as in a fresh process. In τ²-bench, `break_vpn` of telecom changes a value that outlives \
the simulation, so that its results depend on the order of the tasks.
Made-up ids (`uuid4`, bills of telecom) come from the seed of the rollout.
The state at the end is judged. τ²-bench plays the recorded calls that change the state again, and ends with \
an exception if an answer differs.
In the state after the gold actions, both sides are in line after each call. τ²-bench brings them in line \
only before the gold actions. This has no effect on the tasks that τ²-bench has today.
The limits of τ²-bench are applied when the rollout is judged: 10 failed calls, or 200 messages of agent, \
user and tools, give 0. The rollout itself ends after 100 messages of the agent (`max_steps`).
Requests to models: each rollout sends a seed of its own; `tool_choice` is not sent (`auto` is the default; \
in solo mode add `--model-arg tool_choice=required`); a result has the name of its tool, a call has it once; \
arguments go back as the model wrote them.
A model is asked again after an empty message, and a rollout that ends with an error is played again.
The judge of `criteria` is asked once more if its answer cannot be read.
""".splitlines()
_OF_BANKING = """\
Documents are in the order of their file names, which decides between equal scores in a search. In τ²-bench, \
the file system decides.
The durations in the answers of `KB_search` are constant.
If the user calls `get_card_last_4_digits` by its own name, no entry is written. In τ²-bench there is one \
until the state is judged, which leaves it out.
""".splitlines()


def readme(source: Tau2Source, domain: str, variant: str, rows: Mapping[str, int], *, has_gold: bool) -> str:
    """The text of ``README.md``; ``has_gold`` is true if all rows have gold actions."""
    skip = "" if has_gold else " --skip-unplayable"
    name = f"tau2_{domain}"
    deviations = [*_DEVIATIONS, *(_OF_BANKING if domain == BANKING else [])]
    wrap = partial(textwrap.fill, width=110, initial_indent="- ", subsequent_indent="  ")
    told = "\n".join(map(wrap, deviations))
    listed = "\n".join(f"| `{file}` | {number} |" for file, number in rows.items())
    about = f" Variant: `{variant}`." if domain in VARIANTS else ""
    return f"""\
# {name}: the domain {domain} of τ²-bench

Written by `reward-kit port tau2`.{about} Tools, data, policy, prompts and tasks are those of τ²-bench; the
files in `theirs/` are copies, under the licence there. The registries and the reward are reward-kit's and
follow τ²-bench's rules: the same trajectory gets the same reward.

```bash
reward-kit agent-eval {name} --agent gold --no-sim-user{skip}
reward-kit agent-eval {name} --n-rollouts 4 --model MODEL --temperature 0 {_USER}
```

| dataset | tasks |
|---|---|
{listed}

The score is the product of the parts that `score_by` of a row names: `data` (in τ²-bench: DB), `checks`
(ENV_ASSERTION), `calls` (ACTION), `outputs` (COMMUNICATE), `criteria` (NL_ASSERTION). A model judges
`criteria`: that of the field `judge_model`, else of the environment variable `MODEL_JUDGE`, else τ²-bench's,
`openai/gpt-4.1-2025-04-14`. With `none`, criteria do not count.

## Source

- {source.version}
- SHA-256 over all files that were read: `{source.files.content_hash()}`
- Barres, Dong, Ray, Si, Narasimhan: τ²-Bench: Evaluating Conversational Agents in a Dual-Control Environment,
  2025, https://arxiv.org/abs/2506.07982

## Deviations from τ²-bench

{told}
"""
