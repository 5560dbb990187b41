"""A caller's own view of an evaluation's progress: checked before, and told of by name where it raises."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from reward_kit.agent.faults import fault_line
from reward_kit.agent.tally import NoProgress
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.tally import Progress, Tally

_METHODS = {"started": "started(tally)", "ended": "ended(outcome, tally)", "closed": "closed(tally)"}


def own_progress(progress: Progress | None) -> Progress:
    """``progress`` as evaluations use it: what it raises is a ``UsageError`` that names its line.

    ``UsageError`` where it lacks a method, or has one that would have to be awaited.
    """
    if progress is None:
        return NoProgress()
    for name in (*_METHODS, "noted"):
        method = getattr(progress, name, None)
        if not callable(method) and name in _METHODS:
            raise UsageError(
                f"progress has no method {name}",
                remedy=f"It has {', '.join(list(_METHODS.values())[:-1])} and {_METHODS['closed']}.",
            )
        if inspect.iscoroutinefunction(method):
            raise UsageError(f"progress.{name} is async, and nobody awaits it", remedy="Write it with def.")
    return _OwnProgress(progress)


class _OwnProgress:
    def __init__(self, inner: Progress) -> None:
        self._inner = inner
        noted = getattr(inner, "noted", None)
        if noted is not None:
            self.noted = lambda text: _told("noted", noted, text)

    def started(self, tally: Tally) -> None:
        _told("started", self._inner.started, tally)

    def ended(self, outcome: RolloutOutcome, tally: Tally) -> None:
        _told("ended", self._inner.ended, outcome, tally)

    def closed(self, tally: Tally) -> None:
        _told("closed", self._inner.closed, tally)


def _told(name: str, method: Callable[..., Any], *arguments: Any) -> None:
    try:
        method(*arguments)
    except Exception as error:
        raise UsageError(
            f"progress.{name} raised {fault_line(error)}",
            remedy="That ended the evaluation; what was over is kept, and resuming it goes on.",
        ) from error
