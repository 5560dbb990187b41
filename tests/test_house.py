"""The structure of the package: its figures are bounded, and the picture in the documentation is current."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import click
import pytest

from reward_kit.agent.config import OPTIONS
from reward_kit.cli import cli, main

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("house", ROOT / "docs" / "house.py")
assert spec is not None
assert spec.loader is not None
house = importlib.util.module_from_spec(spec)
spec.loader.exec_module(house)

BOUNDS = {
    "lines": (53_219, 37_000),
    "files": (259, 260),
    "lines of the longest file": (400, 400),
    "files under 80 lines": (13, 35),
    "modules at the top of agent/": (2, 4),
    "longest import chain of files": (14, 14),
    "room levels": (10, 10),
    "handlers of all exceptions": (25, 25),
    "accesses to private names": (2, 3),
    "headless docstrings": (0, 0),
}
"""Present bound and target of each figure. Lower a bound with the figure; a feature adds its own."""


def test_the_figures_stay_within_their_bounds(capsys):
    figures = house.figures()  # an import cycle between files or rooms ends it with the cycle's names
    with capsys.disabled():
        for name, value in figures.items():
            print(f"\n{value:>7} {name} (bound {BOUNDS[name][0]}, target {BOUNDS[name][1]})", end="")
    assert {name: value for name, value in figures.items() if value > BOUNDS[name][0]} == {}
    assert figures.keys() == BOUNDS.keys()


def test_every_integration_is_short() -> None:
    for path in (ROOT / "reward_kit" / "integrations").glob("*.py"):
        assert path.name == "playing.py" or len(path.read_text().splitlines()) < 120, path.name


def test_the_picture_of_the_rooms_is_current():
    assert house.PICTURE.read_text(encoding="utf-8") == house.draw()


def test_no_two_modules_have_a_class_of_one_name() -> None:
    places: dict[str, list[str]] = {}
    for module, path in house.modules().items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


SURFACE = {"commands": 20, "options": 130, "usual options of agent-eval": 16}
"""Commands with their own line in ``--help``; options that the helps list, those of sub-commands included."""
MEANINGS = {
    "--json": ("[FILE]",),
    "--markdown": ("[FILE]",),
    "--rows": ("IDS", "ID"),
    "--output-dir": ("DIR",),
    "--model": ("NAME",),
    "--user-model": ("NAME",),
    "--eval-id": ("NAME",),
    "--columns": ("NAMES",),
}
"""The value of a flag, which is the same in all commands."""


def leaves(command: click.Command, name: str = "") -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return [(name, command)]
    context = click.Context(command)
    inner = ((one, command.get_command(context, one)) for one in command.list_commands(context))
    return [
        leaf for one, found in inner if found is not None for leaf in leaves(found, f"{name} {one}".strip())
    ]


def test_the_surface_does_not_grow_and_a_flag_means_one_thing() -> None:
    found = leaves(cli)
    options = [
        (name, option)
        for name, command in found
        for option in command.get_params(click.Context(command))
        if isinstance(option, click.Option)
        and not option.hidden
        and not {"--help", "--help-all"} & {*option.opts}
    ]
    usual = [option for name, option in options if name == "agent-eval" and OPTIONS[str(option.name)].usual]
    listed = [one for name, one in options if name != "agent-eval" or one in usual]
    counted = (len(cli.list_commands(click.Context(cli))), len(listed), len(usual))
    assert dict(zip(SURFACE, counted, strict=True)) == SURFACE
    for name, option in options:
        flag = next((one for one in option.opts if one.startswith("--")), "")
        if flag in MEANINGS:
            assert option.metavar in MEANINGS[flag], (name, flag)
        assert flag != "--rows" or "--task-ids" in option.opts, name
        assert flag == "--output-dir" or "-o" not in option.opts, name
        assert option.help, (name, flag)
        assert option.help.endswith((".", ")", "]")), (name, option.help)


def test_no_list_of_option_names_is_kept_by_hand() -> None:
    """Beside the fields and the typed keywords: a field says what else there is to know of its option."""
    found = {}
    for path in (ROOT / "reward_kit").rglob("*.py"):
        for node in house.nodes_of(path):
            items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
            names = {one.value for one in items if isinstance(one, ast.Constant)}
            if len(OPTIONS.keys() & names) > 5:
                found[path.stem] = len(names)
    assert found == {"agent_eval": 10}  # help texts of branch


@pytest.mark.parametrize("name", [name for name, _ in leaves(cli)])
def test_a_help_fits_a_terminal_of_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
