"""A page on which a person plays the agent or the user of one rollout.

It is a ``Screen``; a server in a thread shows it beside the pages of the runs folder::

    page = PlayPage()
    SCREEN.set(page)
    with served(folder, listener, page.route("play")):
        evaluate("my_task", agent="human", task_ids="task.7")
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs

from reward_kit.agent.reports.pages.rendering import HEADERS, HTML, render
from reward_kit.agent.servers.requests import foreign_origin

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from reward_kit.agent.rollout.rollout import Rollout, UserRollout


ARGUMENT = "argument "
"""Begins the name of an input field for an argument of a tool."""
_HEADING = re.compile(r"\A\s*=== (.*) ===$", re.MULTILINE)


class Field(NamedTuple):
    """An input for one argument of a tool; ``kind`` is the type of an ``input``, ``select``, or ``json``."""

    name: str
    kind: str
    description: str
    is_required: bool
    choices: tuple[str, ...] = ()


class PlayPage:
    """The conversation so far, and a form while it is the person's turn.

    ``result`` is the line to show once the rollout is judged, ``link`` the address of its page.
    """

    def __init__(self) -> None:
        self.result = self.link = self._side = self._policy = ""
        self._texts: list[str] = []
        self._tools: list[dict[str, Any]] = []
        self._answer: asyncio.Future[str | None] | None = None

    def show(self, text: str, *, manual: str = "") -> None:  # noqa: ARG002 - the page has buttons instead
        """Add a text to the page."""
        text = _HEADING.sub(r"\1", text).strip()
        self._texts += [text] if text else []

    async def typed(self, rollout: Rollout | UserRollout, side: str, *, begins: bool) -> str | None:  # noqa: ARG002 - nothing to check
        """Show the form, and wait until it is sent."""
        self._side = side
        self._tools = [tool["function"] for tool in rollout.tools]
        self._policy = getattr(rollout, "system_prompt", None) or ""  # a user has none
        self._answer = asyncio.get_running_loop().create_future()
        try:
            text = await self._answer
        finally:
            self._answer = None
        if text is not None:
            said = text.removeprefix("/call ")
            self.show(f"{side}: {said}" if said == text else f"{side} calls {said}")
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
                policy_text=self._policy,
                tools=[(one, fields_of(one)) for one in self._tools],
                argument=ARGUMENT,
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
            text = self._command(form)
            answer.get_loop().call_soon_threadsafe(lambda: answer.done() or answer.set_result(text))  # type: ignore[func-returns-value]
        return RedirectResponse(request.url.path, 303)

    def _command(self, form: dict[str, str]) -> str | None:
        """The text of a form as it is typed at a terminal; None to leave."""
        if "tool" not in form:
            return None if "leave" in form else form.get("text", "")
        given = form.get("arguments")
        if given is None:
            tool = next((one for one in self._tools if one["name"] == form["tool"]), {})
            fields = [(one, form.get(f"{ARGUMENT}{one.name}")) for one in fields_of(tool)]
            given = json.dumps({one.name: _value(one, text) for one, text in fields if text is not None})
        return f"/call {form['tool']} {given}"


def fields_of(tool: dict[str, Any]) -> list[Field]:
    """The input fields for the arguments of a tool, from its JSON schema; ``json`` for nested values."""
    parameters = tool.get("parameters")
    schema = parameters if isinstance(parameters, dict) else {}
    properties, required = schema.get("properties"), schema.get("required")
    return [
        _field(name, one, is_required=isinstance(required, list) and name in required)
        for name, one in (properties.items() if isinstance(properties, dict) else ())
        if isinstance(one, dict)
    ]


def _field(name: str, schema: dict[str, Any], *, is_required: bool) -> Field:
    kinds = [one for one in schema.get("anyOf") or [schema] if one.get("type") != "null"]
    found = kinds[0] if len(kinds) == 1 else {}
    kind = {"string": "text", "integer": "number", "number": "number"}.get(str(found.get("type")), "json")
    choices = [True, False] if found.get("type") == "boolean" else found.get("enum") or ()
    words = tuple(one if isinstance(one, str) else json.dumps(one) for one in choices)
    return Field(name, kind, str(schema.get("description") or ""), is_required, words)


def _value(field: Field, text: str) -> Any:
    """The argument that was typed; text that is no JSON where JSON is wanted is sent as text."""
    if field.kind != "text":
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return text
