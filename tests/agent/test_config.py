"""The one list of options: fields, checks, and what is stored of them."""

import copy
import pickle
import shlex
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from reward_kit.agent.base.redaction import redacted
from reward_kit.agent.config import DEFAULTS, GROUPS, OPTIONS, EvaluationConfig, UsageError
from reward_kit.cli.agent_eval import agent_eval, given_options


def test_every_field_is_an_option_of_the_command_and_the_other_way_round() -> None:
    commands = {parameter.name: parameter for parameter in agent_eval.params}
    assert set(commands) == {field.name for field in fields(EvaluationConfig)} | {"bundle", "help_all"}
    for name, option in OPTIONS.items():
        said = [*commands[name].opts, *commands[name].secondary_opts]
        assert sorted(said) == sorted(flag for flags in option.flags for flag in flags.split("/"))
        assert option.group in GROUPS
        assert option.help.endswith((".", ")."))


def test_what_the_command_parses_makes_the_configuration_it_says() -> None:
    said = shlex.split(
        "-d x.jsonl --user-model m --num-trials 4 --agent-strategy gold --user-strategy none --shuffle "
        "--task-ids '2,a, 6' --no-parallel-tool-calls --model-arg top_p=0.5 --model-arg stop=END "
        "--resume --max-cost 1.5 --workers auto"
    )
    context = agent_eval.make_context("agent-eval", said)
    given = given_options(context)
    config = EvaluationConfig(**given)
    assert (config.dataset, config.sim_model, config.n_rollouts, config.agent) == ("x.jsonl", "m", 4, "gold")
    assert (config.user, config.task_ids, config.parallel_tool_calls) == ("none", ("2", "a", "6"), False)
    assert config.model_args == {"top_p": 0.5, "stop": "END"}
    assert (config.resume, config.max_cost, config.shuffle, config.debug) == ("latest", 1.5, True, False)
    assert config.workers == EvaluationConfig(workers="auto").workers >= 1
    assert len(given) == 12


def test_the_defaults_of_the_contract() -> None:
    config = EvaluationConfig()
    assert (config.max_concurrency, config.seed, config.retries, config.output_dir) == (10, 10, 3, "runs")
    on = {name for name, value in DEFAULTS.items() if value is True}
    assert on == {"parallel_tool_calls", "prompt_cache"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_concurrency": 0}, "--max-concurrency must be at least 1, not 0"),
        ({"timeout": 0}, "--timeout must be at least 0.001"),
        ({"fail_under": 1.5}, "--fail-under must be at most 1"),
        ({"n_rollouts": 1.5}, "--n-rollouts takes a whole number, not 1.5"),
        ({"n_rollouts": "4"}, "--n-rollouts takes a whole number, not '4'"),
        ({"temperature": "hot"}, "--temperature takes a number"),
        ({"keep_db": "some"}, "--keep-db must be one of full, delta, none"),
        ({"eval_id": ".."}, "is not a valid file name"),
        ({"eval_id": "latest"}, "--eval-id latest means the last evaluation. Choose another name"),
        ({"eval_id": "a" * 250}, "is not a valid file name. Use at most 200 letters"),
        ({"n_rollouts": 1_000_001}, "--n-rollouts must be at most 1000000, not 1000001"),
        ({"model_args": ["=1"]}, "is not KEY=VALUE"),
        ({"task_ids": ""}, "--rows names no row"),
        ({"task_ids": 3}, 'not 3. Give a list, or a text such as "0,3"'),
        ({"agent": object}, r"--agent takes text.*module:factory \(__main__:factory in a notebook"),
        ({"model_args": 3}, "--model-arg takes names and values, not 3. Give a dict."),
        ({"max_tasks": 0}, "at least 1, not 0. Omit --max-tasks for all rows"),
        ({"shuffle": "x"}, "--shuffle takes True or False, not 'x'"),
        ({"nope": 1}, "unknown option 'nope'$"),
        ({"n_rolouts": 1}, "unknown option 'n_rolouts'. Did you mean 'n_rollouts'?"),
        ({"rows": "a"}, "Did you mean 'task_ids'?"),
        ({"epochs": 2}, "Did you mean 'n_rollouts'?"),
        ({"no_sim_user": True, "user": "llm"}, "--no-sim-user contradicts --user llm"),
        ({"worker_memory": 500}, "--worker-memory needs --workers"),
    ],
)
def test_values_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EvaluationConfig(**options)


def test_a_configuration_can_be_copied() -> None:
    config = EvaluationConfig(dataset="d", model_args={"a": 1})
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == replace(config) == config


def test_a_configuration_is_never_changed() -> None:
    config = EvaluationConfig(dataset="d", workers="auto", task_ids="a,b")
    with pytest.raises(FrozenInstanceError):
        config.model = "m"  # type: ignore[misc] # wrong on purpose
    assert replace(config, model="m").model == "m"
    assert (config.model, config.task_ids) == (None, ("a", "b"))


def test_secrets_are_not_stored() -> None:
    given = {
        "api_key": "canary",
        "extra_headers": {"Authorization": "Bearer canary", "X-Team": "a"},
        "max_tokens": 5,
        "aws_secret_access_key": "canary",
        "list": [{"token": "canary"}],
    }
    stored = EvaluationConfig(model_args=given).to_json()["model_args"]
    assert stored == redacted(given)
    assert "canary" not in str(stored)
    assert (stored["max_tokens"], stored["extra_headers"]["X-Team"]) == (5, "a")
