"""Notebooks: the HTML of results, comparisons and rollouts, and the progress in one display."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
