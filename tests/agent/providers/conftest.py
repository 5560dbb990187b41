"""Chance is the same in every run: bounds that hold in 996 of 1000 plays would else fail now and then."""

from __future__ import annotations

import random

import pytest


@pytest.fixture(autouse=True)
def drawn_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("providers.pauses", "providers.outage", "model_clients.attempts"):
        monkeypatch.setattr(f"reward_kit.agent.{module}._chance", random.Random(1))
