"""A bundle for TRL's ``GRPOTrainer``: the environment class, the rows of its dataset, the reward.

    parts = TrlBundle("my_task")
    trainer = GRPOTrainer(
        model, environment_factory=parts.environment, train_dataset=Dataset.from_list(parts.rows),
        reward_funcs=parts.reward,
    )

TRL has no user turn: a reply without a tool call ends the episode, so take rows without a simulated user.
"""

from __future__ import annotations

import inspect
from typing import Any

from reward_kit.agent import TaskBundle

TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}


class TrlBundle:
    """``environment`` has a public method for each tool, as TRL reads them."""

    def __init__(self, dataset: str) -> None:
        self.bundle = bundle = TaskBundle.load(dataset)
        self.rows = [
            {"prompt": bundle.episode(task).messages, "row_id": task.row.id} for task in bundle.tasks
        ]

        class Environment:
            _episode = None

            def reset(self, row_id: str, **_: Any) -> None:
                if self._episode is not None:
                    self._episode.close()
                self._episode = bundle.episode(row_id)

        for tool in bundle.tasks[0].registry.get_openai_tools():
            setattr(Environment, tool["function"]["name"], _method(tool["function"]))
        self.environment = Environment

    def reward(self, completions: list[Any], environments: list[Any], **_: Any) -> list[float]:
        """Say the last reply of each completion, and return the rewards."""
        scores = []
        for completion, environment in zip(completions, environments, strict=True):
            if completion and completion[-1].get("content"):
                environment._episode.say_sync(completion[-1]["content"])
            scores.append(float(environment._episode.finish_sync().score))
        return scores


def _method(tool: dict[str, Any]) -> Any:
    properties, required = tool["parameters"].get("properties", {}), tool["parameters"].get("required", [])

    def call(self: Any, **given: Any) -> str:
        arguments = {name: value for name, value in given.items() if value is not None}
        return str(self._episode.call_sync(tool["name"], arguments).content)

    kinds = {name: TYPES.get(str(one.get("type")), str) for name, one in properties.items()}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("self", kind)]
    for name in sorted(properties, key=lambda name: name not in required):
        default = inspect.Parameter.empty if name in required else None
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=kinds[name]))
    lines = [f"    {name}: {one.get('description', name)}" for name, one in properties.items()]
    call.__name__, call.__annotations__ = tool["name"], {**kinds, "return": str}
    call.__doc__ = "\n".join([tool.get("description", ""), "", "Args:", *lines])
    call.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    return call
