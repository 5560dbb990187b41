"""τ²-bench: its domains as bundles, and what the copied code of such a bundle needs when it runs.

``tools.py`` of a ported bundle is three lines::

    from reward_kit.agent.tau.tau2 import Domain
    from .theirs.tools import AirlineTools

    DOMAIN = Domain("airline", AirlineTools)
    R = DOMAIN.registry("agent")
"""

from __future__ import annotations

from reward_kit.agent.tau.tau2.domain import Domain
from reward_kit.agent.tau.tau2.reward import judge

__all__ = ["Domain", "judge"]
