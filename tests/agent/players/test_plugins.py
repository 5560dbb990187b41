"""An agent of one's own, found by its import path."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flight_bundle import Bundle

from reward_kit.agent import agent_eval
from reward_kit.errors import BundleError

ROWS = [{"n_rollouts": 1}]
NAMES = ("own_agent_of_a_test", "own_words_of_a_test")
AGENT = f"""
from {NAMES[1]} import WORD

class Agent:
    async def respond(self, rollout):
        return WORD
"""


@pytest.fixture
def bundle(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bundle]:
    monkeypatch.syspath_prepend(tmp_path)  # as for a script that lies there
    yield bundle
    for name in NAMES:
        sys.modules.pop(name, None)


def said(bundle: Bundle) -> str:
    result = agent_eval(bundle.dataset, agent=f"{NAMES[0]}:Agent", user="none")
    return str(result.record(result.outcomes[0]).messages[-1]["content"])


def test_an_agent_that_was_edited_is_imported_anew(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / f"{NAMES[0]}.py").write_text(AGENT)
    words = tmp_path / f"{NAMES[1]}.py"
    words.write_text("WORD = 'one'\n")
    assert said(bundle) == "one"
    words.write_text("WORD = 'two'\n")  # as long, and in the same second
    assert said(bundle) == "two"
    words.write_text("WORD = 'another'\n")
    assert said(bundle) == "another"
    (tmp_path / f"{NAMES[0]}.py").write_text(AGENT.replace("return WORD", "return WORD + '!'"))
    assert said(bundle) == "another!"


@pytest.mark.parametrize("spec", ["agents.py:Agent", "./agents.py:Agent"])
def test_a_file_in_place_of_a_module_is_told_with_the_name_that_is_meant(bundle: Bundle, spec: str) -> None:
    with pytest.raises(BundleError, match=r"agents\.py is a file\. Name the module: agents:Agent\."):
        agent_eval(bundle.dataset, agent=spec, user="none")
