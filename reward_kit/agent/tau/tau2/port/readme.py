"""The README of a ported bundle: its source, how to run it, and the deviations from the benchmark."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from reward_kit.agent.tau.tau2.port.texts import BANKING, VARIANTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reward_kit.agent.tau.tau2.port.source import Tau2Source

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


def readme(
    source: Tau2Source, domain: str, variant: str, rows: Mapping[str, int], *, has_gold: bool
) -> str:
    """The text of ``README.md``; ``has_gold`` is true if all rows have gold actions."""
    skip = "" if has_gold else " --skip-unplayable"
    name = f"tau2_{domain}"
    deviations = [*_DEVIATIONS, *(_OF_BANKING if domain == BANKING else [])]
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

{"".join(map(_item, deviations))}"""


def _item(sentence: str) -> str:
    return textwrap.fill(sentence, 110, initial_indent="- ", subsequent_indent="  ") + "\n"
