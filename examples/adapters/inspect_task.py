"""An Inspect task: ``inspect eval inspect_task.py -T bundle=my_task --model openai/gpt-4o-mini``.

Each sample is a row; rows with a simulated user need a ``user`` for ``TaskBundle.episode``.
"""

from __future__ import annotations

from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import execute_tools, get_model
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolDef, ToolParams

from reward_kit.agent import Episode, TaskBundle


def _tool(episode: Episode, function: dict[str, Any]) -> Any:
    async def execute(**arguments: Any) -> str:
        return (await episode.call(function["name"], arguments)).content

    parameters = ToolParams.model_validate(function["parameters"])
    for name, one in parameters.properties.items():
        one.description = one.description or name  # Inspect wants one of each
    return ToolDef(execute, function["name"], function.get("description") or "-", parameters).as_tool()


@solver
def play(bundle: TaskBundle, episodes: dict[str, Episode], max_steps: int) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        episode = episodes[state.uuid] = bundle.episode(str(state.sample_id), rng_seed=state.epoch)
        state.tools = [_tool(episode, one["function"]) for one in episode.tools]
        for _ in range(max_steps):
            output = await get_model().generate(state.messages, state.tools)
            state.messages.append(output.message)
            state.output = output
            if output.message.tool_calls:
                state.messages += (await execute_tools(state.messages, state.tools)).messages
            elif await episode.say(output.message.text or "-") is None:
                break
        return state

    return solve


@scorer(metrics=[mean(), stderr()])
def reward(episodes: dict[str, Episode]) -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        with episodes.pop(state.uuid) as episode:
            result = await episode.finish()
        return Score(value=float(result.score), explanation=result.reason)

    return score


@task
def bundle_task(bundle: str, max_steps: int = 30) -> Task:
    opened, episodes = TaskBundle.load(bundle), {}
    samples = [Sample(input=list(one.row.initial_messages) or "-", id=one.row.id) for one in opened.tasks]
    return Task(dataset=samples, solver=play(opened, episodes, max_steps), scorer=reward(episodes))
