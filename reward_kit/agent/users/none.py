"""No user: the rollout ends with the agent's first reply."""

from __future__ import annotations


def no_user() -> None:
    """Make no user."""
