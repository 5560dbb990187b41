"""Notebooks: the HTML of results, comparisons and rollouts, and the progress in one display."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flight_bundle import GOLD, flight_bundle

from reward_kit.agent import compare, compare_with, evaluate, load_rollout


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


def test_the_progress_is_one_display_that_is_updated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def update(data: dict[str, str], *, raw: bool) -> None:
        shown.append(data["text/plain"])

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert not shown
        update(data, raw=raw)
        return SimpleNamespace(update=update)

    notebook = SimpleNamespace(kernel=object())
    ipython = SimpleNamespace(get_ipython=lambda: notebook, display=display)
    for name in ("IPython", "IPython.display"):
        monkeypatch.setitem(sys.modules, name, ipython)
    bundle = flight_bundle(tmp_path)
    bundle.rows({"actions": GOLD}, {"id": "broken", "actions": GOLD, "reward": "flight_task.broken:evaluate"})
    (bundle.folder / "broken.py").write_text("def evaluate(messages, **_):\n    return 1 / 0\n")
    options: Any = {"agent": "gold", "n_rollouts": 1, "output_dir": tmp_path / "runs", "retries": 0}
    evaluate(bundle.dataset, progress=True, eval_id="it", **options)
    assert shown[0].splitlines() == ["evaluation it: 2 rollouts", "0/2  Pass^1 -"]
    name, status, notice = shown[-1].splitlines()
    assert (name, status.split("  ")[:3]) == (
        "evaluation it: 2 rollouts",
        ["2/2", "Pass^1 1.000", "1 not judged"],
    )
    assert notice.startswith("broken #1 not judged")
    assert capsys.readouterr() == ("", "")

    del shown[:], notebook.kernel  # IPython at a terminal
    evaluate(bundle.dataset, progress=True, **options)
    evaluate(bundle.dataset, progress=False, **options)
    assert (shown, capsys.readouterr().err.count("2/2  Pass^1 1.000")) == ([], 1)


def test_at_a_prompt_everything_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = flight_bundle(tmp_path)
    bundle.rows({"actions": GOLD, "metadata": {"kind": "short"}})
    result, *_ = (evaluate(bundle.dataset, agent="gold", n_rollouts=2, eval_id=name) for name in "abc")
    found = compare("a", "b")
    shown = {
        "<EvaluationResult a complete: 2 of 2 rollouts, Pass^1 1.000>": result,
        "<RowResult flight.booking.001: 2 of 2 passed>": result.rows[0],
        "<Outcome flight.booking.001#1: passed, reward 1>": result.outcomes[0],
        "<Trace a flight.booking.001#1: passed, reward 1, 6 messages>": result.record(result.outcomes[0]),
        "<Group 'short': 1 row, Pass^1 1.000>": result.by("metadata.kind")[0],
        "<RowPair flight.booking.001: 2/2 -> 2/2>": found.rows[0],
        "<BaselineComparison of b, c with a>": compare_with("a", ["b", "c"]),
    }
    assert {repr(one): one for one in shown.values()} == shown
    assert repr(found).startswith("<EvaluationComparison A a, B b: no difference on these tasks, ")
