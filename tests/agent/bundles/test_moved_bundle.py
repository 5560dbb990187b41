"""An evaluation whose bundle lies elsewhere by now: how to go on is said, and goes on."""

from typing import Any

import pytest
from flight_bundle import GOLD, Bundle

from reward_kit.agent import EvaluationResult, agent_eval, rescore
from reward_kit.agent.after.rescore import Rescoring
from reward_kit.agent.evaluation.signals import run_from_code
from reward_kit.errors import UsageError

ROWS = [{"id": row_id, "actions": GOLD, "n_rollouts": 2} for row_id in ("a", "b")]


@pytest.fixture
def finished(bundle: Bundle) -> EvaluationResult:
    return agent_eval(bundle.folder, agent="gold", eval_id="mine")


def moved(bundle: Bundle, name: str) -> Bundle:
    target = bundle.folder.parent / name
    target.parent.mkdir(exist_ok=True)
    return Bundle(bundle.folder.rename(target))


def renamed(bundle: Bundle) -> Bundle:
    """The bundle under another name, its rows as that name wants them."""
    after = moved(bundle, "plane_task")
    after.rows(*({**row, "toolset": "plane_task.tools"} for row in ROWS))
    return after


def resumed(**options: Any) -> EvaluationResult:
    return agent_eval(resume="mine", n_rollouts=3, **options)


def rescored(**options: Any) -> Rescoring:
    return run_from_code(rescore("mine", **options))


@pytest.mark.parametrize("again", [resumed, rescored])
@pytest.mark.usefixtures("finished")
def test_a_moved_bundle_is_said_to_be_gone_and_how_to_name_its_place(bundle: Bundle, again: Any) -> None:
    moved(bundle, "elsewhere/flight_task")
    with pytest.raises(UsageError) as raised:
        again()
    assert str(raised.value) == (
        f"evaluation mine: there is no {bundle.folder} any more, which it was begun with. "
        "If it was moved, name its new place: --dataset NEW_PATH."
    )


@pytest.mark.parametrize("new_place", [lambda bundle: moved(bundle, "elsewhere/flight_task"), renamed])
def test_the_named_place_goes_on_with_the_rest(bundle: Bundle, finished: Any, new_place: Any) -> None:
    after = new_place(bundle)
    again = resumed(dataset=after.folder)
    assert (again.score, len(again.outcomes)) == (1.0, 6)
    assert {one.id for one in finished.outcomes} < {one.id for one in again.outcomes}
    assert len(resumed().outcomes) == 6  # the new place is remembered
