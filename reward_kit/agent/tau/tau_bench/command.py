"""The bundle of a checkout of tau-bench, with the benchmark's own texts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .build_seed import BUNDLE
from .folder import check_target, write_folder
from .offer import make_offer
from .readme import readme
from .refusals import mark_refused
from .seed import make_seed
from .source import Row, Source, SourceError, SourceFiles
from .tau_bench import FOLDER, read_tau_bench

if TYPE_CHECKING:
    from collections.abc import Sequence

_HERE = Path(__file__).parent
_CHECKOUT = f"a checkout of tau-bench (with {FOLDER})"


@dataclass(frozen=True, slots=True)
class Written:
    """The result: the folder, the source, a sentence about the data, and warnings."""

    folder: Path
    source: Source
    seed: str
    warnings: tuple[str, ...]

    def lines(self) -> list[str]:
        """The report for a terminal."""
        counts = ", ".join(f"{file} ({len(rows)} tasks)" for file, rows in self.source.rows.items())
        return [f"{self.folder}: {self.source.title}, {self.source.version}", counts, f"Data: {self.seed}."]


def port(source: str | Path, out: str | Path) -> Written:
    """Write the bundle of ``source`` to the folder ``out``; write nothing if it raises ``SourceError``."""
    target = check_target(Path(out))
    found = _read(Path(source))
    offer = make_offer(found)
    sql, seed = make_seed(found.domain)
    warnings = found.warnings
    if offer.left_out:
        warnings += (f"These tools have no code here and are left out: {', '.join(offer.left_out)}.",)
    tools = {
        "tools": offer.tools,
        "terminal": list(found.terminal),
        "parallel_tool_calls": found.parallel_tool_calls,
    }
    texts = {
        "__init__.py": f'"""The retail tasks of {found.title}."""\n',
        "descriptions.json": json.dumps(tools, indent=2, ensure_ascii=False) + "\n",
        "seed.sql": sql,
        "README.md": readme(target.name, found, seed, warnings),
        **{file: _dataset(rows, target.name) for file, rows in found.rows.items()},
    }
    files = {**_code(), **{name: text.encode() for name, text in texts.items()}, **found.texts}
    write_folder(target, files)
    for file, rows in found.rows.items():
        if rows:
            mark_refused(target / file)
    return Written(target, found, seed, warnings)


def _read(path: Path) -> Source:
    if not path.is_dir():
        raise SourceError(f"{path} does not exist. Expected: {_CHECKOUT}")
    if (path / FOLDER).is_dir():
        return read_tau_bench(SourceFiles(path, str(path)))
    more = " For tau2-bench, use port tau2" if (path / "src/tau2").is_dir() else ""
    raise SourceError(f"{path} has no {FOLDER}. Expected: {_CHECKOUT}.{more}")


def _code() -> dict[str, bytes]:
    """Read the files of code that a bundle needs, by their path in it."""
    files = {f"retail_tools/{path.name}": path for path in (BUNDLE / "tools").glob("*.py")}
    files["retail_tools/item_details.py"] = _HERE / "written" / "item_details.py"
    files["tools.py"] = _HERE / "written" / "tools.py"
    files["reward.py"] = BUNDLE / "reward.py"
    return {name: path.read_bytes() for name, path in files.items()}


def _dataset(rows: Sequence[Row], name: str) -> str:
    def line(row: Row) -> dict[str, Any]:
        return {"id": row["id"], "toolset": f"{name}.tools", **row}

    return "".join(json.dumps(line(row)) + "\n" for row in rows)
