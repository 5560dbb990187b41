"""What an evaluation can be asked for with from Python: a configuration, or a dataset with options."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle

from reward_kit.agent import EvaluationConfig, EvaluationResult, agent_eval, run_evaluation
from reward_kit.agent.config import OPTIONS
from reward_kit.agent.evaluation.options import EvaluationOptions
from reward_kit.errors import UnknownOptionError, UsageError

ROWS = [{"actions": GOLD, "n_rollouts": 2, "id": "a"}]


def awaited(*what: Any, **options: Any) -> EvaluationResult:
    return asyncio.run(run_evaluation(*what, **options))


@pytest.mark.parametrize("evaluate", [agent_eval, awaited])
def test_a_configuration_and_a_dataset_with_options_are_the_same(bundle: Bundle, evaluate: Any) -> None:
    config = EvaluationConfig(dataset=str(bundle.dataset), agent="gold", n_rollouts=3)
    for result in (
        evaluate(config),
        evaluate(bundle.dataset, agent="gold", n_rollouts=3),
        evaluate(str(bundle.dataset), agent="gold", n_rollouts=3),
        evaluate(dataset=bundle.dataset, agent="gold", n_rollouts=3),
    ):
        assert (result.score, len(result.outcomes)) == (1.0, 3)


@pytest.mark.parametrize("evaluate", [agent_eval, awaited])
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"dataset": "x"}, r"got \{'dataset': 'x'\}. Give its entries as options: evaluate\(\*\*"),
        (5, "expected a dataset, got 5. Give the path of a dataset, with options beside it, or an Eval"),
        (["x" * 1000], r"got \['x+…. Give the path"),
    ],
)
def test_all_else_is_refused_with_what_to_give(bundle: Bundle, evaluate: Any, what: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        evaluate(what, agent="gold")
    assert not Path("runs").exists()


@pytest.mark.parametrize("evaluate", [agent_eval, awaited])
def test_options_beside_a_configuration_are_refused(bundle: Bundle, evaluate: Any) -> None:
    config = EvaluationConfig(dataset=str(bundle.dataset), agent="gold")
    with pytest.raises(UsageError, match=r"n_rollouts= cannot .* EvaluationConfig\(n_rollouts=\.\.\.\)"):
        evaluate(config, n_rollouts=3)
    assert not Path("runs").exists()


def test_an_unknown_option_and_no_dataset_at_all_are_refused_by_both(bundle: Bundle) -> None:
    for evaluate in (agent_eval, awaited):
        with pytest.raises(UnknownOptionError, match="Did you mean 'n_rollouts'") as raised:
            evaluate(bundle.dataset, agent="gold", n_rollout=3)
        assert isinstance(raised.value, TypeError)
        with pytest.raises(UsageError, match="no dataset is given"):
            evaluate()


def test_a_result_goes_on_where_it_lies(bundle: Bundle) -> None:
    first = agent_eval(bundle.dataset, agent="gold", output_dir="elsewhere", eval_id="first")
    again = agent_eval(resume=first, n_rollouts=3)
    assert (again.eval_id, len(again.outcomes), again.folder) == ("first", 3, first.folder)
    assert awaited(resume=first).outcomes == again.outcomes
    with pytest.raises(UsageError, match="--resume takes the name of an evaluation, not 5"):
        agent_eval(resume=5)


def test_the_typed_options_are_those_of_the_configuration() -> None:
    assert set(EvaluationOptions.__annotations__) == OPTIONS.keys() - {"dataset"} | {"models", "progress"}
