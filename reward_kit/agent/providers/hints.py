"""How far what an answer's headers say of limits is borne out by what the provider does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reward_kit.agent.completion import Usage
    from reward_kit.agent.providers.headers import Quota

LONGEST_HINT = 60.0
"""Seconds for which no call is made because nothing is said to be left. What is left by then may be more."""


class Hints:
    """Remembers when it was said that nothing is left for longer than ``LONGEST_HINT``.

    A call that is made later, but before that time is over, and is answered shows that this kind of limit
    says nothing: some gateways write the same numbers into all answers. It is no longer heeded then.
    """

    def __init__(self) -> None:
        self._empty: dict[str, tuple[float, float]] = {}
        self._unfounded: set[str] = set()

    def believes(self, quota: Quota, usage: Usage | None, now: float) -> bool:
        """Whether it is to be heeded; ``usage`` is that of the last call."""
        is_empty = quota.left < 1 if quota.kind == "requests" else not quota.suffices(usage)
        if not is_empty:
            self._empty.pop(quota.kind, None)
        elif quota.seconds > LONGEST_HINT:
            self._empty.setdefault(quota.kind, (now, now + quota.seconds))
        return quota.kind not in self._unfounded

    def answered(self, sent: float, now: float) -> None:
        """A call that was ``sent`` then has got a good answer."""
        for kind, (told, until) in list(self._empty.items()):
            if sent > told:
                del self._empty[kind]
                if now < until:
                    self._unfounded.add(kind)
