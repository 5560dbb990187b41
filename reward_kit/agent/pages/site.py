"""The pages of a runs folder: served over HTTP when they are asked for, or written as files."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from jinja2 import UndefinedError

from reward_kit.agent.base.files import as_storage_error, write_file
from reward_kit.agent.base.network import LOOPBACK
from reward_kit.agent.config import NAME
from reward_kit.agent.pages.evaluation_page import evaluation_values, evaluations_values
from reward_kit.agent.pages.rendering import render, rollout_address
from reward_kit.agent.pages.rollout_page import Neighbours, rollout_values
from reward_kit.agent.records.loading import find_rollout, load_rollout
from reward_kit.agent.reports.listings import read_evaluations
from reward_kit.agent.reports.stored_results import stored_result
from reward_kit.agent.storage.stored_evaluation import load_evaluation
from reward_kit.errors import RewardKitError, StorageError, UsageError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence
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


class Page(NamedTuple):
    """A page and its HTTP status."""

    html: str
    status: int = 200


class Site:
    """The pages of the runs folder ``folder``, rendered on demand; nothing outside of it is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def page(self, address: str) -> Page:
        """The page at an address such as ``evals/ID.html``, or one that says why there is none.

        Files may be missing, half written, or forged.
        """
        try:
            return Page(self._html(address))
        except UsageError as error:
            return Page(_fault_page(str(error)), 404)
        except RewardKitError as error:
            return Page(_fault_page(str(error)), 500)
        except (KeyError, TypeError, AttributeError, ValueError, UndefinedError) as error:
            return Page(_fault_page(f"The file is damaged: {error!r}"), 500)

    def write(self, evaluations: Sequence[StoredEvaluation], out: Path) -> Iterator[str]:
        """Write the pages of ``evaluations`` and of their rollouts into ``out``; yields the addresses.

        A rollout that cannot be read gets a page that says so. Raises ``StorageError`` if a file cannot be
        written, or if a stored name would lead out of ``out``.
        """
        values = evaluations_values(evaluations, [], self._folder)
        yield _write(out, INDEX, render("evaluations.html", **values))
        for stored in evaluations:
            html = render("evaluation.html", **evaluation_values(stored))
            yield _write(out, f"evals/{stored.eval_id}.html", html)
            for outcome in stored.outcomes:
                address = rollout_address(outcome)
                yield _write(out, address, self.page(address).html)

    def _html(self, address: str) -> str:
        if address in ("", INDEX):
            values = evaluations_values(*read_evaluations(self._folder / "evals"), self._folder)
            return render("evaluations.html", **values)
        match = _ADDRESS.fullmatch(address)
        if match is None or match["folder"] in (".", ".."):
            raise UsageError("there is no such page")
        folder, name = match["folder"], match["name"]
        if folder == "evals":
            return render("evaluation.html", **evaluation_values(self._evaluation(name)))
        rollout_id = name.removeprefix("roll_")
        found = find_rollout(rollout_id, self._folder)
        if found is None or found.id != rollout_id:
            raise UsageError(f"there is no rollout {rollout_id!r} of a row {folder!r}")
        record = load_rollout(found.address)
        stored = self._evaluation(found.file.stem)
        values = rollout_values(record, _around(record, stored), _explanation(record, stored))
        return render("rollout.html", **values)

    def _evaluation(self, name: str) -> StoredEvaluation:
        """An evaluation as its files are now."""
        if not NAME.fullmatch(name):  # it may come from a file that somebody else has written
            raise UsageError(f"{name!r} is no name of an evaluation")
        path = self._folder / "evals" / f"{name}.db"
        state = tuple(map(_state, (path, path.with_name(f"{path.name}-wal"), path.with_suffix(".json"))))
        if state[0] is None:
            raise UsageError(f"there is no evaluation {name!r}")
        return _load((path, state))


@lru_cache(maxsize=1)
def _load(version: tuple[Path, object]) -> StoredEvaluation:
    """The evaluation at a path, in the state of its files; kept for the pages of its rollouts."""
    return load_evaluation(version[0])


def _state(path: Path) -> tuple[int, int] | None:
    """Time of change and size of a file; None without one."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size


def _around(record: RolloutRecord, stored: StoredEvaluation) -> Neighbours:
    """The links of a rollout's page."""
    outcomes = stored.outcomes
    place = next((at for at, outcome in enumerate(outcomes) if outcome.id == record.id), None)
    if place is None:
        return Neighbours()
    later = outcomes[place + 1 :]
    return Neighbours(
        before=outcomes[place - 1] if place else None,
        after=next(iter(later), None),
        next_failed=next((one for one in later if not one.success), None),
        of_row=next(row.outcomes for row in stored.rows if row.row_id == record.row_id),
    )


def _explanation(record: RolloutRecord, stored: StoredEvaluation) -> Explanation | None:
    """A model's judgement of the rollout, if there is one."""
    if "explanations" not in stored.results:
        return None
    explained = stored_result(stored).explanations
    usable = explained.usable if explained is not None else ()
    return next((one for one in usable if one.rollout == record.id), None)


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
