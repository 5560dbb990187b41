"""Names of a bundle's files that are no files: an error, not a missing file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from flight_bundle import GOLD, Bundle

from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.errors import BundleError

KINDS: dict[str, Callable[[Path], None]] = {
    "dangling": lambda path: path.symlink_to("../not_fetched/file"),
    "loop": lambda path: path.symlink_to(path.name),
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["reward.py", "tools.py", "seed.sql", "seed.py"])
def test_a_name_that_is_no_file_is_one_line(bundle: Bundle, name: str, kind: str) -> None:
    path = bundle.folder / name
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    bundle.rows({"seed_sql": None, "actions": GOLD})
    with pytest.raises(BundleError) as caught:
        TaskBundle.load(bundle.folder)
    (line,) = str(caught.value).splitlines()
    fault = "there is no module 'flight_task.tools'" if name == "tools.py" else f"{path}: is not a file"
    assert fault in line


def test_a_link_to_a_file_of_the_folder_is_followed(bundle: Bundle) -> None:
    (bundle.folder / "reward.py").rename(bundle.folder / "judged.py")
    (bundle.folder / "reward.py").symlink_to("judged.py")
    with TaskBundle.load(bundle.folder) as loaded:
        assert loaded.tasks[0].reward.__module__ == "flight_task.reward"
