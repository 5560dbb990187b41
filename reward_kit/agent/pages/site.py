"""The pages of a runs folder: served over HTTP when they are asked for, or written as files."""

from __future__ import annotations

import re
from functools import partial
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
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

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


def page_at(folder: Path, address: str) -> Page:
    """The page at an address such as ``evals/ID.html``, or one that says why there is none.

    Nothing outside of the runs folder is read; its files may be missing, half written, or forged.
    """
    return _page(partial(_html, folder, address))


def write_pages(folder: Path, evaluations: Sequence[StoredEvaluation], out: Path) -> Iterator[str]:
    """Write the pages of ``evaluations`` and of their rollouts into ``out``; yields the addresses.

    A rollout that cannot be read gets a page that says so. Raises ``StorageError`` if a file cannot be
    written, or if a stored name would lead out of ``out``.
    """
    yield _write(out, INDEX, render("evaluations.html", **evaluations_values(evaluations, [], folder)))
    for stored in map(stored_result, evaluations):
        html = render("evaluation.html", **evaluation_values(stored))
        yield _write(out, f"evals/{stored.eval_id}.html", html)
        for place, outcome in enumerate(stored.outcomes):
            page = _page(partial(_rollout_html, stored, place))
            yield _write(out, rollout_address(outcome), page.html)


def _page(html: Callable[[], str]) -> Page:
    try:
        return Page(html())
    except RewardKitError as error:
        text, status = str(error), 404 if isinstance(error, UsageError) else 500
    except (KeyError, TypeError, AttributeError, ValueError, UndefinedError) as error:
        text, status = f"The file is damaged: {error!r}", 500
    return Page(render("fault.html", title="Not shown", text=text), status)


def _html(folder: Path, address: str) -> str:
    evals = folder / "evals"
    if address in ("", INDEX):
        return render("evaluations.html", **evaluations_values(*read_evaluations(evals), folder))
    match = _ADDRESS.fullmatch(address)
    if match is None or match["folder"] in (".", ".."):
        raise UsageError("there is no such page")
    name = match["name"]
    if match["folder"] == "evals":
        if not NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name of an evaluation")
        return render("evaluation.html", **evaluation_values(_stored(evals / f"{name}.db")))
    rollout_id = name.removeprefix("roll_")
    found = find_rollout(rollout_id, folder)
    stored = None if found is None else _stored(found.file)
    ids = [] if stored is None else [outcome.id for outcome in stored.outcomes]
    if stored is None or rollout_id not in ids:
        raise UsageError(f"there is no rollout {rollout_id!r} of a row {match['folder']!r}")
    return _rollout_html(stored, ids.index(rollout_id))


def _stored(file: Path) -> StoredEvaluation:
    return stored_result(load_evaluation(file))


def _rollout_html(stored: StoredEvaluation, place: int) -> str:
    """The page of the evaluation's outcome at ``place``, with links to the others."""
    outcomes, own = stored.outcomes, stored.outcomes[place]
    later = outcomes[place + 1 :]
    around = Neighbours(
        before=outcomes[place - 1] if place else None,
        after=next(iter(later), None),
        next_failed=next((one for one in later if not one.success), None),
        of_row=[one for one in outcomes if one.row_id == own.row_id],
    )
    usable = stored.explanations.usable if stored.explanations is not None else ()
    explanation = next((one for one in usable if one.rollout == own.id), None)
    record = load_rollout(stored.path / own.id)
    return render("rollout.html", **rollout_values(record, around, explanation))


def page_app(folder: Path) -> Starlette:
    """The application that serves a runs folder, to requests for this machine's own names alone."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    def page(request: Request) -> Response:
        html, status = page_at(folder, request.path_params["address"])
        return HTMLResponse(html.encode(errors="replace"), status, HEADERS)

    # Without this check another web site could read the pages by DNS rebinding.
    names = Middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost"], www_redirect=False)
    return Starlette(routes=[Route("/{address:path}", page)], middleware=[names])


def serve(folder: Path, listener: socket.socket) -> None:
    """Serve the pages of a runs folder until a signal ends it."""
    import uvicorn

    config = uvicorn.Config(page_app(folder), log_level="warning", ws="none", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])


def _write(out: Path, address: str, html: str) -> str:
    path = out / address
    is_page = address == INDEX or _ADDRESS.fullmatch(address)
    if not is_page or not path.resolve().is_relative_to(out.resolve()):  # a stored name leads elsewhere
        raise StorageError(f"the page {address!r} would lie outside of the folder", place=str(out))
    with as_storage_error(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, html.encode(errors="replace"), durable=False)
    return address
