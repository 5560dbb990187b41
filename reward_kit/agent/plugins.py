"""Finding an agent or a user by name (a built-in one, ``module:factory``, or a recording), or taking one that
is given from Python.
"""

from __future__ import annotations

import importlib
import inspect
import re
import reprlib
import sys
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from reward_kit.agent.bundles.imports import no_bytecode_kept
from reward_kit.agent.faults import fault_line
from reward_kit.agent.function_player import FunctionPlayer, takes_a_rollout
from reward_kit.errors import BundleError, RewardKitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.rollout import Rollout


_T = TypeVar("_T")
_OWN = re.compile(r"(?!replay:)[\w.]+:[\w.()]+")


def is_own(spec: str) -> bool:
    """Whether this agent or user is a person's own: ``module:factory``, or what ``name_of`` makes of one."""
    return _OWN.fullmatch(spec) is not None


def name_of(given: Any) -> str:
    """What an agent or user given from Python is called: ``module:qualname``; a name is itself.

    An object has the name of its class with ``()`` behind it, a ``partial`` that of what it holds: no import
    finds those, so that a resumed evaluation does not take another for it.
    """
    if isinstance(given, str):
        return given
    named, call = _named(given)
    module = str(getattr(named, "__module__", None) or "__main__")
    if module == "replay":  # it would be taken for a recording
        raise UsageError(
            f"{call} is of a module named replay, which stands for recordings", remedy="Rename the module."
        )
    return re.sub(r"[^\w.]", "_", module) + ":" + re.sub(r"[^\w.()]", "_", call)


def _named(given: Any) -> tuple[Any, str]:
    """The class or function that names ``given``, and the name: ``Agent``, ``Agent()``, ``Agent().play``."""
    if isinstance(given, partial):
        named, call = _named(given.func)
        return named, f"{call}()"
    if inspect.ismethod(given) and not inspect.isclass(given.__self__):
        named, call = _named(given.__self__)
        return named, f"{call}.{given.__name__}"
    if inspect.isclass(given) or inspect.isroutine(given):
        return given, given.__qualname__.replace("<locals>.", "").replace("<lambda>", "lambda")
    named, call = _named(type(given))
    return named, f"{call}()"


def load_factory(spec: str, *, kind: str, built_in: Mapping[str, str], replay: str) -> Callable[[], Any]:
    """What makes the agent or user (``kind``) named by ``spec``; ``BundleError`` where there is none."""
    if spec in built_in:
        found: Callable[[], Any] = _imported(built_in[spec], kind)
        return found
    if spec.startswith("replay:"):
        from reward_kit.agent.runs.recording import Recordings

        recordings = Recordings.load(Path(spec.removeprefix("replay:")))
        player = _imported(replay, kind)
        return lambda: player(recordings)
    module, _, attribute = spec.partition(":")
    if not module or not attribute:
        names = ", ".join([*built_in, "replay:PATH"])
        raise BundleError(
            f"there is no {kind} {spec!r}",
            place=f"--{kind}",
            remedy=f"Built in are {names}; your own is module:factory.",
        )
    if module.endswith(".py"):
        name = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise BundleError(
            f"{module} is a file", place=f"--{kind} {spec}", remedy=f"Name the module: {name}:{attribute}."
        )
    _forget_if_changed(module)
    before = set(sys.modules)
    found = _imported(spec, kind)
    own = [name for name in sys.modules.keys() - before if _own_file(name) is not None]
    _brought.setdefault(module, {}).update({name: _state(_own_file(name)) for name in own})
    return _checked(found, spec, kind, place=f"--{kind}")


def own_factory(given: Any, kind: str) -> Callable[[], Any]:
    """What makes the agent or user (``kind``) that is ``given``; ``BundleError`` where it is none."""
    is_plain = not callable(given) and type(given).__module__ == "builtins"
    shown = reprlib.repr(given) if is_plain else _named(given)[1]
    place = f"{kind}={shown}"
    if not inspect.isclass(given) and hasattr(given, "complete") and not hasattr(given, "respond"):
        raise BundleError("this is a model", place=place, remedy=f'Give it as models={{"{kind}": {shown}}}.')
    return _checked(given, shown, kind, place)


def _imported(spec: str, kind: str) -> Any:
    """The object that ``module:attribute`` names; the working directory is importable meanwhile."""
    module_name, _, attribute = spec.partition(":")
    place = f"--{kind} {spec}"
    try:
        with _working_directory_importable(), no_bytecode_kept():
            found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise BundleError(f"{module_name} cannot be imported: {fault_line(error)}", place=place) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BundleError(f"{module_name} has no {attribute}", place=place)
        found = getattr(found, part)
    return found


_brought: dict[str, dict[str, tuple[int, int] | None]] = {}
"""The modules that importing an agent's or a user's brought along, with the state of their files then."""


def _forget_if_changed(module: str) -> None:
    """Have ``module`` and what came with it imported anew, if one of the files was edited since."""
    brought = _brought.get(module, {})
    present = {name: state for name, state in brought.items() if name in sys.modules}
    if all(_state(_own_file(name)) == state for name, state in present.items()):
        return
    for name in present:
        del sys.modules[name]
    del _brought[module]
    importlib.invalidate_caches()


def _own_file(name: str) -> Path | None:
    """The file of a module below the working directory; None for installed ones, and for this package's."""
    file = getattr(sys.modules[name], "__file__", None)
    if file is None or name.partition(".")[0] == __name__.partition(".")[0]:
        return None
    path = Path(file)
    return path if path.is_relative_to(Path.cwd()) and "site-packages" not in path.parts else None


def _state(file: Path | None) -> tuple[int, int] | None:
    """What changes when the file is edited; None where it is gone."""
    try:
        found = None if file is None else file.stat()
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size)


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    directory = str(Path.cwd())
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path.remove(directory)


