"""``reward-kit port tau2``: the domains of τ²-bench as bundles, from the pinned package or a checkout."""

from __future__ import annotations

from reward_kit.agent.tau.tau2.port.bundle import port_domain
from reward_kit.agent.tau.tau2.port.source import open_source

__all__ = ["open_source", "port_domain"]
