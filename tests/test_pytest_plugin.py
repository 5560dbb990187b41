"""The pytest plugin, in runs of pytest of its own."""

from pathlib import Path

import pytest
from command import run_command, run_python

PYTEST = ["-q", "--strict-markers", "-p", "no:langsmith_plugin", "-p", "no:hypothesispytest"]  # slow to start
TESTS = """
import pytest


@pytest.mark.bundle("library_task", agent="gold", n=2, min_pass1=1.0, output_dir="kept")
def test_gold_actions(bundle_evaluation):
    assert bundle_evaluation.n_scored == 6


@pytest.mark.bundle("library_task", row="lend.1")
def test_lend(bundle_episode):
    assert bundle_episode.call_sync("lend_book", {"book_id": 1, "member": "Ada"}).content == "lent"


@pytest.mark.bundle("library_task", user=lambda rollout: "Which book?")
def test_a_user_of_its_own(bundle_episode):
    assert bundle_episode.say_sync("Hello.") == "Which book?"


@pytest.mark.bundle("library_task", agent="idle:answer", user="none", min_pass1=0.9)
def test_idle(bundle_evaluation):
    pass


@pytest.mark.bundle("missing_task", agent="gold")
def test_missing(bundle_evaluation):
    pass


@pytest.mark.bundle("library_task", agent="gold", mni_pass1=1)
def test_misspelt(bundle_evaluation):
    pass


@pytest.mark.bundle("library_task", row="lend.9")
def test_no_such_row(bundle_episode):
    pass


@pytest.mark.bundle("library_task", rwo="lend.1")
def test_misspelt_row(bundle_episode):
    pass


@pytest.mark.bundle("library_task", agent="gold", n=1, n_rollouts=3)
def test_two_numbers(bundle_evaluation):
    pass


@pytest.mark.bundle("library_task", agent="gold", min_pass1="1")
def test_least_as_text(bundle_evaluation):
    pass


def test_unmarked(bundle_evaluation):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert run_command("init", "library_task").code == 0
    (tmp_path / "idle.py").write_text("async def answer(rollout):\n    return 'Done.'\n")
    (tmp_path / "test_library.py").write_text(TESTS)
    return tmp_path


def test_the_plugin_evaluates_bundles_and_calls_tools(folder: Path) -> None:
    done = run_python(f"import pytest; pytest.main({PYTEST})", folder)
    shown = done.out + done.err
    assert "3 passed" in shown, shown
    assert list((folder / "kept" / "evals").glob("*.db"))
    assert "1 failed" in shown
    assert "7 errors" in shown
    for said in (
        "Pass^1 is 0.000, less than 0.9",
        "  lend.1 #1: partially_completed",
        "Read it: reward-kit show /",
        "unknown mni_pass1= (did you mean 'min_pass1'?)",
        "unknown rwo= (did you mean 'row'?)",
        "there is no row 'lend.9' (did you mean 'lend.",
        "@pytest.mark.bundle: give n= or n_rollouts=, not both",
        "@pytest.mark.bundle: min_pass1='1' is not a number",
        "missing_task: no such file or folder",
        'mark the test with @pytest.mark.bundle("my_task", ...)',
    ):
        assert said in shown
    assert "Traceback" not in shown
    assert "AssertionError" not in shown