def prepared(
    factory: Callable[[], Any], config: EvaluationConfig, tasks: Sequence[Task]
) -> Callable[[], Any]:
    """The factory for this evaluation: what its ``configured(config, tasks)`` gives, where it has one."""
    configured = getattr(factory, "configured", None)
    if configured is None:
        return factory
    ready: Callable[[], Any] = configured(config, tasks)
    return ready


class _ForeignFactory:
    """A factory whose products can respond; whatever it raises is told with its name."""

    def __init__(self, found: Any, spec: str, place: str) -> None:
        self._found = found
        self._spec = spec
        self._place = place
        self._trial: Any = None

    def __call__(self) -> Any:
        tried, self._trial = self._trial, None
        return self._made() if tried is None else tried

    def trial(self) -> Any:
        """The one that the first rollout gets, to be checked before."""
        if self._trial is None:
            self._trial = self._made()
        return self._trial

    def _made(self) -> Any:
        try:
            made = self._found()
        except RewardKitError:
            raise
        except (Exception, SystemExit) as error:
            raise self._fault(f"{self._spec}() raised {fault_line(error)}") from error
        if not _can_respond(made):
            if inspect.iscoroutine(made):
                made.close()
            raise self._fault(f"{self._spec}() gave {type(made).__name__}, {_CANNOT_RESPOND}")
        return made

    def configured(self, config: EvaluationConfig, tasks: Sequence[Task]) -> _ForeignFactory:
        configured = getattr(self._found, "configured", None)
        if configured is None:
            return self
        try:
            return _ForeignFactory(configured(config, tasks), self._spec, self._place)
        except RewardKitError:
            raise
        except (Exception, SystemExit) as error:
            raise self._fault(f"{self._spec}.configured() raised {fault_line(error)}") from error

    async def open(self) -> None:
        # a class whose `open` is a method of what it makes has none of its own
        opening = None if inspect.isclass(self._found) else getattr(self._found, "open", None)
        try:
            await _called(opening)
        except RewardKitError:
            raise
        except (Exception, SystemExit) as error:
            raise self._fault(f"{self._spec} cannot be opened: {fault_line(error)}") from error

    async def close(self) -> None:
        closing = None if inspect.isclass(self._found) else getattr(self._found, "close", None)
        try:
            await _called(getattr(self._trial, "close", None))  # no rollout got it
        finally:
            await _called(closing)

    def _fault(self, fault: str) -> BundleError:
        return BundleError(fault, place=self._place)


async def _called(hook: Any) -> None:
    """Call a hook of a person's own, `async def` or not, if it is one."""
    if callable(hook):
        done = hook()
        if inspect.isawaitable(done):
            await done


def trial_of(make: Callable[[], _T]) -> _T:
    """One that ``make`` makes, to be checked: a person's own costs too much to be thrown away."""
    return cast("_T", make.trial()) if isinstance(make, _ForeignFactory) else make()


class _Shared:
    """The factory of an object that plays all rollouts; opened and closed once, as factories are."""

    def __init__(self, player: Any) -> None:
        self._player = player
        self.open = getattr(player, "open", None)
        self.close = getattr(player, "close", None)

    def __call__(self) -> _Lent:
        return _Lent(self._player)


class _Lent:
    """A shared player as one rollout has it: all of it but ``open`` and ``close``."""

    def __init__(self, player: Any) -> None:
        self._player = player

    async def respond(self, rollout: Rollout) -> Any:
        return await self._player.respond(rollout)

    def __getattr__(self, name: str) -> Any:
        if name in ("open", "close", "_player"):  # a copy asks for the last before it has it
            raise AttributeError(name)
        return getattr(self._player, name)


_CANNOT_RESPOND = "which has no `async def respond(self, rollout)`"


def _can_respond(player: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(player, "respond", None))


def _checked(found: Any, spec: str, kind: str, place: str) -> Callable[[], Any]:
    """What makes the players that ``found`` stands for: a factory, an object that is its own only product, or
    a function that answers itself.
    """
    if not inspect.isclass(found) and hasattr(found, "respond"):
        if not _can_respond(found):
            raise BundleError(f"{spec} is {type(found).__name__}, {_CANNOT_RESPOND}", place=place)
        return _ForeignFactory(_Shared(found), spec, place)
    function = _as_function(found)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BundleError(
            f"{spec} is a generator",
            place=place,
            remedy=f"A function answers one turn of the {kind} with return; it is called for each.",
        )
    if takes_a_rollout(function):
        return lambda: FunctionPlayer(function)
    if inspect.iscoroutinefunction(function):
        raise BundleError(
            f"{spec} is `async def`, but not a function of one argument, the rollout", place=place
        )
    if not callable(found):
        raise BundleError(
            f"{spec} is {type(found).__name__}, not a class or function that makes the {kind}",
            place=place,
        )
    return _ForeignFactory(found, spec, place)


def _as_function(found: Any) -> Any:
    """``found``, or the function that it is called as: a method ``__call__``, or what a ``partial`` holds."""
    if isinstance(found, partial):
        held = _as_function(found.func)
        whole = inspect.isfunction(held) or inspect.ismethod(held)
        return _bound(partial(held, *found.args, **found.keywords)) if whole else found
    if inspect.isclass(found) or inspect.isroutine(found) or not callable(found):
        return found
    return found.__call__


def _bound(call: partial[Any]) -> Callable[..., Any]:
    """A function that does what ``call`` does, with the parameters that are left of it."""
    if inspect.iscoroutinefunction(call):

        @wraps(call)
        async def waiting(*args: Any) -> Any:
            return await call(*args)

        return waiting

    @wraps(call)
    def plain(*args: Any) -> Any:
        return call(*args)

    return plain
