"""The notebook runs from its first cell to its last, and prints what is stored in it."""

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_each_cell_prints_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(EXAMPLES / "seat_task", tmp_path / "seat_task", ignore=shutil.ignore_patterns("runs"))
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "branch.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["language"]) == (4, "python")
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
        assert printed.getvalue() == "".join("".join(one["text"]) for one in cell["outputs"]), number
        assert cell["execution_count"] == number
