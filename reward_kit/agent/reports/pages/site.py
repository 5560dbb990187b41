"""The pages of a runs folder: served over HTTP when they are asked for, or written as files."""

from __future__ import annotations

import re
import sys
import threading
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from jinja2 import UndefinedError
from markupsafe import escape

from reward_kit.agent.after.explainer import stored_explanations
from reward_kit.agent.base.encoding import DAMAGED, json_text
from reward_kit.agent.base.files import as_storage_error, write_text
from reward_kit.agent.base.network import LOOPBACK
from reward_kit.agent.base.option import NAME
from reward_kit.agent.base.redaction import hide_bytes
from reward_kit.agent.reports.listings import trees_of
from reward_kit.agent.reports.pages.compare_page import beside_values, comparison_values
from reward_kit.agent.reports.pages.evaluation_page import evaluation_values, evaluations_values
from reward_kit.agent.reports.pages.rendering import HEADERS, HTML, render, rollout_address
from reward_kit.agent.reports.pages.rollout_page import Neighbours, rollout_values
from reward_kit.agent.reports.pages.selection import Selection, names, order, outcomes
from reward_kit.agent.store.evaluation_file import reading, rollout_at
from reward_kit.agent.store.layout import load_evaluation
from reward_kit.agent.store.loading import find_rollout, load_rollout
from reward_kit.errors import RewardKitError, StorageError, UsageError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from reward_kit.agent.store.results import EvaluationResult

INDEX = "index.html"
JSON = "application/json"
_ADDRESS = re.compile(r"(?P<folder>[^/\\\0]+)/(?P<name>[^/\\\0]+)\.(?P<kind>html|json)")
_COMPARE = re.compile(r"compare/(?P<a>[^/\\\0]+)/(?P<b>[^/\\\0]+)(?:/(?P<row>[^/\\\0]+))?")


class Page(NamedTuple):
    """A page and its HTTP status."""

    html: str
    status: int = 200
    media: str = HTML


def page_at(folder: Path, address: str, query: Mapping[str, str] | None = None) -> Page:
    """The page at an address such as ``evals/ID.html``, or one with the reason for its absence.

    ``query`` holds the parameters of the address. Nothing outside of the runs folder is read; its files may
    be missing, half written, or forged.
    """
    return _page(partial(_answer, folder, address, query or {}))


def write_pages(folder: Path, evaluations: Sequence[EvaluationResult], out: Path) -> Iterator[str]:
    """Write the pages of ``evaluations`` and of their rollouts into ``out``; yields the addresses.

    A rollout that cannot be read gets a page that says so. Raises ``StorageError`` if a file cannot be
    written, or if a stored name would lead out of ``out``.
    """
    private = _private_folders(folder, evaluations)
    index = evaluations_values(folder, [stored.log_path for stored in evaluations])
    written = {stored.eval_id for stored in evaluations}
    yield _write(out, INDEX, private.sub("", render("evaluations.html", **index, static=True)))
    for stored in evaluations:
        values = evaluation_values(stored.log_path, Selection(), static=True)
        html = render("evaluation.html", **values, static=written)
        yield _write(out, f"evals/{stored.eval_id}.html", private.sub("", html))
        for outcome in stored.outcomes:
            page = _page(partial(_rollout, stored.log_path, outcome.id, Selection(), static=written))
            yield _write(out, rollout_address(outcome), private.sub("", page.html))


def _private_folders(runs: Path, evaluations: Sequence[EvaluationResult]) -> re.Pattern[str]:
    """The folders of this machine that the pages may name, where they begin a path."""
    options = [value for stored in evaluations for value in stored.configuration.values()]
    folders = {Path(one).parent for one in options if isinstance(one, str) and Path(one).is_absolute()}
    folders |= {runs.absolute().parent, Path.cwd(), Path(sys.prefix)}
    with suppress(RuntimeError):  # no home is known
        folders.add(Path.home())
    names = sorted((str(escape(str(one))) for one in folders if one.name), key=len, reverse=True)
    return re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, names))})(?:/|\b)")


def _page(answer: Callable[[], Page]) -> Page:
    try:
        return answer()
    except RewardKitError as error:
        text, status = str(error), 404 if isinstance(error, UsageError) else 500
    except (*DAMAGED, UndefinedError) as error:
        text, status = f"The file is damaged: {error!r}", 500
    return Page(render("fault.html", title="Not shown", text=text), status)


