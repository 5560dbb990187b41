"""From the names in a row to what they stand for: a ``ToolRegistry``, and the reward beside it."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.footing import footing, put_back
from reward_kit.agent.bundles.ground import kept_ground
from reward_kit.agent.bundles.task_row import INJECTED
from reward_kit.agent.bundles.user_code import code_fault
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from reward_kit.agent.bundles.imports import BundleImports
    from reward_kit.agent.tool_registry import ToolRegistry

REGISTRY = "R"
TOOLS = "tools"
REWARD = "reward"
EVALUATE = "evaluate"

_MISSING = object()


def load_registry(imports: BundleImports, toolset: str) -> ToolRegistry:
    """The registry that ``module`` or ``module:attribute`` names; raises ``BundleError``.

    Without an attribute it is the module's ``R``, else the only ``ToolRegistry`` in the module.
    """
    name, _, attribute = toolset.partition(":")
    module = _import(imports, name, "toolset")
    from reward_kit.agent.tool_registry import ToolRegistry

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

    None where there is no such module. Raises ``BundleError`` where it is no reward.
    """
    if reward is None:
        package = toolset.partition(":")[0].rpartition(".")[0]
        module_name, function_name = f"{package}.{REWARD}" if package else REWARD, EVALUATE
        if not imports.exists(module_name):
            return None
    else:
        module_name, _, function_name = reward.partition(":")
    module = _import(imports, module_name, "reward")
    function = _attribute(module, function_name)
    place = f"{module_name}:{function_name}"
    if function is _MISSING or function is None:
        raise BundleError(f"module {module_name!r} has no {function_name!r}")
    if not callable(function):
        raise BundleError(f"{place} is {type(function).__name__}, expected a function")
    _check_signature(function, place)
    checked: Callable[..., Any] = function
    return checked


def _attribute(module: ModuleType, name: str) -> Any:
    """What the module has under a name, else ``_MISSING``; a module may have a ``__getattr__`` of its own."""
    try:
        return getattr(module, name, _MISSING)
    except Exception as error:
        raise BundleError(
            f"{name!r} of module {module.__name__!r} cannot be read: {code_fault(error)}"
        ) from error


def _check_signature(reward: Callable[..., Any], place: str) -> None:
    parameters = _parameters(reward)
    remedy = 'Write "def evaluate(messages, *, db, **kwargs)".'
    if parameters is None:
        raise BundleError(f"{place} does not say what it takes: it is no function of Python's", remedy=remedy)
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        raise BundleError(
            f"{place} does not take **kwargs, but a reward is called with all fields of its row",
            remedy=remedy,
        )
    if next(iter(parameters), None) == "self":
        raise BundleError(f"{place} is a method", remedy="Name a function of the module.")
    for name, parameter in parameters.items():
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise BundleError(
                f"{place} takes {name!r} by position only, but is called by keywords", remedy=remedy
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


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some functions written in C have none
        return None


def _import(imports: BundleImports, name: str, kind: str) -> ModuleType:
    before = footing("")
    try:
        with kept_ground():
            try:
                return imports.module(name)
            finally:
                put_back(before)
    except (BundleError, KeyboardInterrupt):
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            fault = f"module {name!r} cannot be imported: {code_fault(error)}"
            raise BundleError(fault, remedy=_own_module(imports.folder, error.name)) from error
        imports.refuse_no_file(error.name)
        raise _not_found(imports, name, error.name, kind) from None
    except BaseException as error:  # the border to the bundle's own code, which may exit or worse
        raise BundleError(f"module {name!r} cannot be imported: {code_fault(error)}") from error


def _own_module(folder: Path, missing: str | None) -> str | None:
    """How to import a module of the bundle that was not found by its own name alone."""
    top = (missing or "").partition(".")[0]
    if not top or not ((folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file()):
        return None
    return f'Modules of a bundle are imported by the name of its folder: "from {folder.name} import {top}".'


def _not_found(imports: BundleImports, name: str, missing: str, kind: str) -> BundleError:
    folder = imports.folder
    stem = TOOLS if kind == "toolset" else REWARD
    parent = missing.rpartition(".")[0]
    looked = f"package {parent!r}" if parent else f"{', '.join(imports.searched())} or the installed packages"
    remedy = None
    if (folder / f"{stem}.py").is_file() or (folder / stem / "__init__.py").is_file():
        importable = re.sub(r"[^\w-]", "_", folder.name)
        if "." in folder.name:
            remedy = f"A folder with a dot in its name, {folder.name!r}, cannot be imported: rename it."
        elif importable != folder.name:
            remedy = f"A folder named {folder.name!r} cannot be imported: rename it, to {importable!r} say."
        elif name != f"{folder.name}.{stem}":
            remedy = f"The bundle's folder is {folder.name!r}: did you mean {folder.name + '.' + stem!r}?"
    elif parent == folder.name:
        remedy = f"Write {folder / missing.rpartition('.')[2]}.py."
    return BundleError(f"there is no module {missing!r} in {looked}", remedy=remedy)
