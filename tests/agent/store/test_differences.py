"""An evaluation that cannot go on says which rows and files are no longer the same, and in what."""

import re
import shlex
from typing import Any

import pytest
from command import run_command
from flight_bundle import GOLD, REWARD, SEED, TOOLS, Bundle

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.errors import UsageError

POLICY = "You are an agent.\n" + "Rule. " * 100


@pytest.fixture
def bundle(bundle: Bundle) -> Bundle:
    bundle.write("policy.md", POLICY)
    rows(bundle)
    return bundle


def played(bundle: Bundle) -> EvaluationResult:
    return agent_eval(bundle.dataset, agent="gold", eval_id="mine")


@pytest.fixture
def finished(bundle: Bundle) -> EvaluationResult:
    return played(bundle)


def rows(bundle: Bundle, *changes: dict[str, Any]) -> None:
    """Rows a, b and c, each with its share of ``changes``."""
    row = {"actions": GOLD, "n_rollouts": 1, "system_prompt": "file:policy.md"}
    each = zip("abc", (*changes, {}, {}, {}), strict=False)
    bundle.rows(*({"id": row_id, **row, **change} for row_id, change in each))


def refused(bundle: Bundle) -> list[str]:
    """The differences that are told, one a line."""
    with pytest.raises(UsageError) as raised:
        played(bundle)
    assert raised.value.remedy is not None
    assert "Undo the changes, or start a new evaluation" in raised.value.remedy
    first, *lines = raised.value.fault.splitlines()
    assert first == "cannot be continued, because results would be mixed:"
    return [line.removeprefix("  ") for line in lines]


def test_a_field_is_told_as_it_was_and_is(bundle: Bundle, finished: EvaluationResult) -> None:
    rows(bundle, {}, {"sim_user_prompt": "You are Bob, a traveller."})
    (line,) = refused(bundle)
    assert line == (
        'row b: its fields have changed: sim_user_prompt was "You are Alice, a traveller.", '
        'is "You are Bob, a traveller."'
    )


def test_rules_are_no_other_ones(bundle: Bundle, finished: EvaluationResult) -> None:
    bundle.write("rules.sql", "-- rule: quick  No second call\nSELECT 1 FROM calls WHERE position > 9;\n")
    assert refused(bundle) == ["rules.sql is new"]


def test_what_rows_have_in_common_is_told_once(bundle: Bundle, finished: EvaluationResult) -> None:
    rows(bundle, {"max_steps": 7, "level": 3}, {"level": 3}, {"level": 3})
    assert refused(bundle) == [
        "row a: its fields have changed: max_steps was 30, is 7",
        "row a: its fields have changed: level was not given, is 3 (also in 2 more rows)",
    ]


def test_a_changed_seed_is_named_and_how_to_see_it(bundle: Bundle, finished: EvaluationResult) -> None:
    bundle.write("seed.sql", f"{SEED}INSERT INTO flights(id) VALUES (2);")
    seed_sql, seed = refused(bundle)
    assert seed_sql.startswith("row a: its fields have changed: seed_sql (file:seed.sql) was ")
    found = re.fullmatch(
        r"row a: its seed has changed \(flight_task/seed\.sql\); to see how: reward-kit (.*) "
        r"\(also in 2 more rows\)",
        seed,
    )
    assert found is not None
    assert run_command(*shlex.split(found[1])).out.startswith("flights #2: inserted")


def test_what_differs_in_the_tools_is_told_by_their_names(bundle: Bundle, finished: EvaluationResult) -> None:
    bundle.write("tools.py", TOOLS.replace("List flights", "Find flights"))
    tools, module = refused(bundle)
    assert tools == (
        "row a: the names, descriptions or parameters of its tools have changed: search_flights is another "
        "(also in 2 more rows)"
    )
    assert module == "flight_task/tools.py has changed"


def test_a_changed_reward_is_no_reason_to_play_again(bundle: Bundle, finished: EvaluationResult) -> None:
    bundle.write("reward.py", f"{REWARD}\n# changed\n")
    assert refused(bundle) == ["flight_task/reward.py has changed"]
    with pytest.raises(UsageError, match=r"judged by the reward of now with: reward-kit rescore mine$"):
        played(bundle)
    bundle.write("tools.py", f"{TOOLS}\n# changed\n")
    with pytest.raises(UsageError) as raised:
        played(bundle)
    assert "rescore" not in str(raised.value)


END_GOAL = {"end_goal_sql": "SELECT 1"}


def test_a_reward_that_came_or_went_is_told(bundle: Bundle) -> None:
    rows(bundle, END_GOAL, END_GOAL, END_GOAL)
    played(bundle)
    reward = bundle.folder / "reward.py"
    text = reward.read_text()
    reward.unlink()
    assert refused(bundle) == [
        "row a: its reward.py is gone, so that its fields would decide now (also in 2 more rows)"
    ]
    agent_eval(bundle.dataset, agent="gold", eval_id="other")
    reward.write_text(text)
    with pytest.raises(UsageError, match=r"row a: there was no reward\.py, .* and is one now"):
        agent_eval(bundle.dataset, agent="gold", eval_id="other")


@pytest.mark.parametrize(
    ("importing", "file", "told"),
    [
        ("from .helper import X", "helper.py", "{folder}/helper.py"),
        ("from {folder}.parts import (\n  helper,\n  )", "parts/helper.py", "{folder}/parts/helper.py"),
        ("from .first import Y", "second.py", "{folder}/second.py"),
        ("from shared.deep import X", "../shared/deep.py", "../shared/deep.py"),
    ],
)
def test_what_modules_import_is_code_as_well(bundle: Bundle, importing: str, file: str, told: str) -> None:
    folder = bundle.folder.name
    bundle.write(file, "X = 1\n")
    bundle.write("first.py", "def f():\n    from . import second\nY = 1\n")
    line = importing.format(folder=folder)
    if "first" in importing or "deep" in importing:  # in a function
        bundle.write("reward.py", REWARD.replace("):\n", f"):\n    {line}\n", 1))
    else:
        bundle.write("reward.py", f"{line}\n{REWARD}")
    assert line in (bundle.folder / "reward.py").read_text()
    played(bundle)
    played(bundle)
    bundle.write(file, "X = 2\n")
    assert refused(bundle) == [f"{told.format(folder=folder)} has changed"]
