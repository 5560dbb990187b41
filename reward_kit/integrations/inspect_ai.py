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

from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.task import rollout_seed
from reward_kit.integrations.playing import Play, not_installed, opened, shown_line

try:
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ChatMessageUser, execute_tools, get_model, messages_from_openai
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.tool import Tool, ToolDef, ToolParams
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
    return Task(dataset=samples, solver=solve, scorer=_reward(plays), epochs=epochs)


@solver
def _play(bundle: TaskBundle, plays: dict[str, Play], seed: int, options: dict[str, Any]) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        row = str(state.sample_id)
        rng_seed = rollout_seed(seed, row, state.epoch - 1)
        play = plays[state.uuid] = Play(bundle, row, seed=rng_seed, **options)
        await play.start()
        state.messages = await messages_from_openai(play.episode.messages)
        state.tools = [_tool(play, one["function"]) for one in play.episode.tools]
        while play.step():
            output = state.output = await get_model().generate(state.messages, state.tools)
            state.messages.append(output.message)
            if output.message.tool_calls:
                state.messages += (await execute_tools(state.messages, state.tools)).messages
            elif (line := await play.say(output.message.text)) is not None:
                state.messages.append(ChatMessageUser(content=line))
        return state

    return solve


def _tool(play: Play, function: dict[str, Any]) -> Tool:
    async def execute(**arguments: Any) -> str:
        return await play.call(function["name"], arguments)

    parameters = ToolParams.model_validate(function["parameters"])
    for name, one in parameters.properties.items():
        one.description = one.description or name  # Inspect wants one of each
    return ToolDef(execute, function["name"], function.get("description") or "-", parameters).as_tool()


@scorer(metrics=[mean(), stderr()])
def _reward(plays: dict[str, Play]) -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        reward, reason = await plays.pop(state.uuid).lesson()
        if reward is None:
            return Score.unscored(reason=reason, explanation=reason)
        return Score(value=reward, explanation=reason)

    return score
