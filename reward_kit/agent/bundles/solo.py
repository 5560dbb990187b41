"""Solo mode: no user takes part; the agent has the row's ``ticket`` and the tools of both sides.

The agent makes all calls, also those that gold actions leave to the user, and ends with the tool ``done``
(that of the bundle if it has one). A text ``{ticket}`` in the system prompt is replaced by the ticket;
without it the ticket follows the prompt. Of the ``initial_messages`` the tool calls stay::

    bundle.episode("row.1", mode="solo")
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from reward_kit.agent.tools.registry import ToolRegistry
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.rows.task_row import TaskRow
    from reward_kit.agent.tools.execution import ToolResult

SOLO = "solo"
"""The value of ``mode``."""
DONE = "done"
PLACE = "{ticket}"
NO_TICKET = "is missing, but in solo mode the agent gets its task from it"


def solo_row(row: TaskRow) -> TaskRow:
    """The row as it is played in solo mode; one without a ticket as it is."""
    ticket = row.text("ticket")
    if ticket is None:
        return row
    prompt = row.text("system_prompt") or ""
    if PLACE in prompt:
        prompt = prompt.replace(PLACE, ticket)
    else:
        prompt = f"{prompt.rstrip()}\n\n<ticket>\n{ticket.strip()}\n</ticket>".lstrip()
    by_agent = [replace(action, by="agent") for action in row.actions or ()]
    required, forbidden = map(_by_agent, (row.required_calls, row.forbidden_calls))
    return replace(
        row,
        initial_messages=[
            {**one, "role": "assistant"} if one.get("tool_calls") else one
            for one in row.initial_messages
            if one.get("tool_calls") or one["role"] in ("system", "tool")
        ],
        system_prompt=prompt,
        sim_user_prompt=None,
        sim_user_template=None,
        actions=row.actions and by_agent,
        texts={name: text for name, text in row.texts.items() if name == "seed_sql"},
        required_calls=required,
        forbidden_calls=forbidden,
        ticket=ticket,
    )


def _by_agent(calls: list[Any] | None) -> list[Any] | None:
    return calls and [{**call, "by": "agent"} if isinstance(call, dict) else call for call in calls]


def with_joined_tools(task: Task) -> Task:
    """The task with the user's tools among the agent's; raises ``BundleError`` for a name that both have."""
    user = task.user_registry
    return replace(task, registry=_JoinedTools(task.registry, user), user_registry=user.only(()))


def solo_task(task: Task) -> Task:
    """The task as it is played in solo mode; raises ``BundleError`` without a ticket."""
    if task.row.ticket is None:
        raise BundleError(f"field 'ticket' {NO_TICKET}", place=f"{task.row.place} {task.row.id}")
    if isinstance(task.registry, _JoinedTools):
        return task
    return with_joined_tools(replace(task, row=solo_row(task.row)))


class _JoinedTools(ToolRegistry):
    """The tools of several registries, each of which runs its own; the first decides everything else."""

    def __init__(self, agent: ToolRegistry, user: ToolRegistry) -> None:
        vars(self).update(vars(agent.only(())))
        self._both = agent, user
        self._owners: dict[str, ToolRegistry] = {}
        for registry in (agent, user):
            for name, tool in registry.tools.items():
                if name in self.tools:
                    places = f"{self.tools[name].place} and {tool.place}"
                    fault = f"in solo mode the agent has the tools of both sides, and both have {name!r}"
                    raise BundleError(f"{fault} ({places})", remedy="Give one of them name=...")
                self._owners[name], self.tools[name] = registry, tool
        own = self.tools.get(DONE)
        if own is None:
            self._owners[DONE], self.tools[DONE] = _ending(), _ending().tools[DONE]
        elif not own.terminal:
            fault = f"in solo mode the tool {DONE!r} ends a rollout, and that of {own.place} does not"
            raise BundleError(fault, remedy="Give it terminal=True, or name=...")
        self.tools[DONE] = self.tools.pop(DONE)  # the last one

    def unknown(self, name: str, *more: Any) -> Coroutine[Any, Any, ToolResult]:
        return self._both[0].unknown(name, *more)

    def call(
        self, name: str, arguments: dict[str, Any] | str | bytes | None, **options: Any
    ) -> Coroutine[Any, Any, ToolResult]:
        owner = self._owners.get(name) or next((one for one in self._both if name in one.unlisted), None)
        if owner is None:
            return super().call(name, arguments, **options)
        return owner.call(name, arguments, **options)


@cache
def _ending() -> ToolRegistry:
    registry = ToolRegistry(SOLO)

    @registry.tool(terminal=True, name=DONE)
    def done() -> str:
        """End the task, when everything is done that can be done."""
        return "done"

    return registry
