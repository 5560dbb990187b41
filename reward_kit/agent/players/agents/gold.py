"""An agent that knows the ground truth: it replays a row's actions, then says its outputs. Offline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.base.text import one_line
from reward_kit.agent.rows.message_check import resolve_references
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.base.types import ToolCall
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.rollout.episode import Episode
    from reward_kit.agent.rollout.rollout import Rollout
    from reward_kit.agent.rows.task_row import Action

IMPOSSIBLE = frozenset({"invalid_arguments", "unknown_tool"})
"""Statuses of calls that cannot be made as the row writes them."""


class GoldAgent:
    """Makes every gold call in its first turn, then says all outputs; it has nothing to say after that.

    It makes the calls of both sides, in the order of the row.

    If the row has outputs, terminal tools are left out: they would end the rollout before these are said.
    ``made`` are its calls by the number of their action; tools may make others. ``plan`` are other calls to
    make than the row's, by the number of the action that each stands for. Unless it ``tries_all``, a rollout
    ends unjudged at a call that cannot be made as the row writes it.
    """

    sees_answers = True
    episode: Episode

    def __init__(self, plan: Sequence[tuple[int, Action]] | None = None, *, tries_all: bool = False) -> None:
        self.tries_all = tries_all
        self.made: dict[int, ToolCall] = {}
        self._plan = plan
        self._said_all = False

    def check(self, task: Task) -> None:
        """Raise ``BundleError`` for a row without ground truth."""
        if task.row.actions is None:
            raise BundleError(
                f"row {task.row.id} has no actions, which the gold agent replays",
                place=task.row.place,
                remedy="Add its ground truth calls, skip such rows with --skip-unplayable, or choose another "
                "--agent.",
            )

    async def respond(self, rollout: Rollout) -> str:
        """All outputs, one a line."""
        if self._said_all:
            rollout.stop("agent_done", "the gold agent has done and said all it knows")
            return ""
        self._said_all = True
        task = self.episode.task
        plan = list(enumerate(task.row.actions or ())) if self._plan is None else self._plan
        results = [""] * (1 + max((number for number, _ in plan), default=0))
        for number, action in plan:
            if leaves_out(task, action):
                continue
            try:
                arguments = resolve_references(action.arguments, results)
            except BundleError as error:
                if self.tries_all:
                    raise
                return self._broken_off(number, action, str(error))
            before = len(self.episode.tool_calls)
            try:
                side = rollout if action.by == "agent" else self.episode.user_rollout
                results[number] = await side.call_tool(action.name, arguments)
            finally:
                if len(self.episode.tool_calls) > before:
                    self.made[number] = self.episode.tool_calls[-1]  # after the calls that its tool made
            if self.made[number].status in IMPOSSIBLE and not self.tries_all:
                return self._broken_off(number, action, self.made[number].content)
        return "\n".join(task.row.outputs or ()) or "Done."

    def _broken_off(self, number: int, action: Action, fault: str) -> str:
        why = f"actions[{number}] ({action.name}) cannot be played: {one_line(fault)}"
        self.episode.stop("infrastructure_error", why)
        return ""


def leaves_out(task: Task, action: Action) -> bool:
    """True if the gold agent skips this action, which would end the rollout before the outputs are said."""
    tool = task.registry_of(action.by).tools.get(action.name)
    return tool is not None and tool.terminal and bool(task.row.outputs)
