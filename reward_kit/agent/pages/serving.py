"""The pages over HTTP, for browsers on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.listening import LOOPBACK

if TYPE_CHECKING:
    import socket

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from reward_kit.agent.pages.site import Site

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Pages hold text of models and tools: nothing of it may run or fetch, should escaping ever fail."""


def page_app(site: Site) -> Starlette:
    """The application that serves ``site``; it answers nobody who calls it by another name."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    def page(request: Request) -> Response:
        html, status = site.page(request.path_params["address"])
        return HTMLResponse(html.encode(errors="replace"), status, HEADERS)

    # the check of the name keeps other web sites from reading the pages through a name of theirs
    names = Middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost"], www_redirect=False)
    return Starlette(routes=[Route("/{address:path}", page)], middleware=[names])


def serve(site: Site, listener: socket.socket) -> None:
    """Serve ``site`` until a signal ends it."""
    import uvicorn

    config = uvicorn.Config(page_app(site), log_level="warning", ws="none", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])
