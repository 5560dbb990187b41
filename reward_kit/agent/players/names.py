"""Agents and users by name: built in, ``module:factory``, recorded, behind HTTP, or given from Python."""

from __future__ import annotations

import importlib
import inspect
import re
import reprlib
import sys
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import did_you_mean
from reward_kit.agent.bundles.imports import no_bytecode_kept
from reward_kit.agent.players.wrappers import (
    CANNOT_RESPOND,
    FunctionPlayer,
    OwnFactory,
    can_respond,
    foreign_code,
    is_async,
)
from reward_kit.errors import BundleError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from reward_kit.agent.players.agents import Agent
    from reward_kit.agent.players.users import User
    from reward_kit.agent.rows.task_row import TaskRow

AGENTS = {
    "tool-calling": "reward_kit.agent.players.agents.tool_calling:ToolCallingAgent",
    "act": "reward_kit.agent.players.agents.text_agent:ActAgent",
    "react": "reward_kit.agent.players.agents.text_agent:ReactAgent",
    "few-shot": "reward_kit.agent.players.agents.tool_calling:FewShotAgent",
    "gold": "reward_kit.agent.players.agents.replay:GoldAgent",
    "human": "reward_kit.agent.players.agents.human:HumanAgent",
    "fastworkflow": "reward_kit.agent.players.agents.fastworkflow.agent:FastWorkflowAgent",
}
USERS = {
    "llm": "reward_kit.agent.players.users.llm:LLMUser",
    "react": "reward_kit.agent.players.users.llm:ReactUser",
    "verify": "reward_kit.agent.players.users.llm:VerifyUser",
    "reflection": "reward_kit.agent.players.users.llm:ReflectionUser",
    "human": "reward_kit.agent.players.agents.human:HumanUser",
    "none": "reward_kit.agent.players.names:no_user",
}
HTTP_AGENTS = "reward_kit.agent.players.agents.http_agent:HttpAgents"
NO_USER = "none"
WITHOUT_MODEL = frozenset({"fastworkflow", "gold", "human", NO_USER})
"""Agents and users that never ask a model of ours; a recording (``replay:``) and an address do not either."""
FROM_PROMPT = frozenset({"llm", "react", "verify", "reflection"})
"""Users that play the row's ``sim_user_prompt``: rows without one have no user then."""

_OWN = re.compile(r"(?!replay:)[\w.]+:[\w.()]+")


def is_own(spec: str) -> bool:
    """Return True for a custom player: ``module:factory``, or a name that ``name_of`` made of an object."""
    return _OWN.fullmatch(spec) is not None


def is_address(spec: str) -> bool:
    """Return True for an agent behind HTTP."""
    return spec.lower().startswith(("http://", "https://"))


def uses_model(spec: str) -> bool:
    """Return False for agents and users that never ask a model."""
    return spec not in WITHOUT_MODEL and not spec.lower().startswith("replay:") and not is_address(spec)


def user_of(row: TaskRow, agent: str, asked: str | None = None) -> str:
    """Return the user of a row; ``asked`` is the one named with ``--user``.

    By default a replay's is the recorded one and gold has none; any other agent gets ``llm`` if the row has a
    prompt for it.
    """
    if asked is None:
        asked = agent if agent.startswith("replay:") else NO_USER if agent == "gold" else "llm"
    return NO_USER if asked in FROM_PROMPT and not row.sim_user_prompt else asked


def name_of(given: Any) -> str:
    """Return the name in results of an agent or user given from Python; a name is itself.

    An object is called like its class with ``()`` after it, a ``partial`` like the function that it holds: no
    import finds those, so a resumed evaluation does not take another for it.
    """
    if isinstance(given, str):
        return given
    named, call = named_object(given)
    module = str(getattr(named, "__module__", None) or "__main__")
    for name, spec in (*AGENTS.items(), *USERS.items()):
        if spec == f"{module}:{call.removesuffix('()')}":
            return name
    if module == "replay":  # it would be taken for a recording
        raise UsageError(
            f"{call} is of a module named replay, which stands for recordings", remedy="Rename the module."
        )
    return re.sub(r"[^\w.]", "_", module) + ":" + re.sub(r"[^\w.()]", "_", call)


def named_object(given: Any) -> tuple[Any, str]:
    """Return the class or function that names ``given``, and ``Agent``, ``Agent()`` or ``Agent().play``."""
    if inspect.ismethod(given) and not inspect.isclass(given.__self__):
        named, call = named_object(given.__self__)
        return named, f"{call}.{given.__name__}"
    if inspect.isclass(given) or inspect.isroutine(given):
        return given, given.__qualname__.replace("<locals>.", "").replace("<lambda>", "lambda")
    named, call = named_object(given.func if isinstance(given, partial) else type(given))
    return named, f"{call}()"


# -- loading

SHOWN = 8
"""Names of a module that a message lists."""


def load_agent(spec: str | Agent | Callable[..., Any]) -> Callable[[], Agent]:
    """Return a maker of agents for ``spec``.

    ``spec`` is a built-in name, ``module:factory``, ``replay:PATH`` or an address; or the class, the factory,
    the function of a rollout or the agent itself, which then plays all rollouts. Raises ``BundleError`` for
    an unknown name, a module that does not import, a faulty recording, or an object that is no agent.
    """
    return _factory(spec, "agent")


