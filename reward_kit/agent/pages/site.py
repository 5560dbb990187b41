"""The pages of a runs folder: served over HTTP when they are asked for, or written as files."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from jinja2 import UndefinedError

from reward_kit.agent.base.files import as_storage_error, write_file
from reward_kit.agent.base.network import LOOPBACK
from reward_kit.agent.config import NAME
from reward_kit.agent.pages.evaluation_page import evaluation_page, evaluations_page
from reward_kit.agent.pages.rendering import render, rollout_address
from reward_kit.agent.pages.rollout_page import Neighbours, rollout_page
from reward_kit.agent.records.names import find_rollout
from reward_kit.agent.records.rollout_record import load_rollout
from reward_kit.agent.reports.listings import read_evaluations
from reward_kit.agent.reports.stored_results import stored_result
from reward_kit.agent.storage.stored_evaluation import load_evaluation
from reward_kit.errors import RewardKitError, StorageError, UsageError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from reward_kit.agent.explain.explanation import Explanation
    from reward_kit.agent.records.rollout_record import RolloutRecord
    from reward_kit.agent.storage.stored_evaluation import StoredEvaluation

INDEX = "index.html"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Pages hold text of models and tools: nothing of it may run or be fetched if escaping fails."""
_ADDRESS = re.compile(r"(?P<folder>[^/\\\0]+)/(?P<name>[^/\\\0]+)\.html")
_State = tuple[tuple[int, int], ...]


class Page(NamedTuple):
    """A page and its HTTP status."""

    html: str
    status: int = 200


class Site:
    """The pages of the runs folder ``folder``, rendered on demand; nothing outside of it is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: _Read | None = None

    def page(self, address: str) -> Page:
        """The page at an address such as ``evals/ID.html``, or one that says why there is none."""
        if address in ("", INDEX):
            return _page(lambda: evaluations_page(*read_evaluations(self._folder / "evals"), self._folder))
        match = _ADDRESS.fullmatch(address)
        if match is None or match["folder"] in (".", ".."):
            return Page(_fault_page("There is no such page."), 404)
        folder, name = match["folder"], match["name"]
        if folder == "evals":
            return _page(lambda: evaluation_page(self._evaluation(name).stored))
        return _page(lambda: self._rollout_page(folder, name.removeprefix("roll_")))

    def write(self, evaluations: Sequence[StoredEvaluation], out: Path) -> Iterator[str]:
        """Write the pages of ``evaluations`` and of their rollouts into ``out``; yields the addresses.

        A rollout that cannot be read gets a page that says so. Raises ``StorageError`` if a file cannot be
        written, or if a stored name would lead out of ``out``.
        """
        yield _write(out, INDEX, evaluations_page(evaluations, [], self._folder))
        for stored in evaluations:
            yield _write(out, f"evals/{stored.eval_id}.html", evaluation_page(stored))
            for outcome in stored.outcomes:
                address = rollout_address(outcome)
                yield _write(out, address, self.page(address).html)

    def _rollout_page(self, row_id: str, rollout_id: str) -> str:
        found = find_rollout(rollout_id, self._folder)
        if found is None or found.id != rollout_id:
            raise UsageError(f"there is no rollout {rollout_id!r} of a row {row_id!r}")
        record = load_rollout(found.address)
        read = self._evaluation(found.file.stem)
        return rollout_page(record, read.around(record), read.explanations.get(record.id))

    def _evaluation(self, name: str) -> _Read:
        """An evaluation as its files are now; the last one is cached for the pages of its rollouts."""
        if not NAME.fullmatch(name):  # it may come from a file that somebody else has written
            raise UsageError(f"{name!r} is no name of an evaluation")
        path = self._folder / "evals" / f"{name}.db"
        state = tuple(map(_state, (path, path.with_name(f"{path.name}-wal"), path.with_suffix(".json"))))
        if state[0] == (0, 0):
            raise UsageError(f"there is no evaluation {name!r}")
        last = self._last
        if last is None or (last.path, last.state) != (path, state):
            self._last = last = _Read(path, state, load_evaluation(path))
        return last


class _Read:
    """An evaluation as it was read, with what the pages of its rollouts need."""

    def __init__(self, path: Path, state: _State, stored: StoredEvaluation) -> None:
        self.path = path
        self.state = state
        self.stored = stored
        self._outcomes = stored.outcomes
        self._places = {outcome.id: place for place, outcome in enumerate(self._outcomes)}
        self._rows = {row.row_id: row.outcomes for row in stored.rows}

    def around(self, record: RolloutRecord) -> Neighbours:
        """The links of a rollout's page."""
        place = self._places.get(record.id)
        if place is None:
            return Neighbours()
        later = self._outcomes[place + 1 :]
        return Neighbours(
            before=self._outcomes[place - 1] if place else None,
            after=next(iter(later), None),
            next_failed=next((one for one in later if not one.success), None),
            of_row=self._rows[record.row_id],
        )

    @cached_property
    def explanations(self) -> Mapping[str, Explanation]:
        """A model's judgements of the failures, by rollout."""
        if "explanations" not in self.stored.results:
            return {}
        explained = stored_result(self.stored).explanations
        return {one.rollout: one for one in explained.usable} if explained is not None else {}


def page_app(site: Site) -> Starlette:
    """The application that serves ``site``, to requests for this machine's own names alone."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    def page(request: Request) -> Response:
        html, status = site.page(request.path_params["address"])
        return HTMLResponse(html.encode(errors="replace"), status, HEADERS)

    # Without this check another web site could read the pages by DNS rebinding.
    names = Middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost"], www_redirect=False)
    return Starlette(routes=[Route("/{address:path}", page)], middleware=[names])


def serve(site: Site, listener: socket.socket) -> None:
    """Serve ``site`` until a signal ends it."""
    import uvicorn

    config = uvicorn.Config(page_app(site), log_level="warning", ws="none", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])


def _state(path: Path) -> tuple[int, int]:
    """Time of change and size of a file; zeros without one."""
    try:
        facts = path.stat()
    except OSError:
        return 0, 0
    return facts.st_mtime_ns, facts.st_size


def _page(make: Callable[[], str]) -> Page:
    """A page, or the reason why it cannot be made: files may be missing, half written, or forged."""
    try:
        return Page(make())
    except UsageError as error:
        return Page(_fault_page(str(error)), 404)
    except RewardKitError as error:
        return Page(_fault_page(str(error)), 500)
    except (KeyError, TypeError, AttributeError, ValueError, UndefinedError) as error:
        return Page(_fault_page(f"The file is damaged: {error!r}"), 500)


def _fault_page(text: str) -> str:
    return render("fault.html", title="Not shown", text=text)


def _write(out: Path, address: str, html: str) -> str:
    path = out / address
    is_page = address == INDEX or _ADDRESS.fullmatch(address)
    if not is_page or not path.resolve().is_relative_to(out.resolve()):  # a stored name leads elsewhere
        raise StorageError(f"the page {address!r} would lie outside of the folder", place=str(out))
    with as_storage_error(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, html.encode(errors="replace"), durable=False)
    return address
