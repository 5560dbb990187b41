"""The structure of the package, from its source: figures, and the picture in docs/architecture.md.

    python docs/house.py          print the figures
    python docs/house.py --draw   write docs/images/rooms.svg

A room is a package or module directly under ``reward_kit`` or ``reward_kit.agent``. Imports inside functions
count; those for type checkers only do not.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "reward_kit"
PICTURE = ROOT / "docs" / "images" / "rooms.svg"
WRITTEN = ("reward_kit", "tau_retail_task", "examples", "benchmarks")
"""Folders whose docstrings are checked."""
SMALL = 80
"""Lines below which a file is small."""
HEADLESS = re.compile(r"(What|Whether|How|Where|Who|Which|When)\b")

Graph = dict[str, set[str]]


@cache
def modules() -> dict[str, Path]:
    """Files of the package by module name; the starter's files, which are copied, do not count."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if not (path.parent / "__init__.py").exists():
            continue
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All of a file's syntax."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imports_of(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of the package that a file imports anywhere, type checkers' imports aside."""
    typing = {
        id(node)
        for block in nodes_of(path)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for statement in block.body
        for node in ast.walk(statement)
    }
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in nodes_of(path):
        if id(node) in typing or not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        else:
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, *filter(None, [node.module])])
            named = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for target in named:
            while target and target not in known:
                target = target.rpartition(".")[0]
            if target not in ("", "reward_kit", name):
                found.add(target)
    return found


@cache
def file_graph() -> Graph:
    """Imports between the files of the package, by module name."""
    known = modules()
    return {name: imports_of(name, path, known) for name, path in known.items()}


def room_of(module: str) -> str:
    """The room of a module."""
    parts = module.split(".")
    return ".".join(parts[:3] if parts[1:2] == ["agent"] else parts[:2])


def room_graph(files: Graph) -> Graph:
    """Imports between rooms; the faces of the two packages, which import lazily, are left out."""
    rooms: Graph = {}
    for module, imported in files.items():
        room = rooms.setdefault(room_of(module), set())
        room |= {room_of(target) for target in imported} - {room_of(module)}
    return rooms


def levels(graph: Graph) -> dict[str, int]:
    """The length of the longest chain of imports below each node, itself included. Raises ``CycleError``."""
    depth: dict[str, int] = {}
    for node in TopologicalSorter(graph).static_order():
        depth[node] = 1 + max((depth[target] for target in graph.get(node, ())), default=0)
    return depth


def figures() -> dict[str, int]:
    """The figures that ``tests/test_house.py`` bounds."""
    known = modules()
    texts = {name: path.read_text(encoding="utf-8") for name, path in known.items()}
    files = file_graph()
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    is_face = {name: path.name == "__init__.py" for name, path in known.items()}
    return {
        "lines": sum(lines.values()),
        "files": len(known),
        "lines of the longest file": max(lines.values()),
        "files under 80 lines": sum(lines[name] < SMALL and not is_face[name] for name in known),
        "modules at the top of agent/": sum(
            name.startswith("reward_kit.agent.") and name.count(".") == 2 and not is_face[name]
            for name in known
        ),
        "longest import chain of files": max(_levels_or_fail(files).values()),
        "room levels": max(_levels_or_fail(room_graph(files)).values()),
        "handlers of all exceptions": sum(map(_catch_alls, known.values())),
        "accesses to private names": sum(text.count("noqa: SLF001") for text in texts.values()),
        "headless docstrings": sum(
            _headless(path) for folder in WRITTEN for path in (ROOT / folder).rglob("*.py")
        ),
    }


def _levels_or_fail(graph: Graph) -> dict[str, int]:
    try:
        return levels(graph)
    except CycleError as error:
        raise SystemExit(f"import cycle: {' -> '.join(error.args[1])}") from None


def _catch_alls(path: Path) -> int:
    handlers = (node for node in nodes_of(path) if isinstance(node, ast.ExceptHandler))
    return sum(
        handler.type is None or re.search(r"'(Base)?Exception'", ast.dump(handler.type)) is not None
        for handler in handlers
    )


def _headless(path: Path) -> int:
    """Count docstrings, those of constants too, that begin with a relative word."""
    texts = (node.value for node in nodes_of(path) if isinstance(node, ast.Expr))
    docs = (text.value for text in texts if isinstance(text, ast.Constant))
    return sum(HEADLESS.match(doc.strip()) is not None for doc in docs if isinstance(doc, str))


WIDTH, BOX, HEIGHT, GAP, STEP = 1180, 150, 34, 14, 78


def draw() -> str:
    """Draw the rooms by level as an SVG; lines lead down to imported rooms, unless another path does."""
    graph = {room: out - _HIDDEN for room, out in room_graph(file_graph()).items() if room not in _HIDDEN}
    depth = levels(graph)
    rows: dict[int, list[str]] = {}
    for room in sorted(graph):
        rows.setdefault(depth[room], []).append(room)
    top = max(rows)
    place = {}
    for level, row in rows.items():
        left = (WIDTH - len(row) * (BOX + GAP) + GAP) / 2
        for column, room in enumerate(row):
            place[room] = (left + column * (BOX + GAP), 16 + (top - level) * STEP)
    lines = [
        f'<line x1="{place[room][0] + BOX / 2:.0f}" y1="{place[room][1] + HEIGHT}" '
        f'x2="{place[target][0] + BOX / 2:.0f}" y2="{place[target][1]}"/>'
        for room in sorted(graph)
        for target in sorted(graph[room])
        if not any(target in _below(other, graph) for other in graph[room] - {target})
    ]
    boxes = [
        f'<rect x="{x:.0f}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{x + BOX / 2:.0f}" y="{y + 22}">{escape(_label(room))}</text>'
        for room, (x, y) in sorted(place.items())
    ]
    style = (
        "line{stroke:#8899aa;stroke-width:1;opacity:.45}rect{fill:#eef3f8;stroke:#456}"
        "text{font:13px sans-serif;text-anchor:middle;fill:#123}"
    )
    size = f'viewBox="0 0 {WIDTH} {top * STEP}"'
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>', *lines, *boxes, "</svg>\n"]
    )


_HIDDEN = {
    "reward_kit",
    "reward_kit.agent",
    "reward_kit.__main__",
    "reward_kit.errors",
    "reward_kit.lazy_names",
}
"""Faces of packages, and modules that nearly everything imports."""


def _label(room: str) -> str:
    name = room.rpartition(".")[2]
    return name if room.startswith("reward_kit.agent.") or name.startswith("cli") else f"{name} (core)"


def _below(room: str, graph: Graph) -> set[str]:
    """All rooms that ``room`` imports, directly or not."""
    found: set[str] = set()
    waiting = [room]
    while waiting:
        new = graph.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


if __name__ == "__main__":
    if "--draw" in sys.argv[1:]:
        PICTURE.write_text(draw(), encoding="utf-8")
    else:
        for name, value in figures().items():
            sys.stdout.write(f"{value:>7} {name}\n")
