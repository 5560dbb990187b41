"""Going on in spite of refusals, as long as it seems that they come by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.providers.chance import Chance
from reward_kit.agent.providers.pauses import jitter

if TYPE_CHECKING:
    from reward_kit.agent.providers.concurrency import Concurrency
    from reward_kit.agent.providers.spacing import Spacing
    from reward_kit.agent.providers.visit import Visit
    from reward_kit.errors import ModelError

LONGEST_TOLD = 60.0
"""Seconds; a provider that asks a call to wait longer than this is left alone by all."""


class Trial:
    """Lets the number of calls grow where refusals look like ``Chance``; takes that back if it was none."""

    def __init__(self, concurrency: Concurrency, spacing: Spacing) -> None:
        self._concurrency = concurrency
        self._spacing = spacing
        self._chance = Chance()

    @property
    def on(self) -> bool:
        """Whether a trial is under way."""
        return self._chance.trying

    def heeded(self, fault: ModelError, *, isolated: bool) -> None:
        """A refusal was heeded: perhaps a trial begins. ``isolated``: an answer came since the last."""
        if self._concurrency.found:  # that number is what is refused
            return
        chance, named = self._chance, fault.retry_after
        if chance.heeded_for_a_time() if named else chance.heeded(isolated=isolated):
            self._concurrency.venture()
            self._spacing.rest()

    def excuses(self, visit: Visit, fault: ModelError, now: float) -> bool:
        """Whether to pass over a refusal, and ask again at once or at the time that the call was told."""
        if not self.on or (fault.retry_after or 0.0) > LONGEST_TOLD:
            return False
        failed = bool(visit.again) and self._chance.made_again(refused=visit.again)
        if fault.retry_after and not failed:
            failed = self._chance.told_to_wait()
        if failed:
            self._concurrency.retreat()
            self._spacing.resume()
            visit.again = 0
            return False
        visit.again += 1
        if fault.retry_after:
            visit.not_before = now + fault.retry_after + jitter(fault.retry_after)
        return True

    def answered(self, visit: Visit) -> None:
        """A call has its answer."""
        self._chance.answered()
        if visit.again:
            self._chance.made_again()
