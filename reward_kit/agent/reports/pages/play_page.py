"""A page on which a person plays the agent or the user of one rollout.

It is a ``Screen``; a server in a thread shows it beside the pages of the runs folder::

    page = PlayPage()
    SCREEN.set(page)
    with served(folder, listener, page.route("play")):
        evaluate("my_task", agent="human", task_ids="task.7")
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from reward_kit.agent.players.agents.human import signature
from reward_kit.agent.reports.pages.rendering import HEADERS, HTML, render
from reward_kit.agent.servers.access import foreign_origin

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from reward_kit.agent.rollout.rollout import Rollout, UserRollout


class PlayPage:
    """The conversation so far, and a form while it is the person's turn.

    ``result`` is the line to show once the rollout is judged, ``link`` the address of its page.
    """

    def __init__(self) -> None:
        self.result = ""
        self.link = ""
        self._texts: list[str] = []
        self._side = ""
        self._tools: list[dict[str, Any]] = []
        self._answer: asyncio.Future[str | None] | None = None

    def show(self, text: str, *, manual: str = "") -> None:  # noqa: ARG002 - the page has buttons instead
        """Add a text to the page."""
        text = text.strip("=\n ")
        self._texts += [text] if text else []

    async def typed(self, rollout: Rollout | UserRollout, side: str, *, begins: bool) -> str | None:  # noqa: ARG002 - nothing to check
        """Show the form, and wait until it is sent."""
        self._side = side
        self._tools = [tool["function"] for tool in rollout.tools] if side == "agent" else []
        self._answer = asyncio.get_running_loop().create_future()
        try:
            text = await self._answer
        finally:
            self._answer = None
        if text is not None:
            self.show(f"{side}: {text}")
        return text

    def route(self, address: str) -> Route:
        """The route of the page for a server."""
        from starlette.routing import Route

        return Route(f"/{address}", self._respond, methods=["GET", "POST"])

    async def _respond(self, request: Request) -> Response:
        from starlette.responses import RedirectResponse, Response

        if request.method == "GET":
            waiting = self._answer is None and not self.link
            html = render(
                "play.html",
                title="Play",
                texts=self._texts,
                side=self._side,
                tools=[(one["name"], signature(one)) for one in self._tools],
                turn=len(self._texts),
                asked=self._answer is not None,
                result=self.result,
                link=self.link,
                refresh=1 if waiting else 0,
            )
            return Response(html.encode(errors="replace"), headers=HEADERS, media_type=HTML)
        refused = foreign_origin(request.headers)
        if refused is not None:
            return Response(refused, 403)
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        answer = self._answer
        if answer is not None and form.get("turn") == str(len(self._texts)):  # it was not sent twice
            answer.get_loop().call_soon_threadsafe(_settle, answer, _command(form))
        return RedirectResponse(request.url.path, 303)


def _settle(answer: asyncio.Future[str | None], text: str | None) -> None:
    if not answer.done():
        answer.set_result(text)


def _command(form: dict[str, str]) -> str | None:
    """The text of a form as it is typed at a terminal; None to leave."""
    if "tool" in form:
        return f"/call {form['tool']} {' '.join(form.get('arguments', '').split())}"
    return None if "leave" in form else form.get("text", "")
