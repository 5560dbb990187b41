"""Importing bundles: the path, the pins, and two bundles with one name."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reward_kit.agent.bundles.imports import BundleImports
from reward_kit.errors import BundleError


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Iterator[None]:
    path, finders, modules = list(sys.path), list(sys.meta_path), set(sys.modules)
    yield
    assert sys.path == path
    assert sys.meta_path == finders
    left = {name for name in set(sys.modules) - modules if name.startswith(("my_task", "neighbour"))}
    for name in left:
        del sys.modules[name]
    assert left == set()


def package(parent: Path, name: str = "my_task", value: object = 1, *, init: bool = False) -> Path:
    folder = parent / name
    folder.mkdir(parents=True)
    (folder / "tools.py").write_text(f"from {name.replace('/', '.')}.data import number\n")
    (folder / "data.py").write_text(f"number = {value!r}\n")
    if init:
        (folder / "__init__.py").write_text("")
    return folder


def test_the_folder_above_and_the_working_directory_are_importable_until_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "neighbour_a.py").write_text("")
    folder = package(tmp_path)
    (tmp_path / "neighbour_b.py").write_text("")
    monkeypatch.chdir(tmp_path / "cwd")
    imports = BundleImports(folder)
    added = [str(tmp_path), str(tmp_path / "cwd")]
    assert sys.path[-2:] == added
    imports.module("neighbour_a")
    imports.module("neighbour_b")
    imports.close()
    imports.close()
    assert "neighbour_a" not in sys.modules


def test_two_open_bundles_of_one_folder_name_are_refused(tmp_path: Path) -> None:
    first = BundleImports(package(tmp_path / "1"))
    first.module("my_task.tools")
    second = BundleImports(package(tmp_path / "2"))
    with pytest.raises(BundleError, match=r"belongs to the bundle .*1/my_task, which is open. Close"):
        second.module("my_task.tools")
    first.close()
    assert second.module("my_task.tools").number == 1
    second.close()


def test_one_folder_can_be_open_twice(tmp_path: Path) -> None:
    folder = package(tmp_path)
    first, second = BundleImports(folder), BundleImports(folder)
    module = first.module("my_task.tools")
    assert second.module("my_task.tools") is module
    first.close()
    assert second.module("my_task.data") is sys.modules["my_task.data"]
    second.close()
    assert "my_task.data" not in sys.modules


def test_a_foreign_module_of_its_name_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path / "foreign", init=True)
    monkeypatch.syspath_prepend(str(tmp_path / "foreign"))
    import my_task

    imports = BundleImports(package(tmp_path / "own"))
    with pytest.raises(BundleError, match=r"a module 'my_task' from .*foreign/my_task/__init__.py is imp"):
        imports.module("my_task.tools")
    imports.close()
    assert sys.modules["my_task"] is my_task
    del sys.modules["my_task"]


def test_a_bundle_is_imported_anew_when_it_is_opened_again(tmp_path: Path) -> None:
    folder = package(tmp_path)
    imports = BundleImports(folder)
    imports.module("my_task.tools")
    imports.close()
    (folder / "data.py").write_text("number = 'edited'\n")
    imports = BundleImports(folder)
    assert imports.module("my_task.tools").number == "edited"
    imports.close()


def test_an_edit_counts_while_the_bundle_is_open_or_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = importlib.import_module("my_task.tools")
    left_open = BundleImports(folder)
    assert left_open.module("my_task.tools") is own
    (folder / "data.py").write_text("number = 'edited'\n")
    imports = BundleImports(folder)
    assert imports.module("my_task.tools").number == "edited"
    (folder / "data.py").write_text("number = 'edited again'\n")
    assert importlib.reload(imports.module("my_task.data")).number == "edited again"
    again = BundleImports(folder)
    assert again.module("my_task.data") is imports.module("my_task.data")
    for one in (left_open, imports, again):
        one.close()


def test_of_an_edited_bundle_no_module_is_old_and_no_installed_one_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = package(tmp_path)
    (folder / "tools.py").write_text("from . import data\nfrom .data import number\n")
    monkeypatch.syspath_prepend(str(folder / ".venv"))
    (package(folder / ".venv", "neighbour") / "__init__.py").write_text("")
    installed = importlib.import_module("neighbour.data")
    left_open = BundleImports(folder)
    before = left_open.module("my_task.tools")
    (folder / "data.py").write_text("number = 'edited'\n")
    imports = BundleImports(folder)
    after = imports.module("my_task.tools")
    assert (before.data.number, before.number) == (1, 1)
    assert (after.data.number, after.number) == ("edited", "edited")
    assert importlib.import_module("neighbour.data") is installed
    for one in (left_open, imports):
        one.close()
    for name in ("neighbour.data", "neighbour"):
        del sys.modules[name]
