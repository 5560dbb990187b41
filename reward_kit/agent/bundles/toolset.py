"""The tools and the reward that a row names: a ``ToolRegistry``, and the function beside it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, NamedTuple

from reward_kit.agent.base.places import import_fault
from reward_kit.agent.base.text import did_you_mean
from reward_kit.agent.bundles.files import own_file
from reward_kit.agent.bundles.imports import absolute, place_of, searched
from reward_kit.agent.bundles.task import DEFAULT_REWARD, no_tools
from reward_kit.agent.rows.task_row import INJECTED
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

    from reward_kit.agent.bundles.imports import BundleImports
    from reward_kit.agent.bundles.task import Reward
    from reward_kit.agent.tools.registry import ToolRegistry

REGISTRY = "R"
TOOLS = "tools"
USER_TOOLS = "user_tools"
REWARD = "reward"
EVALUATE = "evaluate"


def load_registry(imports: BundleImports, toolset: str, *, outside: bool = True) -> ToolRegistry:
    """The registry that ``module`` or ``module:attribute`` names; raises ``BundleError``.

    Without an attribute it is the module's ``R``, else the only ``ToolRegistry`` in the module. Unless
    ``outside`` is true, the module has to lie in the bundle's folder, or in a package that holds the folder.
    """
    name, _, attribute = toolset.partition(":")
    module = _import(imports, name, TOOLS)
    place = place_of(module)
    above = place.parent.parent if place.name == "__init__.py" else place.parent
    if not outside and not (place.is_relative_to(imports.folder) or imports.folder.is_relative_to(above)):
        own = f'write ".{TOOLS}" for the bundle\'s own tools, or ' if _has(imports.folder, TOOLS) else ""
        raise BundleError(
            f"{name!r} is {place}, outside of the bundle's folder {imports.folder}; "
            f'{own}add "toolset_outside": true to the row to use it'
        )
    from reward_kit.agent.tools.registry import ToolRegistry

    if attribute or hasattr(module, REGISTRY):
        found = getattr(module, attribute or REGISTRY, None)
        if isinstance(found, ToolRegistry):
            return found
        got = "does not exist" if found is None else f"is {type(found).__name__}"
        raise BundleError(f"{attribute or REGISTRY!r} in module {name!r} {got}, expected a ToolRegistry")
    registries = {
        value: f'"{name}:{key}"' for key, value in vars(module).items() if isinstance(value, ToolRegistry)
    }
    if len(registries) == 1:
        return next(iter(registries))
    if registries:
        remedy = f"Write which one: {', '.join(registries.values())}."
        raise BundleError(f"module {name!r} has several registries", remedy=remedy)
    remedy = f'Write {REGISTRY} = ToolRegistry("…") in it and register the tools with @{REGISTRY}.tool.'
    raise BundleError(f"module {name!r} has no ToolRegistry", remedy=remedy)


def load_user_registry(imports: BundleImports, toolset: str | None, *, outside: bool = True) -> ToolRegistry:
    """The user's tools: those of ``toolset``, by default ``user_tools.py``; none without the file."""
    if toolset is None and (own_file(imports.folder, f"{USER_TOOLS}.py") or _has(imports.folder, USER_TOOLS)):
        toolset = f".{USER_TOOLS}"
    return no_tools() if toolset is None else load_registry(imports, toolset, outside=outside)


def allowed_tools(registry: ToolRegistry, names: Sequence[str] | None) -> ToolRegistry:
    """The user's tools of these names, all for None; raises ``BundleError`` for a name that is none."""
    for name in names or ():
        if name not in registry.tools:
            raise BundleError(f"the user has no tool {name!r}{did_you_mean(name, list(registry.tools))}")
    return registry if names is None else registry.only(names)


JUDGED_BY = ("end_goal_sql", "actions", "checks", "required_calls", "forbidden_calls", "criteria")
"""Row fields of which the default reward needs one."""


class FoundReward(NamedTuple):
    """A reward, the row fields that it needs, and ``why`` it needs them; one of ``instead`` will do."""

    function: Reward
    required: frozenset[str]
    why: str = "but the reward needs it"
    instead: frozenset[str] = frozenset()


def load_reward(imports: BundleImports, toolset: str, reward: str | None) -> FoundReward:
    """The reward ``module:function``; without one, ``evaluate`` in the tools' sibling ``reward``.

    If there is no such module, it is ``DEFAULT_REWARD``. Raises ``BundleError`` if it is not a reward.
    """
    if reward is None:
        package = absolute(imports.folder, toolset.partition(":")[0]).rpartition(".")[0]
        module_name, function_name = f"{package}.{REWARD}" if package else REWARD, EVALUATE
        if not imports.exists(module_name):
            own_file(imports.folder, f"{REWARD}.py")  # a broken link is not taken for a missing reward
            missing = f"{(package or imports.folder.name).replace('.', '/')}/{REWARD}.py"
            why = f"and there is no {missing}: no reward is defined ({', '.join(JUDGED_BY[1:])} would do too)"
            found = load_reward(imports, toolset, DEFAULT_REWARD)
            return found._replace(required=frozenset(JUDGED_BY[:1]), why=why, instead=frozenset(JUDGED_BY))
    else:
        module_name, _, function_name = reward.partition(":")
    function = getattr(_import(imports, module_name, REWARD), function_name, None)
    place, remedy = f"{module_name}:{function_name}", 'Write "def evaluate(messages, *, db, **kwargs)".'
    if function is None:
        raise BundleError(f"module {module_name!r} has no {function_name!r}")
    if not callable(function):
        raise BundleError(f"{place} is {type(function).__name__}, expected a function")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # written in C
        raise BundleError(f"{place} has no signature: it is not a Python function", remedy=remedy) from None
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        fault = f"{place} does not take **kwargs, but a reward is called with all fields of its row"
        raise BundleError(fault, remedy=remedy)
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    return FoundReward(function, frozenset(one.name for one in named if one.default is one.empty) - INJECTED)


def _import(imports: BundleImports, name: str, kind: str) -> ModuleType:
    folder, full = imports.folder, absolute(imports.folder, name)
    try:
        return imports.module(name)
    except BundleError:
        raise
    except (Exception, SystemExit) as error:  # the border to the bundle's own code
        missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        remedy = None
        if missing and f"{full}.".startswith(f"{missing}."):
            parent = missing.rpartition(".")[0]
            places = (
                f"package {parent!r}" if parent else f"{', '.join(searched(folder))} or what is installed"
            )
            if _has(folder, kind):
                remedy = f'The bundle\'s folder is {folder.name!r}: did you mean ".{kind}"?'
            raise BundleError(f"there is no module {missing!r} in {places}", remedy=remedy) from None
        if missing and _has(folder, top := missing.partition(".")[0]):
            imported = f'"from {folder.name} import {top}"'
            remedy = f"Modules of a bundle are imported by the name of its folder: {imported}."
        fault = f"module {full!r} cannot be imported: {import_fault(error)}"
        raise BundleError(fault, remedy=remedy) from error


def _has(folder: Path, module: str) -> bool:
    return (folder / f"{module}.py").is_file() or (folder / module / "__init__.py").is_file()
