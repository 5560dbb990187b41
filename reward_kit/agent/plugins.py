"""Finding an agent or a user by name: a built-in one, ``module:factory``, or a recording."""

from __future__ import annotations

import importlib
import inspect
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.faults import fault_line
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


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
    return _checked(_imported(spec, kind), spec, kind)


def _imported(spec: str, kind: str) -> Any:
    """The object that ``module:attribute`` names; the working directory is importable meanwhile."""
    module_name, _, attribute = spec.partition(":")
    place = f"--{kind} {spec}"
    try:
        with _working_directory_importable():
            found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise BundleError(f"{module_name} cannot be imported: {fault_line(error)}", place=place) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BundleError(f"{module_name} has no {attribute}", place=place)
        found = getattr(found, part)
    return found


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    directory = str(Path.cwd())
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path.remove(directory)


def _checked(found: Any, spec: str, kind: str) -> Callable[[], Any]:
    """A factory whose products can respond; an object that already can is its own only product."""
    if not inspect.isclass(found) and hasattr(found, "respond"):
        return lambda: found
    if not callable(found):
        raise BundleError(
            f"{spec} is {type(found).__name__}, not a class or function that makes the {kind}",
            place=f"--{kind}",
        )

    def make() -> Any:
        try:
            made = found()
        except Exception as error:
            raise BundleError(f"{spec}() raised {fault_line(error)}", place=f"--{kind}") from error
        if not inspect.iscoroutinefunction(getattr(made, "respond", None)):
            raise BundleError(
                f"{spec}() gave {type(made).__name__}, which has no `async def respond(self, rollout)`",
                place=f"--{kind}",
            )
        return made

    return make