def _answer(folder: Path, address: str, query: Mapping[str, str]) -> Page:
    evals = folder / "evals"
    if address in ("", INDEX):
        return Page(render("evaluations.html", **evaluations_values(folder)))
    if (match := _COMPARE.fullmatch(address)) is not None:
        a, b = _file(evals, match["a"]), _file(evals, match["b"])
        if match["row"] is not None:
            return Page(render("beside.html", **beside_values(a, b, match["row"], query)))
        return Page(render("compare.html", **comparison_values(a, b, query)))
    if address == "compare":
        raise UsageError("tick two evaluations to compare them")
    match = _ADDRESS.fullmatch(address)
    if match is None or match["folder"] in (".", ".."):
        raise UsageError("there is no such page")
    name, is_json = match["name"], match["kind"] == "json"
    if match["folder"] == "evals":
        file = _file(evals, name)
        if is_json:
            return Page(json_text(load_evaluation(file).to_json()), media=JSON)
        return Page(render("evaluation.html", **evaluation_values(file, Selection.from_query(query))))
    rollout = name.removeprefix("roll_")
    found = find_rollout(rollout, folder)
    if found is None or found.id != rollout:
        raise UsageError(f"there is no rollout {rollout!r} of a row {match['folder']!r}")
    if is_json:
        return Page(rollout_at(found.address).trace, media=JSON)
    return _rollout(found.file, rollout, Selection.from_query(query))


def _file(evals: Path, name: str) -> Path:
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of an evaluation")
    return evals / f"{name}.db"


def _rollout(file: Path, rollout: str, selection: Selection, *, static: Collection[str] = ()) -> Page:
    """The page of a rollout, with links to the others of the selection; ``static`` names the written ones."""
    own = outcomes(file, "id", [rollout])
    if not own:
        raise UsageError(f"there is no rollout {rollout!r} that counts", place=file.stem)
    found = order(file, selection.rollouts)
    with reading(file) as connection:
        (number,) = connection.execute("SELECT seq FROM rollouts WHERE id = ?", (rollout,)).fetchone()
    place = next((place for place, one in enumerate(found, 1) if abs(one) == number), 0)
    later = found[place:] if place else ()
    next_failed = next((one for one in later if one < 0), None)
    numbers = [found[place - 2] if place > 1 else None, next(iter(later), None), next_failed]
    ids = names(file, "rollouts", [one or 0 for one in numbers])
    known = {one.id: one for one in outcomes(file, "id", [*ids.values()])}
    of_row = outcomes(file, "row_id", [own[0].row_id])
    near = [known.get(ids.get(abs(one or 0), "")) for one in numbers]
    around = Neighbours(near[0], near[1], near[2], of_row, selection.query(), place, len(found))
    explained = {one.rollout: one for one in stored_explanations(file)}
    tree = trees_of(file.parent, file.stem, rollout)
    values = rollout_values(load_rollout(file / rollout), around, explained.get(rollout), tree)
    return Page(render("rollout.html", **values, static=static))


def page_app(folder: Path, *others: Route) -> Starlette:
    """The application that serves a runs folder, to requests for this machine's own names alone."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import RedirectResponse, Response
    from starlette.routing import Route

    def page(request: Request) -> Response:
        picked = request.query_params.getlist("pick")
        if request.path_params["address"] == "compare" and len(picked) == 2:  # the newer is listed first
            return RedirectResponse("/compare/{1}/{0}".format(*(quote(one, safe="") for one in picked)), 303)
        text, status, media = page_at(folder, request.path_params["address"], request.query_params)
        return Response(hide_bytes(text.encode(errors="replace")), status, HEADERS, media)

    # Without this check another web site could read the pages by DNS rebinding.
    names = Middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost"], www_redirect=False)
    return Starlette(routes=[*others, Route("/{address:path}", page)], middleware=[names])


def serve(folder: Path, listener: socket.socket) -> None:
    """Serve the pages of a runs folder until a signal ends it."""
    _server(page_app(folder)).run(sockets=[listener])


@contextmanager
def served(folder: Path, listener: socket.socket, *others: Route) -> Iterator[None]:
    """Serve the pages of a runs folder and ``others`` in a thread until the end of the block."""
    server = _server(page_app(folder, *others))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def _server(app: Starlette) -> uvicorn.Server:
    import uvicorn

    return uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=2))


def _write(out: Path, address: str, html: str) -> str:
    path = out / address
    is_page = address == INDEX or _ADDRESS.fullmatch(address)
    if not is_page or not path.resolve().is_relative_to(out.resolve()):  # a stored name leads elsewhere
        raise StorageError(f"the page {address!r} would lie outside of the folder", place=str(out))
    with as_storage_error(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, [html.encode(errors="replace")], durable=False)
    return address
