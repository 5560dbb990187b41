"""The page about compatibility says what is there and what is not."""

import re
import shlex

import pytest
from command import run_command
from pages import ROOT
from pages import table as table_of

from reward_kit.agent.config import OPTIONS

PAGE = ROOT / "docs" / "compatibility.md"


def table(heading: str) -> list[list[str]]:
    """The rows of the first table from ``heading`` on, cell by cell."""
    text = PAGE.read_text()
    return table_of(text[text.index(heading) :])


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize(
    ("module", "name"), [(quoted(m)[0], name) for m, names in table("## Kept") for name in quoted(names)]
)
def test_what_is_kept_can_be_imported(module: str, name: str) -> None:
    exec(f"from {module} import {name}", {})


def removed(beginning: str) -> list[str]:
    return [text for what, _ in table("## Removed") for text in quoted(what) if text.startswith(beginning)]


@pytest.mark.parametrize("path", removed("reward_kit."))
def test_what_is_not_there_is_not(path: str) -> None:
    module, _, name = path.rpartition(".")
    with pytest.raises(ImportError):
        exec(f"from {module} import {name}", {})


@pytest.mark.parametrize("command", removed("reward-kit "))
def test_commands_that_are_not_there_end_with_2(command: str) -> None:
    arguments = shlex.split(command)[1:]
    options = ["--id", "x"] if arguments == ["deploy"] else []
    assert run_command(*arguments, *options).code == 2


def test_earlier_options_are_there_or_not_as_the_table_says() -> None:
    flags = {part for option in OPTIONS.values() for flag in option.flags for part in flag.split("/")}
    for earlier, now in table("| earlier option"):
        for flag in quoted(earlier):
            assert (flag in flags) == (now == "the same"), flag
        for mentioned in quoted(now):
            if mentioned.startswith("--"):
                assert mentioned.split()[0] in flags
