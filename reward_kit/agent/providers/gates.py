"""The gates of one evaluation."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from reward_kit.agent.providers.concurrency import START
from reward_kit.agent.providers.gate import Gate
from reward_kit.agent.providers.leave import AskedLimits, AskedNotices

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.providers.leave import Leave

logger = logging.getLogger(__name__)

DEFAULT_ADDRESSES = {"openai": "https://api.openai.com/v1"}
"""Where providers are asked when nothing says otherwise, so that saying it makes no second gate."""
AT_LEAST = 8
"""Rollouts that are begun together while nobody waits at a gate."""


class Gates:
    """A gate for each provider and address; agent and user share one where they go to the same place.

    ``ceiling``, ``rpm``, ``tpm`` and ``patience`` are those of each gate. ``tell`` gets what people should
    know. ``used`` says that some model's calls go through them.
    """

    def __init__(
        self,
        *,
        ceiling: int = 10,
        rpm: float | None = None,
        tpm: float | None = None,
        patience: float = 900.0,
    ) -> None:
        self.tell: Callable[[str], None] = _nobody
        self.used = False
        self._ceiling = ceiling
        self._rpm = rpm
        self._tpm = tpm
        self._patience = patience
        self._leave: Leave | None = None
        self._gates: dict[tuple[str, str], Gate] = {}

    def ask(self, leave: Leave) -> None:
        """Let another process say what is told, and count what is limited; before the first call."""
        self._leave = leave
        for gate in self._gates.values():
            self._keep(gate, leave)

    def of(self, provider: str, address: str | None) -> Gate:
        """The gate to a provider; without an ``address`` to where it is usually asked."""
        place = (address or DEFAULT_ADDRESSES.get(provider, "")).rstrip("/")
        gate = self._gates.get((provider, place))
        if gate is None:
            gate = self._gates[provider, place] = Gate(
                f"{provider} at {_public(place)}" if place else provider,
                ceiling=self._ceiling,
                rpm=self._rpm,
                tpm=self._tpm,
                patience=self._patience,
                tell=self._say,
            )
            if self._leave is not None:
                self._keep(gate, self._leave)
        return gate

    @property
    def waiting(self) -> bool:
        """Whether calls wait at a gate."""
        return any(gate.waiting or gate.closed for gate in self._gates.values())

    def room(self) -> int:
        """Rollouts that may begin now so that their calls do not pile up.

        None where calls wait already; otherwise as many as calls would be let through, and a few more,
        since not every rollout is calling a model all the time.
        """
        gates = self._gates.values()
        if not gates:
            return START
        if self.waiting:
            return 0
        return max(AT_LEAST, sum(gate.room for gate in gates))

    def _keep(self, gate: Gate, leave: Leave) -> None:
        gate.tell_by(AskedNotices(gate.name, leave, self._say))
        if self._rpm is not None or self._tpm is not None:
            gate.keep_to(AskedLimits(gate.name, leave, wants_size=self._tpm is not None))

    def _say(self, text: str) -> None:
        logger.info("%s", text)
        self.tell(text)


def _nobody(text: str) -> None:
    """Tells nobody."""


def _public(address: str) -> str:
    """The address without the user, password and query that it may have."""
    from urllib.parse import urlsplit

    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.netloc else address
