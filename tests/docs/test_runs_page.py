"""The queries of docs/runs.md run on a real evaluation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flight_bundle import GOLD, flight_bundle
from stored_rollouts import query

from reward_kit.agent import agent_eval

PAGE = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
QUERIES = re.findall(r"```sql\n(.*?)\n```", PAGE, re.DOTALL)


def test_every_query_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = flight_bundle(tmp_path)
    bundle.rows({"id": "a", "actions": GOLD}, {"id": "b", "actions": GOLD[:1]})
    result = agent_eval(bundle.dataset, agent="gold", n_rollouts=2)
    answers = [query(result.log_path, sql) for sql in QUERIES]
    assert len(answers) == 10
    assert answers[0] == [{"row_id": "a", "passed": 1.0, "n": 2}, {"row_id": "b", "passed": 0.0, "n": 2}]
    assert answers[-1] == [{"done": 4, "planned": 4}]
    assert all(answers[index] for index in (1, 2, 3, 5, 6, 7, 8))
