"""The README of the new bundle: its sources, and the differences from the benchmark."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .source import Source

_SAME_FOR_ALL = (
    (
        "Each rollout has its own seed, which is sent to the models. After an empty answer the model is "
        "asked again. A rollout that ends with an error is played again; `--errors-as-failures` counts it as "
        "failed."
    ),
    (
        "Calls with missing or wrong arguments, calls of unknown tools and calculations that would take too "
        "long get reward-kit's own errors and change nothing."
    ),
)


def readme(name: str, source: Source, seed: str, warnings: Sequence[str]) -> str:
    """Return the README of the bundle ``name``; ``seed`` is the sentence about its data."""
    return "\n".join(
        [
            f"# {name}: the retail tasks of {source.title}",
            "",
            "Written by `reward-kit port tau-bench`. The instructions, policy, prompts, tool descriptions,",
            "gold actions and outputs are those of the benchmark. The tables, the tools and the reward come",
            "from reward-kit's `tau_retail_task`. The second command has the benchmark's temperature.",
            "",
            "```bash",
            f"reward-kit agent-eval --dataset {name} --agent gold",
            f"reward-kit agent-eval --dataset {name} --model MODEL --user-model MODEL {source.options}",
            "```",
            "",
            *_tasks(source),
            "",
            "## Source",
            "",
            f"- Benchmark: {source.title}, {source.home}",
            f"- Version: {source.version}",
            f"- SHA-256 over all source files: `{content_hash(source.digests)}`",
            f"- Data: {seed}.",
            f"- Licence: see `LICENSE`{' and `NOTICE`' if 'NOTICE' in source.texts else ''}",
            f"- Please cite: {source.paper}",
            "",
            "## Differences from the benchmark",
            "",
            *(f"- {sentence}" for sentence in (*warnings, *source.differences, *_SAME_FOR_ALL)),
            "",
            "## Source files",
            "",
            "| file | SHA-256 |",
            "|---|---|",
            *(f"| `{path}` | `{digest}` |" for path, digest in sorted(source.digests.items())),
            "",
        ]
    )


def content_hash(digests: Mapping[str, str]) -> str:
    """Return the SHA-256 over the lines ``DIGEST  PATH`` that ``sha256sum`` writes, sorted by path."""
    lines = "".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _tasks(source: Source) -> list[str]:
    lines = [f"| `{file}` | {len(rows)} |" for file, rows in source.rows.items()]
    return ["| dataset | tasks |", "|---|---|", *lines]
