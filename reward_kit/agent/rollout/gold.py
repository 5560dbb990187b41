"""Replay of a row's ground truth actions, for the state that a reward compares with."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base import deadline
from reward_kit.agent.rows.field_checks import resolve_references
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database import Database
    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.rows.task_row import Action

    _Seed = int | Randomness | None
    _Told = Callable[[str], None] | None

IMPOSSIBLE = frozenset({"invalid_arguments", "no_result", "unknown_tool"})
"""Statuses of gold actions that cannot be made as they are written."""
FAULTY = IMPOSSIBLE | {"failed"}
"""Statuses of gold actions that are not done, and not because a tool refused either."""


@dataclass(slots=True)
class GoldCall:
    """The outcome of one gold action.

    ``status`` is that of a ``ToolResult``, ``skipped`` for a terminal tool, ``no_result`` if it refers to a
    result that is not there. ``changes`` are the changed rows as JSON values. ``raised`` is what the tool
    itself raised, with its line, or that it blocked the event loop.
    """

    content: str
    status: str
    changes: list[dict[str, Any]]
    raised: str | None = None


@dataclass(slots=True)
class GoldReplay:
    """The state that the gold actions lead to, open, and one ``GoldCall`` for each action.

    ``shared`` means that no random number was drawn, so that the state does not depend on the rollout's seed
    and all rollouts of the row can be compared with this one; otherwise (tools that make up random ids) each
    needs its own. ``fault`` is the first action that was not done, ``impossible`` the first that cannot be.
    """

    database: Database
    calls: list[GoldCall]
    shared: bool
    fault: str | None
    impossible: str | None = None

    def stored(self, task: Task) -> list[dict[str, Any]]:
        """The gold actions with their answers and changed rows, as they are stored."""
        return [
            {"name": one.name, "arguments": one.arguments, "by": one.by}
            | {"content": call.content, "changes": call.changes}
            | ({"fault": f"actions[{n}] ({one.name}): {call.content}"} if call.status in IMPOSSIBLE else {})
            for n, (one, call) in enumerate(zip(task.row.actions or (), self.calls, strict=True))
        ]


async def replay_gold_calls(
    task: Task, base: Database, *, seed: _Seed = None, now: datetime | None = None, on_begin: _Told = None
) -> GoldReplay:
    """Apply the row's actions to a fork of ``base``; the caller closes it.

    Calls that a tool refuses change nothing and are passed over. Terminal and unknown tools are skipped, and
    calls that refer to a result that is not there. With the rollout's ``seed`` random ids come out as in the
    rollout. ``now`` is the clock for rows that have none (default: the system's). ``on_begin`` is called with
    the tool of each. Raises ``StorageError`` if the disk does not hold what they write.
    """
    calls: list[GoldCall] = []
    fault = impossible = None
    with ExitStack() as opened:
        database = opened.enter_context(base.fork(seed=seed, now=task.row.clock() or now, hidden=task.hidden))
        for number, action in enumerate(task.row.actions or ()):
            if on_begin is not None:
                on_begin(f"tool {action.name!r} in the gold actions of its row")
            call = await _replay(task, action, database, [call.content for call in calls])
            database.check()
            calls.append(call)
            if call.status in FAULTY:
                why = f"actions[{number}] ({action.name}): {call.raised or call.content}"
                fault = fault or why
                impossible = impossible or (why if call.status in IMPOSSIBLE else None)
        opened.pop_all()
    return GoldReplay(database, calls, database.draws == 0, fault, impossible)


async def _replay(task: Task, action: Action, database: Database, results: list[str]) -> GoldCall:
    registry = task.registry_of(action.by)
    if (tool := registry.tools.get(action.name)) is None:
        return GoldCall("Error: there is no such tool", "unknown_tool", [])
    if tool.terminal:
        return GoldCall("", "skipped", [])
    try:
        arguments = resolve_references(action.arguments, results)
    except BundleError as error:
        return GoldCall(f"Error: {error}", "no_result", [])
    limit = None if registry.tool_timeout is None else registry.tool_timeout + deadline.CANCELLATION_GRACE
    call, _ = await deadline.bounded(
        registry.call(action.name, arguments, db=database, after=task.after_call), limit, grace=0.0
    )
    if not database.is_idle:  # the tool ignored its cancellation
        await database.break_off()
    if not call.done():
        return GoldCall(f"Error: did not end within {registry.tool_timeout:g} s", "failed", [])
    if call.cancelled():
        return GoldCall("Error: the tool cancelled itself", "failed", [])
    result = call.result()
    changes = result.changes.to_json() if result.changes else []
    return GoldCall(result.content, result.status, changes, result.raised)
