"""A plugin for pytest: evaluations and tool calls in the tests of a bundle.

    @pytest.mark.bundle("my_task", agent="gold", min_pass1=1.0)
    def test_gold_actions(bundle_evaluation):
        assert bundle_evaluation.n_scored == 3

It is loaded in every run of pytest, so it imports nothing of the package until a test asks for it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reward_kit.agent import Episode, EvaluationResult

MARK = "bundle"
_OWN = ("row", "n", "min_pass1")
"""Arguments of the mark that are no options of an evaluation."""
_FAULT = pytest.StashKey[str | None]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARK}(dataset, *, agent, n, min_pass1, row, **options): the task bundle for the fixtures "
        "'bundle_evaluation' (n rollouts of each row, Pass^1 >= min_pass1) and 'bundle_episode' (of row)",
    )


def _marked(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The dataset, relative to the test's folder if it is there, and the arguments of the mark."""
    from reward_kit.agent.base.text import did_you_mean
    from reward_kit.agent.config import OPTIONS

    mark = request.node.get_closest_marker(MARK)
    if mark is None or len(mark.args) != 1:
        pytest.fail(f'mark the test with @pytest.mark.{MARK}("my_task", ...)', pytrace=False)
    known = [*OPTIONS.keys() - {"dataset"}, *_OWN, "models"]
    for name in mark.kwargs:
        if name not in known:
            pytest.fail(f"@pytest.mark.{MARK}: unknown {name}={did_you_mean(name, known)}", pytrace=False)
    given = {"n_rollouts" if name == "n" else name: value for name, value in mark.kwargs.items()}
    if len(given) < len(mark.kwargs):
        pytest.fail(f"@pytest.mark.{MARK}: give n= or n_rollouts=, not both", pytrace=False)
    if not isinstance(least := given.get("min_pass1", 0.0), int | float):
        pytest.fail(f"@pytest.mark.{MARK}: min_pass1={least!r} is not a number", pytrace=False)
    beside = request.path.parent / mark.args[0]
    return str(beside if beside.exists() else mark.args[0]), given


@pytest.fixture
def bundle_evaluation(request: pytest.FixtureRequest, tmp_path: Path) -> EvaluationResult:
    """The result of evaluating the test's bundle; the test fails below ``min_pass1``, or without a reward.

    The arguments of the mark are options of ``evaluate``, ``n`` is short for ``n_rollouts``.
    """
    from reward_kit.agent import evaluate
    from reward_kit.errors import RewardKitError

    dataset, given = _marked(request)
    options = {name: value for name, value in given.items() if name not in _OWN}
    try:
        result = evaluate(dataset, **{"output_dir": tmp_path / "runs", "quiet": True, **options})
    except RewardKitError as error:
        fault = str(error)
    else:
        request.node.stash[_FAULT] = _fault(result, given.get("min_pass1"))
        return result
    pytest.fail(fault, pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail the test of an evaluation with a fault, not its set-up."""
    if fault := item.stash.get(_FAULT, None):
        pytest.fail(fault, pytrace=False)


def _fault(result: EvaluationResult, least: float | None) -> str | None:
    failed = [outcome for outcome in result.outcomes if not outcome.scored]
    to_read = f"Read it: reward-kit show {result.log_path}"
    if failed:
        return f"{len(failed)} rollouts were not judged, {failed[0].row_id}: {failed[0].trouble}\n{to_read}"
    first = result.pass_power.get(1)
    if least is None or (first is not None and first.value >= least):
        return None
    shown = [
        f"  {one.row_id} #{one.index + 1}: {one.failure}: {one.trouble}"
        for one in result.outcomes
        if one.failure is not None
    ]
    value = "unknown" if first is None else f"{first.value:.3f}"
    return "\n".join([f"Pass^1 is {value}, less than {least:g}", *shown[:10], to_read])


@pytest.fixture
def bundle_episode(request: pytest.FixtureRequest) -> Iterator[Episode]:
    """An episode of the mark's ``row`` (the first by default), on a copy of its data.

    Of the other arguments of the mark, ``mode``, ``models`` and ``user`` are options of the episode.
    """
    from reward_kit.agent import TaskBundle
    from reward_kit.errors import RewardKitError

    dataset, given = _marked(request)
    options = {name: given[name] for name in ("mode", "models", "user") if name in given}
    with ExitStack() as opened:
        try:
            bundle = opened.enter_context(TaskBundle.load(dataset))
            episode = opened.enter_context(bundle.episode(given.get("row", 0), **options))
        except RewardKitError as error:
            fault = str(error)
        else:
            yield episode
            return
    pytest.fail(fault, pytrace=False)
