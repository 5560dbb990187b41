"""The pages of a runs folder, each at the address of its file there with ``.html`` for its ending."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from jinja2 import UndefinedError

from reward_kit.agent.evaluation_config import NAME
from reward_kit.agent.pages.evaluation_page import evaluation_page, evaluations_page
from reward_kit.agent.pages.rendering import render
from reward_kit.agent.pages.rollout_page import ALONE, neighbours, rollout_page
from reward_kit.agent.reports.evaluations_table import read_evaluations
from reward_kit.agent.runs.atomic_file import as_storage_error, write_file
from reward_kit.agent.runs.rollout_record import load_rollout
from reward_kit.agent.runs.stored_evaluation import load_evaluation
from reward_kit.agent.runs.stored_result import stored_result
from reward_kit.errors import RewardKitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.explain import Explanation
    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.pages.rollout_page import Neighbours
    from reward_kit.agent.runs.rollout_record import RolloutRecord
    from reward_kit.agent.runs.stored_evaluation import StoredEvaluation

_State = tuple[tuple[int, int], tuple[int, int]]

INDEX = "index.html"
NO_FILE = (0, 0)
_ADDRESS = re.compile(r"(?P<folder>[^/\\\0]+)/(?P<name>[^/\\\0]+)\.html")


class Page(NamedTuple):
    """A page and its HTTP status."""

    html: str
    status: int = 200


class Site:
    """The pages of the runs folder ``folder``, made when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: _Read | None = None

    def page(self, address: str) -> Page:
        """The page at an address such as ``evals/ID.html``; where there is none, one that tells why.

        Nothing outside of the folder is read.
        """
        if address in ("", INDEX):
            return _told(lambda: evaluations_page(*read_evaluations(self._folder / "evals"), self._folder))
        match = _ADDRESS.fullmatch(address)
        if match is None or match["folder"] in (".", ".."):
            return Page(_fault_page("There is no such page."), 404)
        folder, name = match["folder"], match["name"]
        if folder == "evals":
            return _told(lambda: evaluation_page(self._evaluation(name).stored))
        return _told(lambda: self._rollout_page(self._folder / folder / f"{name}.json"))

    def write(self, evaluations: Sequence[StoredEvaluation], out: Path) -> Iterator[str]:
        """Write the pages of ``evaluations`` and of their rollouts into ``out``; gives each one's address.

        Raises ``StorageError`` where a file cannot be written. A rollout that cannot be read has a page that
        says so.
        """
        yield _written(out, INDEX, evaluations_page(evaluations, [], self._folder))
        for stored in evaluations:
            yield _written(out, f"evals/{stored.eval_id}.html", evaluation_page(stored))
            for outcome in stored.outcomes:
                address = address_of(outcome)
                yield _written(out, address, self.page(address).html)

    def _rollout_page(self, path: Path) -> str:
        if _state(path) == NO_FILE:
            raise UsageError(f"there is no rollout {path.stem!r} of a row {path.parent.name!r}")
        record = load_rollout(path)
        try:
            read = self._evaluation(record.eval_id)
        except RewardKitError:  # the trajectory alone was shared
            return rollout_page(record)
        return rollout_page(record, read.around(record), read.explanations.get(record.id))

    def _evaluation(self, name: str) -> _Read:
        """An evaluation as its files are now; the last one is kept, as its rollouts are read one by one."""
        if not NAME.fullmatch(name):  # it may come from a file that somebody else has written
            raise UsageError(f"{name!r} is no name of an evaluation")
        path = self._folder / "evals" / f"{name}.jsonl"
        results = path.with_suffix(".json")
        state = _state(path), _state(results)
        if state == (NO_FILE, NO_FILE):
            raise UsageError(f"there is no evaluation {name!r}")
        if state[0] == NO_FILE:
            path = results
        last = self._last
        if last is None or (last.path, last.state) != (path, state):
            self._last = last = _Read(path, state, load_evaluation(path))
        return last


class _Read:
    """What the pages of an evaluation's rollouts need of it."""

    def __init__(self, path: Path, state: _State, stored: StoredEvaluation) -> None:
        self.path = path
        self.state = state
        self.stored = stored
        self._outcomes = stored.outcomes
        self._places = {outcome.id: place for place, outcome in enumerate(self._outcomes)}
        self._rows = {row.row_id: row.outcomes for row in stored.rows}

    def around(self, record: RolloutRecord) -> Neighbours:
        """The rollouts to go on with from this one."""
        place = self._places.get(record.id)
        return ALONE if place is None else neighbours(self._outcomes, place, self._rows[record.row_id])

    @cached_property
    def explanations(self) -> Mapping[str, Explanation]:
        """What a model made of the failures, by rollout."""
        if "explanations" not in self.stored.results:
            return {}
        explained = stored_result(self.stored).explanations
        return {one.rollout: one for one in explained.usable} if explained is not None else {}


def address_of(outcome: RolloutOutcome) -> str:
    """Where the page of a rollout is."""
    return f"{outcome.file.removesuffix('.json')}.html"


def _state(path: Path) -> tuple[int, int]:
    """What tells that a file has changed."""
    try:
        facts = path.stat()
    except OSError:
        return NO_FILE
    return facts.st_mtime_ns, facts.st_size


def _told(make: Callable[[], str]) -> Page:
    """A page, or why it cannot be made: files may be missing, half written, or made by other hands."""
    try:
        return Page(make())
    except UsageError as error:
        return Page(_fault_page(str(error)), 404)
    except RewardKitError as error:
        return Page(_fault_page(str(error)), 500)
    except (KeyError, TypeError, AttributeError, ValueError, UndefinedError) as error:
        return Page(_fault_page(f"The file is damaged: {error!r}"), 500)


def _fault_page(text: str) -> str:
    """``text`` alone: why there is no other page. It may stand at any address, and so has no links."""
    return render("fault.html", title="Not shown", text=text)


def _written(out: Path, address: str, html: str) -> str:
    path = out / address
    with as_storage_error(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, html.encode(errors="replace"), durable=False)
    return address
