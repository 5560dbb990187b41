"""The tools and the reward that a row names: a ``ToolRegistry``, and the function beside it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.places import import_fault
from reward_kit.agent.bundles.imports import absolute, place_outside, searched
from reward_kit.agent.bundles.task_row import INJECTED
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from reward_kit.agent.bundles.imports import BundleImports
    from reward_kit.agent.tools.registry import ToolRegistry
    from reward_kit.models import EvaluateResult

REGISTRY = "R"
TOOLS = "tools"
REWARD = "reward"
EVALUATE = "evaluate"

_MISSING = object()


def outside_fault(folder: Path, name: str) -> str | None:
    """The fault of a row whose toolset ``name`` lies outside of its bundle's folder; imports nothing."""
    place = place_outside(folder, name.partition(":")[0])
    if place is None:
        return None
    has_own = (folder / f"{TOOLS}.py").is_file() or (folder / TOOLS).is_dir()
    own = f'write ".{TOOLS}" for the bundle\'s own tools, or ' if has_own else ""
    return (
        f"{name!r} is {place}, outside of the bundle's folder {folder}; "
        f'{own}add "toolset_outside": true to the row to use it'
    )


def load_registry(imports: BundleImports, toolset: str) -> ToolRegistry:
    """The registry that ``module`` or ``module:attribute`` names; raises ``BundleError``.

    Without an attribute it is the module's ``R``, else the only ``ToolRegistry`` in the module.
    """
    name, _, attribute = toolset.partition(":")
    module = _import(imports, name, TOOLS)
    from reward_kit.agent.tools.registry import ToolRegistry

    found = _attribute(module, attribute or REGISTRY)
    if attribute or found is not _MISSING:
        attribute = attribute or REGISTRY
        if isinstance(found, ToolRegistry):
            return found
        got = "does not exist" if found is _MISSING else f"is {type(found).__name__}"
        raise BundleError(f"{attribute!r} in module {name!r} {got}, expected a ToolRegistry")
    names = {id(value): key for key, value in vars(module).items() if isinstance(value, ToolRegistry)}
    if len(names) == 1:
        (only,) = names.values()
        registry: ToolRegistry = getattr(module, only)
        return registry
    if names:
        choices = ", ".join(f'"{name}:{key}"' for key in names.values())
        raise BundleError(f"module {name!r} has several registries", remedy=f"Write which one: {choices}.")
    remedy = f'Write {REGISTRY} = ToolRegistry("…") in it and register the tools with @{REGISTRY}.tool.'
    raise BundleError(f"module {name!r} has no ToolRegistry", remedy=remedy)


def load_reward(imports: BundleImports, toolset: str, reward: str | None) -> Callable[..., Any] | None:
    """The reward ``module:function``; without one, ``evaluate`` in the tools' sibling ``reward``.

    None if there is no such module. Raises ``BundleError`` if it is not a reward.
    """
    if reward is None:
        package = absolute(imports.folder, toolset.partition(":")[0]).rpartition(".")[0]
        module_name, function_name = f"{package}.{REWARD}" if package else REWARD, EVALUATE
        if not imports.exists(module_name):
            return None
    else:
        module_name, _, function_name = reward.partition(":")
    module = _import(imports, module_name, REWARD)
    function = _attribute(module, function_name)
    place = f"{module_name}:{function_name}"
    if function is _MISSING or function is None:
        raise BundleError(f"module {module_name!r} has no {function_name!r}")
    if not callable(function):
        raise BundleError(f"{place} is {type(function).__name__}, expected a function")
    _check_signature(function, place)
    checked: Callable[..., Any] = function
    return checked


def end_goal_reward(messages: Any, *, db: Any, end_goal_sql: str, **kwargs: Any) -> EvaluateResult:  # noqa: ARG001 - the form of every reward
    """The reward of a bundle without ``reward.py``: 1.0 if the first value of ``end_goal_sql`` is true.

    True is a value that is not 0, not empty and not NULL; else the reward is 0.0.
    """
    from reward_kit.models import EvaluateResult, MetricResult

    reached = bool(db.execute(end_goal_sql).scalar())
    score, reason = (1.0, "The end goal is reached") if reached else (0.0, "The end goal is not reached")
    return EvaluateResult(
        score=score, reason=reason, metrics={"end_goal": MetricResult(score=score, reason=reason)}
    )


def required_fields(reward: Callable[..., Any]) -> list[str]:
    """The row fields without which ``reward`` cannot be called."""
    return [
        name
        for name, parameter in (_parameters(reward) or {}).items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in INJECTED
    ]


def _attribute(module: ModuleType, name: str) -> Any:
    """The value of a name in the module, else ``_MISSING``; a module may have its own ``__getattr__``."""
    try:
        return getattr(module, name, _MISSING)
    except Exception as error:  # the border to the bundle's own code
        fault = f"{name!r} of module {module.__name__!r} cannot be read: {import_fault(error)}"
        raise BundleError(fault) from error


def _check_signature(reward: Callable[..., Any], place: str) -> None:
    parameters = _parameters(reward)
    remedy = 'Write "def evaluate(messages, *, db, **kwargs)".'
    if parameters is None:
        raise BundleError(f"{place} has no signature: it is not a Python function", remedy=remedy)
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        raise BundleError(
            f"{place} does not take **kwargs, but a reward is called with all fields of its row",
            remedy=remedy,
        )
    if next(iter(parameters), None) == "self":
        raise BundleError(f"{place} is a method", remedy="Name a function of the module.")
    for name, parameter in parameters.items():
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            fault = f"{place} takes {name!r} by position only, but is called by keywords"
            raise BundleError(fault, remedy=remedy)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some functions written in C have none
        return None


def _import(imports: BundleImports, name: str, kind: str) -> ModuleType:
    full = absolute(imports.folder, name)
    try:
        return imports.module(name)
    except BundleError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{full}.".startswith(f"{error.name}."):
            fault = f"module {full!r} cannot be imported: {import_fault(error)}"
            raise BundleError(fault, remedy=_own_module(imports.folder, error.name)) from error
        imports.check_file(error.name)
        raise _not_found(imports.folder, error.name, kind) from None
    except (Exception, SystemExit) as error:  # the border to the bundle's own code
        raise BundleError(f"module {full!r} cannot be imported: {import_fault(error)}") from error


def _own_module(folder: Path, missing: str | None) -> str | None:
    """The way to import a module of the bundle that was not found by its own name alone."""
    top = (missing or "").partition(".")[0]
    if not top or not ((folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file()):
        return None
    return f'Modules of a bundle are imported by the name of its folder: "from {folder.name} import {top}".'


def _not_found(folder: Path, missing: str, kind: str) -> BundleError:
    parent = missing.rpartition(".")[0]
    looked = f"package {parent!r}" if parent else f"{', '.join(searched(folder))} or the installed packages"
    remedy = None
    if (folder / f"{kind}.py").is_file() or (folder / kind / "__init__.py").is_file():
        remedy = f'The bundle\'s folder is {folder.name!r}: did you mean ".{kind}"?'
    elif parent == folder.name:
        remedy = f"Write {folder / missing.rpartition('.')[2]}.py."
    return BundleError(f"there is no module {missing!r} in {looked}", remedy=remedy)
