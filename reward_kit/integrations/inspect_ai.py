"""A bundle as an Inspect task, with its simulated users. Write a module ``my_inspect.py``::

    from inspect_ai import task
    from reward_kit.integrations.inspect_ai import bundle_task

    @task
    def my_task():
        return bundle_task("my_task", models={"user": model}, epochs=4)

    inspect eval my_inspect.py --model openai/gpt-4o-mini

Each sample is a row; an epoch is a rollout, with the seed that it has in an evaluation. The score is the
bundle's reward. A rollout to leave out (see ``Episode.lesson``) is unscored: Inspect's metrics leave it out.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.task import rollout_seed
from reward_kit.integrations.playing import Play, assistant_message, not_installed, opened, shown_line

try:
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.model import get_model, messages_from_openai
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.tool import ToolInfo
except ImportError as error:
    not_installed("Inspect", "inspect_ai", error)

if TYPE_CHECKING:
    from reward_kit.agent import TaskBundle

__all__ = ["bundle_task"]


def bundle_task(dataset: str, *, epochs: Any = None, seed: int = 0, **options: Any) -> Task:
    """Return the task; the ``options`` are those of ``TaskBundle.episode``.

    Raises ``UsageError`` for a row that cannot be played.
    """
    bundle = opened(dataset, options)
    plays: dict[str, Play] = {}
    samples = [Sample(input=shown_line(one), id=one.row.id) for one in bundle.tasks]
    solve = _play(bundle, plays, seed, options)
    return Task(dataset=samples, solver=solve, scorer=reward(plays), epochs=epochs)


@solver
def _play(bundle: TaskBundle, plays: dict[str, Play], seed: int, options: dict[str, Any]) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        row = str(state.sample_id)
        rng_seed = rollout_seed(seed, row, state.epoch - 1)
        play = plays[state.uuid] = Play(bundle, row, seed=rng_seed, **options)
        await play.start()
        state.messages = await messages_from_openai(play.episode.messages)
        tools = [
            ToolInfo.model_validate({"description": "", **one["function"]}) for one in play.episode.tools
        ]
        while play.step():
            output = state.output = await get_model().generate(state.messages, tools)
            said, made = output.message, output.message.tool_calls or []
            if not play.episode.parallel_tool_calls and made[1:]:
                made = said.tool_calls = made[:1]
            before = len(play.episode.messages)
            calls = [(one.id, one.function, one.parse_error or json.dumps(one.arguments)) for one in made]
            await play.act(assistant_message(said.text, calls))
            first, *after = play.episode.messages[before:] or [{}]
            for call, announced in zip(made, first.get("tool_calls", ()), strict=False):
                call.id = announced["id"]  # another one if the model has used its own before
            state.messages += [said, *await messages_from_openai(after)]
        return state

    return solve


@scorer(metrics=[mean(), stderr()])
def reward(plays: dict[str, Play]) -> Scorer:
    """The bundle's reward; Inspect calls the score like this."""

    async def score(state: TaskState, target: Target) -> Score:
        value, reason = await plays.pop(state.uuid).lesson()
        if value is None:
            return Score.unscored(reason=reason, explanation=reason)
        return Score(value=value, explanation=reason)

    return score
