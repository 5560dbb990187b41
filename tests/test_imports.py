"""What importing costs and does: lazy names, the name that means two things, no side effects."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from command import new_python

import reward_kit
import reward_kit.agent

HEAVY = {
    *("aiosqlite", "apsw", "fastapi", "litellm", "openai", "opentelemetry", "pydantic", "requests", "rich"),
    *("sqlalchemy", "uvicorn"),
}


def python(code: str, *flags: str) -> str:
    """What a fresh interpreter prints."""
    done = new_python(*flags, "-c", code)
    assert done.code == 0, done.err
    return done.out.strip()


def modules_after(code: str) -> set[str]:
    return set(python(f"import sys\n{code}\nprint('modules:', *sys.modules)").split("modules:")[1].split())


class TestWeight:
    def test_importing_the_package_imports_no_library(self):
        assert not modules_after("import reward_kit") & HEAVY
        assert not modules_after("import reward_kit.agent") & HEAVY

    def test_writing_a_reward_needs_pydantic_alone(self):
        names = "reward_function, RewardOutput, Message, EvaluateResult"
        loaded = modules_after(f"from reward_kit import {names}")
        assert loaded & HEAVY == {"pydantic"}

    @pytest.mark.parametrize("arguments", [["--help"], ["agent-eval", "--help"]])
    def test_help_imports_no_library_but_click(self, arguments):
        code = f"from reward_kit.cli import main; sys.argv = ['reward-kit', *{arguments}]; main()"
        assert not modules_after(code) & HEAVY

    def test_importing_configures_no_logging_and_no_warnings(self):
        code = (
            "import logging, warnings; before = list(warnings.filters)\n"
            "from reward_kit import reward_function, load_jsonl, scorer_to_reward_fn, RewardOutput\n"
            "print(logging.getLogger().handlers, warnings.filters == before)"
        )
        assert python(code) == "[] True"


class TestNames:
    @pytest.mark.parametrize("package", [reward_kit, reward_kit.agent], ids=lambda package: package.__name__)
    def test_every_public_name_is_there_listed_and_seen_by_type_checkers(self, package):
        source = Path(package.__file__).read_text(encoding="utf-8")
        declared = source.split("if TYPE_CHECKING:")[1].split("__all__")[0]
        for name in package.__all__:
            assert getattr(package, name) is not None
            assert name in dir(package)
            assert name in declared

    def test_a_star_import_brings_the_public_names(self):
        code = "from reward_kit import *; print(reward_function.__module__, EvaluateResult.__name__)"
        assert python(code) == "reward_kit.typed_interface EvaluateResult"

    def test_an_unknown_name_is_an_attribute_error(self):
        with pytest.raises(AttributeError, match="module 'reward_kit' has no attribute 'nothing'"):
            reward_kit.nothing  # noqa: B018 - the access is what is tested
        with pytest.raises(ImportError):
            from reward_kit import make  # noqa: F401 - the import is what is tested

    def test_the_version_is_that_of_the_distribution(self):
        assert reward_kit.__version__ == importlib.metadata.version("reward-kit")

    def test_the_older_name_of_the_decorator(self):
        assert reward_kit.legacy_reward_function is reward_kit.reward_function

    @pytest.mark.parametrize(("older", "name"), [("judge_sync", "judge"), ("RolloutRecord", "Trace")])
    def test_older_names_for_agents(self, older, name):
        assert getattr(reward_kit.agent, older) is getattr(reward_kit.agent, name)
        assert older not in reward_kit.agent.__all__


class TestTheNameThatMeansTwoThings:
    """``reward_kit.reward_function`` is the decorator; the submodule is reached by importing from it."""

    IS_DECORATOR = "assert reward_kit.reward_function.__module__ == 'reward_kit.typed_interface'"

    @pytest.mark.parametrize(
        "imports",
        [
            "import reward_kit.reward_function",
            "from reward_kit.reward_function import RewardFunction, reward_function; import reward_kit",
            "import reward_kit, reward_kit.reward_function as it; assert it is reward_kit.reward_function",
            "import reward_kit; reward_kit.reward_function; from reward_kit.reward_function import requests",
        ],
    )
    def test_in_any_order_of_imports(self, imports):
        assert python(f"{imports}\n{self.IS_DECORATOR}\nprint('ok')") == "ok"