def load_user(spec: str | User | Callable[..., Any]) -> Callable[[], User | None]:
    """Return a maker of users for ``spec``: as ``load_agent``; ``none`` makes None."""
    return _factory(spec, "user")


def no_user() -> None:
    """Make no user: the rollout ends with the agent's first reply."""


def _factory(spec: Any, kind: str) -> Callable[[], Any]:
    if not isinstance(spec, str):
        return _of_object(spec, kind)
    make: Callable[[], Any]
    built_in = AGENTS if kind == "agent" else USERS
    if spec in built_in:
        make = _attribute(built_in[spec])
        return make
    if kind == "agent" and is_address(spec):
        make = _attribute(HTTP_AGENTS)(spec)
        return make
    place = f"--{kind} {spec}"
    module, _, attribute = spec.partition(":")
    if module == "replay":
        from reward_kit.agent.players.agents.replay import ReplayAgent, ReplayUser
        from reward_kit.agent.store.loading import Recordings

        return partial(ReplayAgent if kind == "agent" else ReplayUser, Recordings.load(Path(attribute)))
    if not module or not attribute:
        names = ", ".join([*built_in, "replay:PATH"])
        remedy = f"Built in are {names}; your own is module:factory."
        fault = f"there is no {kind} {spec!r}{did_you_mean(spec, built_in)}"
        raise BundleError(fault, place=f"--{kind}", remedy=remedy)
    if module.endswith(".py"):
        name = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise BundleError(f"{module} is a file", place=place, remedy=f"Name the module: {name}:{attribute}.")
    with foreign_code(f"{module} cannot be imported:", place), _imported_anew(), no_bytecode_kept():
        importlib.import_module(module)
    try:
        found = _attribute(spec)
    except AttributeError:
        members = vars(sys.modules[module]).items()
        known = [name for name, one in members if getattr(one, "__module__", None) == module]
        has = f"; it has {', '.join(known[:SHOWN])}" if known else ""
        raise BundleError(f"{module} has no {attribute}{has}", place=place) from None
    return _maker(found, spec, kind, place=f"--{kind}")


def _attribute(spec: str) -> Any:
    """Return the attribute in ``module:attribute``, which may have dots."""
    module, _, attribute = spec.partition(":")
    return attrgetter(attribute)(importlib.import_module(module))


def _of_object(given: Any, kind: str) -> Callable[[], Any]:
    is_plain = not callable(given) and type(given).__module__ == "builtins"
    shown = reprlib.repr(given) if is_plain else named_object(given)[1]
    place = f"{kind}={shown}"
    if not inspect.isclass(given) and hasattr(given, "complete") and not hasattr(given, "respond"):
        raise BundleError("this is a model", place=place, remedy=f'Give it as models={{"{kind}": {shown}}}.')
    return _maker(given, shown, kind, place)


def _maker(found: Any, spec: str, kind: str, place: str) -> Callable[[], Any]:
    """Return the maker for a factory, an object, or a function that answers turns itself."""
    if not inspect.isclass(found) and hasattr(found, "respond"):
        if can_respond(found):
            return OwnFactory(found, spec, place)
        fault = f"{spec} is {type(found).__name__}, {CANNOT_RESPOND}"
    elif inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        remedy = f"A function answers one turn of the {kind} with return; it is called for each."
        raise BundleError(f"{spec} is a generator", place=place, remedy=remedy)
    elif _takes_a_rollout(found):
        return partial(FunctionPlayer, found)
    elif not callable(found):
        fault = f"{spec} is {type(found).__name__}, not a class or function that makes the {kind}"
    elif inspect.isclass(found) or not is_async(found):
        return OwnFactory(found, spec, place)
    else:
        fault = f"{spec} is `async def`, but not a function of one argument, the rollout"
    raise BundleError(fault, place=place)


def _takes_a_rollout(found: Any) -> bool:
    """Return True for a callable of one argument; a factory is a class or takes none."""
    if not callable(found) or inspect.isclass(found.func if isinstance(found, partial) else found):
        return False
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # not written in Python
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in positional and one.default is one.empty for one in parameters) == 1


_own_modules: dict[str, tuple[Path, int]] = {}
"""The modules below the working directory that loading players imported, with file and time of change."""


@contextmanager
def _imported_anew() -> Iterator[None]:
    """Import from the working directory too; its modules anew if one was edited (in a notebook)."""
    here = Path.cwd()
    if any(_changed(file) != at or here not in file.parents for file, at in _own_modules.values()):
        for name in _own_modules:
            sys.modules.pop(name, None)
        _own_modules.clear()
        importlib.invalidate_caches()
    before = set(sys.modules)
    sys.path.insert(0, str(here))
    try:
        yield
    finally:
        sys.path.remove(str(here))
        for name in sys.modules.keys() - before:
            file = Path(getattr(sys.modules[name], "__file__", None) or "/")
            is_ours = name.partition(".")[0] == __name__.partition(".")[0]
            if here in file.parents and not is_ours and "site-packages" not in file.parts:
                _own_modules[name] = file, _changed(file)


def _changed(file: Path) -> int:
    return file.stat().st_mtime_ns if file.is_file() else 0
