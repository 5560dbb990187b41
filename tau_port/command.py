"""The command: read a source, write a bundle, report it."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .build_seed import BUNDLE
from .folder import check_target, write_folder
from .inspect_evals import PINNED, Wheel, check, fetch, read_inspect_evals, user_cache
from .offer import make_offer
from .readme import readme
from .refusals import mark_refused
from .seed import make_seed
from .source import Row, Source, SourceError, SourceFiles
from .tau2_bench import FOLDER as TAU2_FOLDER
from .tau2_bench import read_tau2_bench
from .tau_bench import FOLDER as TAU_FOLDER
from .tau_bench import read_tau_bench

if TYPE_CHECKING:
    from collections.abc import Sequence

_HERE = Path(__file__).parent
_INSPECT = "inspect-evals"
_SOURCES = (
    f"a checkout of tau-bench (with {TAU_FOLDER}), a checkout of tau2-bench (with {TAU2_FOLDER}), or the "
    f"word {_INSPECT}, which fetches inspect-evals {PINNED.version} from the package index (or the path of "
    "that wheel)"
)


@dataclass(frozen=True, slots=True)
class Written:
    """The result: the folder, the source, a sentence about the data, and warnings."""

    folder: Path
    source: Source
    seed: str
    warnings: tuple[str, ...]


def port(
    source: str | Path,
    out: str | Path,
    *,
    force: bool = False,
    wheel: Wheel = PINNED,
    cache: Path | None = None,
) -> Written:
    """Write the bundle of ``source`` to the folder ``out``; write nothing if it raises ``SourceError``.

    ``wheel`` is the release that the word ``inspect-evals`` stands for, ``cache`` the folder for downloads.
    """
    target = check_target(Path(out), force=force, spare=[Path(source)])
    found = _read(source, wheel, cache or user_cache())
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 2 if nothing was written."""
    parser = argparse.ArgumentParser(
        prog="python -m tau_port",
        description=(
            "Write a task bundle with the benchmark's own instructions, policy, tool descriptions and gold."
        ),
    )
    parser.add_argument("--from", dest="source", metavar="SOURCE", required=True, help=_SOURCES)
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder of the new bundle")
    parser.add_argument("--force", action="store_true", help="replace DIR if it is not empty")
    options = parser.parse_args(arguments)
    try:
        written = port(options.source, options.out, force=options.force)
    except (SourceError, OSError) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    sys.stdout.write(_report(written, options.out))
    return 0


def _read(source: str | Path, wheel: Wheel, cache: Path) -> Source:
    if str(source) == _INSPECT:
        return read_inspect_evals(fetch(wheel, cache), wheel)
    path = Path(source)
    if path.suffix == ".whl" and path.is_file():
        check(path, wheel)
        return read_inspect_evals(path, wheel)
    if not path.is_dir():
        raise SourceError(f"{source} does not exist. Expected: {_SOURCES}")
    files = SourceFiles(path, str(path))
    if (path / TAU_FOLDER).is_dir():
        return read_tau_bench(files)
    if (path / TAU2_FOLDER).is_dir():
        return read_tau2_bench(files)
    raise SourceError(
        f"{source} has neither {TAU_FOLDER} nor {TAU2_FOLDER}. Expected: {_SOURCES}",
    )


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


def _report(written: Written, out: Path) -> str:
    source = written.source
    counts = ", ".join(f"{file} ({len(rows)} tasks)" for file, rows in source.rows.items())
    lines = [
        f"{out}: {source.title}, {source.version}",
        f"  {counts}",
        f"  Data: {written.seed}.",
        *(f"Warning: {warning}" for warning in written.warnings),
        f"Next: reward-kit agent-eval --dataset {shlex.quote(str(out))} --agent gold",
    ]
    return "\n".join(lines) + "\n"
