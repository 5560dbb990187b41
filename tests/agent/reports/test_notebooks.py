"""The HTML that notebooks show for results, comparisons and rollouts."""

from __future__ import annotations

from pathlib import Path

import pytest
from flight_bundle import GOLD, flight_bundle

from reward_kit.agent import compare, evaluate, load_rollout


def test_results_comparisons_and_rollouts_are_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = flight_bundle(tmp_path)
    bundle.rows({"actions": GOLD, "initial_messages": [{"role": "user", "content": "<b>Hi</b>"}]})
    result, _ = (evaluate(bundle.dataset, agent="gold", n_rollouts=2, eval_id=name) for name in ("a", "b"))
    shown = result._repr_html_()
    assert "<td>1</td><td>1.000</td>" in shown
    assert f"<td>{result.rows[0].row_id}</td><td>2</td><td>2</td><td>1.000</td>" in shown
    assert "<td>Pass^1</td><td>1.000</td><td>1.000</td><td>0.000</td>" in compare("a", "b")._repr_html_()
    rollout = load_rollout(f"a {result.rows[0].row_id}#1")._repr_html_()
    assert "<td>user</td><td>&lt;b&gt;Hi&lt;/b&gt;</td>" in rollout
