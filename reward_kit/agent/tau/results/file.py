"""Results files of tau-bench and tau2-bench: reading either, and the ids of tasks in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import TypeAdapter, ValidationError

from reward_kit.agent.base.text import cut
from reward_kit.agent.tau.results import tau2, tau_bench
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.rows.task_row import TaskRow
    from reward_kit.agent.tau.results.trial import Trial

_T = TypeVar("_T")
METADATA, SIMULATIONS = "results.json", "simulations"
"""A results file of tau2-bench and the folder beside it that holds a file for each simulation."""


@dataclass(frozen=True, slots=True)
class Results:
    """The contents of a results file.

    ``n_trials`` is the number of trials that each task should have, ``domain`` that of tau2-bench. ``lost``
    are simulations that the file names and does not hold.
    """

    trials: list[Trial]
    n_trials: int
    domain: str | None = None
    lost: tuple[str, ...] = ()


def read_results(path: str | Path) -> Results:
    """Read a results file of either benchmark, or a folder of tau2-bench.

    The folder has ``results.json`` and a file for each simulation in ``simulations/``. Raises
    ``BundleError`` with the JSON path of the first fault.
    """
    path = Path(path)
    file = path / METADATA if path.is_dir() else path
    text = _bytes_of(file)
    if text.lstrip()[:1] == b"[":
        trials = list(tau_bench.trials_of(_parsed(list[tau_bench.FileEntry], text, file)))
        found = Results(trials, 1 + max((trial.index for trial in trials), default=0))
    elif b'"simulations"' in text or (file.parent / SIMULATIONS).is_dir():
        found = _tau2_bench(file, text)
    else:
        _parsed(dict, text, file)
        fault = "is neither a list of results (tau-bench) nor an object with simulations (tau2-bench)"
        raise BundleError(fault, place=f"{file}: $")
    if not found.trials:
        raise BundleError("holds no results", place=str(file))
    return found


def _tau2_bench(file: Path, text: bytes) -> Results:
    found = _parsed(tau2.File, text, file)
    places = {f"$.simulations[{at}]": one for at, one in enumerate(found.simulations)}
    if not places:
        for one in sorted((file.parent / SIMULATIONS).glob("*.json")):
            places[f"{SIMULATIONS}/{one.name}"] = _parsed(tau2.Simulation, _bytes_of(one), one)
    held = {one.id for one in places.values()}
    lost = tuple(entry.id for entry in found.simulation_index or () if entry.id not in held)
    trials = tau2.trials_of(places, {task.id: task for task in found.tasks}, file)
    return Results(trials, found.info.num_trials, found.info.environment_info.domain_name, lost)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise BundleError("there is no such file", place=str(path)) from None
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror or error}", place=str(path)) from error


def _parsed(kind: type[_T], text: bytes, path: Path) -> _T:
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise BundleError(f"is not JSON: {first['msg']}", place=str(path)) from None
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        got = "" if first["type"] == "missing" else f", got {cut(repr(first['input']), 60)}"
        raise BundleError(f"{first['msg']}{got}", place=f"{path}: ${steps}") from None


def task_numbers(rows: Sequence[TaskRow]) -> dict[str, int]:
    """Return tau-bench's ``task_id`` of each row, by row id.

    It is ``metadata.index`` if every row has a distinct one, as in the retail bundle; otherwise the row's
    position in the dataset, from 0.
    """
    numbers = [row.metadata.get("index") for row in rows]
    valid = [number for number in numbers if type(number) is int and number >= 0]
    if len(set(valid)) < len(rows):
        valid = list(range(len(rows)))
    return {row.id: number for row, number in zip(rows, valid, strict=True)}


def task_ids(rows: Sequence[TaskRow], *, is_tau2: bool) -> dict[str, int | str]:
    """Return the ids of the rows' tasks in a results file, by row id."""
    if is_tau2:
        return {row.id: tau2.id_of(row.id, row.metadata) for row in rows}
    return {**task_numbers(rows)}
