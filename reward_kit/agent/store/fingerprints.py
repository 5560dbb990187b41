"""Fingerprints of the code that results depend on: a bundle's modules, and those that they import."""

from __future__ import annotations

import ast
import hashlib
import sys
import warnings
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.rows.task_row import TaskRow

BESIDE = "../"
"""Start of the names of modules that lie outside the bundle's folder."""
INSTALLED = frozenset({"site-packages", "dist-packages"})
_NOT_FOLLOWED = sys.stdlib_module_names | {__name__.partition(".")[0]}
MOST_FOLLOWED = 200
"""Modules outside the bundle's folder of which more are not looked for."""


@dataclass(frozen=True, slots=True)
class Toolset:
    """A tool registry as an evaluation stores it: its schemas in the OpenAI format."""

    schemas: list[dict[str, Any]]
    parallel_tool_calls: bool


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """The code of a bundle, its agent and its user, as an evaluation stores it.

    ``rows`` maps the ids of the rows to play, in order, to their numbers of rollouts; ``toolsets`` are by
    ``toolset_of``. ``default_reward`` holds the ids of rows judged by the default reward, ``modules`` the
    fingerprints of the modules that results depend on, ``reward_files`` the rewards among these.
    """

    rows: dict[str, int]
    toolsets: dict[str, Toolset]
    default_reward: list[str]
    modules: dict[str, str]
    reward_files: list[str]


def code_facts(tasks: Sequence[Task], folder: Path, config: EvaluationConfig) -> CodeFacts:
    """The facts of the code with which ``tasks`` of the bundle in ``folder`` are played."""
    sets = {toolset_of(task.row): task.registry for task in tasks}
    return CodeFacts(
        rows={task.row.id: config.n_rollouts or task.row.n_rollouts for task in tasks},
        toolsets={
            name: Toolset(one.get_openai_tools(), one.parallel_tool_calls) for name, one in sets.items()
        },
        default_reward=[task.row.id for task in tasks if task.has_default_reward],
        modules=code_of(folder, config),
        reward_files=sorted(reward_files(tasks)),
    )


def toolset_of(row: TaskRow) -> str:
    """A name of the tools of a row's agent; in solo mode the user's are among them."""
    return str((row.toolset, row.user_toolset, row.user_tools))


def code_of(folder: Path, config: EvaluationConfig) -> dict[str, str]:
    """A fingerprint for each module of the bundle in ``folder``, by its path: ``my_task/reward.py``.

    Its rules, those that were imported from there, that of an agent or user of one's own, the file of
    few-shot displays and the results file of tau-bench (by their names alone), and what all these import, at
    their beginning or when a function is called (``../shared.py`` if it lies elsewhere), but no installed
    packages.
    """
    given = map(Path, filter(None, [config.few_shot_displays, config.results_file]))
    files = [one for path in given for one in (sorted(path.rglob("*.json")) if path.is_dir() else [path])]
    found = {path.name: _fingerprint(path) for path in files if path.is_file()}
    rules = folder / RULES
    if rules.is_file():
        found[f"{folder.name}/{RULES}"] = _fingerprint(rules)
    waiting = dict(_imported(folder))
    for spec in (config.agent, config.user):
        name = spec.partition(":")[0] if spec is not None and ":" in spec else ""
        path = Path(getattr(sys.modules.get(name), "__file__", None) or "")
        if path.suffix == ".py" and path.is_file():
            found[path.name] = _fingerprint(path)
            waiting.setdefault(name, path)
    seen = set(waiting)
    outside = 0
    while waiting:
        name, path = waiting.popitem()
        if folder in path.parents:
            label = f"{folder.name}/{path.relative_to(folder).as_posix()}"
        else:
            *packages, _ = name.split(".") if path.stem != "__init__" else (*name.split("."), "")
            label = BESIDE + "/".join([*packages, path.name])
            outside += 1
        if label.removeprefix(BESIDE) not in found:
            found[label] = _fingerprint(path)
        if outside > MOST_FOLLOWED:
            continue
        for other in _names_in(path, name, path.stat().st_mtime_ns):
            file = None if other in seen else _file_of(other, folder.parent)
            seen.add(other)
            if file is not None:
                waiting[other] = file
    return found


def reward_files(tasks: Iterable[Task]) -> set[str]:
    """The modules of rewards, by the names that ``code_of`` gives them."""
    return _files_of((task.reward, task.folder) for task in tasks)


def tool_files(tasks: Iterable[Task]) -> set[str]:
    """The modules of tools of agent and user, as ``reward_files``."""
    both = ((one, task.folder) for task in tasks for one in (task.registry, task.user_registry))
    return _files_of((tool.function, folder) for one, folder in {*both} for tool in one.tools.values())


def _files_of(functions: Iterable[tuple[Any, Path]]) -> set[str]:
    found = set()
    for module, folder in {(str(getattr(one, "__module__", None)), folder) for one, folder in functions}:
        file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
        if folder in file.parents:
            found.add(f"{folder.name}/{file.relative_to(folder).as_posix()}")
    return found


def _fingerprint(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _imported(folder: Path) -> Iterator[tuple[str, Path]]:
    """The modules that were imported from the bundle's folder."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or folder.name not in file:
            continue  # most modules: their names are enough
        path = Path(file)
        if folder in path.parents and INSTALLED.isdisjoint(path.relative_to(folder).parts) and path.is_file():
            yield name, path


@lru_cache(maxsize=1024)
def _names_in(file: Path, name: str, _changed: int) -> list[str]:
    """The modules that the module ``name`` may import; the time stands for the content."""
    return list(_imports_of(file, name)) if file.suffix == ".py" else []


def _imports_of(file: Path, name: str) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python shows them when it imports the module
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # a helper that no rollout can import either
    for node in ast.walk(tree):
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = node.module or ""
            if node.level:
                parts = name.split(".")
                package = parts[: len(parts) - node.level + (file.stem == "__init__")]
                start = ".".join([*package, start] if start else package)
            named = [start]
            yield from (f"{start}.{alias.name}" for alias in node.names)
        for one in named:  # with the packages around it
            yield from accumulate(one.split("."), "{}.{}".format)


def _file_of(name: str, root: Path) -> Path | None:
    """The file of a module of one's own, perhaps not imported yet; ``root`` is above the bundle."""
    top, *rest = name.split(".")
    if top in _NOT_FOLLOWED or not top:
        return None
    package = sys.modules.get(top)
    if package is None:
        candidates = [path for folder in (root, Path.cwd()) for path in _files(folder.joinpath(top, *rest))]
    elif rest:
        folders = [path for path in getattr(package, "__path__", ()) if isinstance(path, str)]
        candidates = [path for folder in folders for path in _files(Path(folder).joinpath(*rest))]
    else:
        candidates = [Path(getattr(package, "__file__", None) or "")]
    own = (path for path in candidates if INSTALLED.isdisjoint(path.parts) and path.is_file())
    return next(own, None)


def _files(module: Path) -> tuple[Path, Path]:
    """The files that a module may be, in the order of imports: a folder hides a file of the same name."""
    return module / "__init__.py", module.with_name(f"{module.name}.py")
