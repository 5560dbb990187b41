"""How often garbage is collected while an evaluation runs."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from flight_bundle import GOLD, flight_bundle

from reward_kit.agent import agent_eval
from reward_kit.agent.garbage import ALLOCATIONS


@pytest.mark.parametrize(("set_before", "within"), [(700, ALLOCATIONS), (90_000, 90_000), (0, 0)])
def test_more_rarely_within_and_as_before_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_before: int, within: int
) -> None:
    bundle = flight_bundle(tmp_path)
    bundle.rows({"actions": GOLD, "n_rollouts": 1})
    monkeypatch.chdir(tmp_path)
    seen = []

    class Looks:
        def started(self, tally: object) -> None: ...

        def ended(self, outcome: object, tally: object) -> None:
            seen.append(gc.get_threshold()[0])

        def closed(self, tally: object) -> None: ...

    usual = gc.get_threshold()
    gc.set_threshold(set_before, 10, 10)
    try:
        agent_eval(bundle.dataset, agent="gold", progress=Looks())
        assert seen == [within]
        assert gc.get_threshold() == (set_before, 10, 10)
    finally:
        gc.set_threshold(*usual)
