"""``reward-kit branch``: play on from a step of a stored rollout."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from reward_kit.cli.common_options import command
from reward_kit.cli.eval_options import add_options
from reward_kit.errors import UsageError

SHOWN = {
    "agent": "Another agent, named as for agent-eval.",
    "model": "Another model of the agent.",
    "user": "Another simulated user, named as for agent-eval.",
    "sim_model": "Another model of the simulated user.",
    "max_concurrency": "Branches that run at the same time. Default: 10.",
    "max_cost": "Start no more branches once this much is spent.",
    "output_dir": None,
    "eval_id": None,
    "json": None,
    "quiet": None,
}
"""Options of agent-eval that the help lists, with their texts if they differ."""
TAKEN = {
    "dataset", "task_dir", "seed", "provider", "temperature", "model_args", "client", "user_provider",
    "user_model_args", "guard_user", "workers", "max_steps", "timeout", "retries", "call_timeout", "rpm",
    "tpm", "keep_db", "cache", "debug",
}  # fmt: skip
"""Others that it takes: a changed model or a moved bundle may need them."""


@command("branch")
@click.argument("what", metavar="EVAL ROW#N[@STEP]", nargs=-1, required=True)
@click.option(
    "-n", "--n-rollouts", type=click.IntRange(min=1), metavar="N", help="Number of branches. Default: 16."
)
@click.option(
    "--tool-result", metavar="TEXT", help="What the agent sees as the result of that step's tool call."
)
@partial(add_options, shown=SHOWN, hidden=TAKEN)
@click.pass_context
def branch(
    context: click.Context,
    /,
    what: tuple[str, ...],
    n_rollouts: int | None,
    tool_result: str | None,
    **_: Any,
) -> int:
    """Play on from a step of a rollout: why did it fail?

    \b
      reward-kit branch latest book.1#2@4
      reward-kit branch latest book.1#2@4 --model openai/gpt-4o -n 8

    Branches are rollouts of a new evaluation. Each begins with the first STEP steps of the agent as they
    were recorded, and continues with its own seed; without @STEP, before the first wrong call. Agent, user
    and models are those of the rollout unless you name others. Options of agent-eval for models and the
    bundle's place are taken as well: --model-arg, --dataset.
    """
    from reward_kit.agent.evaluation.branching import branch_config
    from reward_kit.cli.agent_eval import given_options, run

    given = given_options(context) | {"n_rollouts": n_rollouts}
    if isinstance(given.get("model"), tuple):
        raise UsageError("branches have one --model", remedy="Run the command once for each model.")
    return run(branch_config(" ".join(what), given, tool_result=tool_result))
