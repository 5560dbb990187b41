"""``--ray`` before there is a cluster; rollouts on one are tested by ``make test-ray``."""

import sys
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle

from reward_kit.agent import evaluate
from reward_kit.errors import UsageError

ROWS = [{"actions": GOLD}]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"agent": "gold"}, r"--ray needs Ray, which is not installed. pip install 'ray>="),
        ({"agent": "human", "user": "none"}, "--ray cannot be combined with a person at the terminal"),
        ({"agent": "gold", "cache": True}, "--ray cannot be combined with --cache"),
        ({"agent": "replay:runs/evals/one.db"}, "--ray cannot be combined with a replay"),
        ({"agent": "gold", "user": "replay:runs/evals/one.db"}, "--ray cannot be combined with a replay"),
        ({"agent": "gold", "from_tau_bench": "results.json"}, "--from-tau-bench runs nothing"),
    ],
)
def test_combinations_that_no_node_can_play_are_refused_before_anything_is_written(
    bundle: Bundle, options: dict[str, Any], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # also where it is installed
    with pytest.raises(UsageError, match=error):
        evaluate(bundle.dataset, ray="default", **options)
    assert not Path("runs").exists()
