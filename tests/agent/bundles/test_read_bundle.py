"""Reading a bundle's rows without running any of its code."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from reward_kit.agent.bundles.bundle import read_bundle
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from pathlib import Path

RAISES = "raise AssertionError('imported')\n"


def bundle(folder: Path, *rows: dict[str, object], **files: str) -> Path:
    folder.mkdir(parents=True)
    for name in ("__init__.py", "tools.py", "reward.py"):
        (folder / name).write_text(RAISES)
    for name, text in files.items():
        (folder / name.replace("_py", ".py")).write_text(text)
    lines = [{"id": f"row_{number}", "toolset": "unread.tools", **row} for number, row in enumerate(rows)]
    (folder / "task.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_nothing_of_the_bundle_is_imported_nor_its_seed_run(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "unread", {}, {}, seed_py=f"def seed(db):\n    {RAISES}")
    with read_bundle(folder) as read:
        assert [row.id for row in read.rows] == ["row_0", "row_1"]
        assert read.seeds[0] is read.seeds[1]
        assert len(read.seeds[0].key) == 64
        assert read.folder == folder
        assert read.dataset == folder / "task.jsonl"
        assert "unread" not in sys.modules
        with pytest.raises(BundleError, match=r"module 'unread\.tools' cannot be imported: .*imported"):
            read.open()
    assert str(tmp_path) not in sys.path
