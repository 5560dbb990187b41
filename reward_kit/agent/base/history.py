"""The messages of a rollout, kept valid for strict providers at every moment.

Valid means: each tool call of an assistant message is answered by a tool message with its id before the next
user or assistant message; ids are unique in the whole history; arguments are the JSON text of an object;
names have the letters that providers allow.
"""

from __future__ import annotations

import hashlib
import json
import re
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json

from reward_kit.agent.base.encoding import LONG, parsed_json, plain
from reward_kit.agent.base.text import LONGEST_NAME, encodable, foreign_name, text_of
from reward_kit.agent.base.types import ToolCall
from reward_kit.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reward_kit.agent.base.types import Message

NOT_RUN = "Error: not run, the rollout had ended."
INTERRUPTED = "Error: stopped while it ran, because the rollout ended; nothing it did was kept."

MALFORMED = "malformed_arguments"
"""The key for arguments that are no JSON object: providers parse the history that they are sent."""

MOST_CALLS = 1000
"""Calls in one answer of a usual size."""

_VALID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")


class Line(NamedTuple):
    """A line said aloud, which agent and user hear of each other."""

    speaker: str
    text: str


class History:
    """Messages in the OpenAI format, and beside them the lines that were said aloud.

    ``lines`` leaves out the system prompt, tool calls with the text beside them, observations and reasoning.
    """

    def __init__(self, messages: Iterable[Message]) -> None:
        self.messages: list[Message] = []
        self.lines: list[Line] = []
        self._open: dict[str, str] = {}
        self._used: set[str] = set()
        self._issued = 0
        for message in messages:
            self._append_given(message)

    def fork(self) -> History:
        """Return an independent copy; messages that can no longer change are shared."""
        twin = copy(self)
        vars(twin).update({name: copy(value) for name, value in vars(self).items()})
        if self._open:  # further calls may join the message that announces them
            at = max(place for place, one in enumerate(self.messages) if one["role"] == "assistant")
            twin.messages[at] = {**self.messages[at], "tool_calls": list(self.messages[at]["tool_calls"])}
        return twin

    def _append_given(self, message: Message) -> None:
        """Take a message of the row as it is: its ids are the row author's."""
        calls = message.get("tool_calls") or []
        for call in calls:
            self._used.add(call["id"])
            self._open[call["id"]] = call["function"]["name"]
        if message["role"] == "tool":
            self._open.pop(message.get("tool_call_id", ""), None)
        elif message["role"] in ("user", "assistant") and not calls:
            text = text_of(message.get("content"))
            if text:
                self.lines.append(Line("user" if message["role"] == "user" else "agent", text))
        self.messages.append(message)

    def announce(self, message: Message, *, of_model: bool = False) -> Message:
        """Append an assistant message with tool calls; returned as recorded, with ids made unique.

        Arguments that are not the JSON text of an object are wrapped in one, under ``MALFORMED``. Raises
        ``AgentError`` for any other message; calls of a model may be of any form.
        """
        recorded = _usual_copy(message) or _checked_copy(message, of_model=of_model)
        if self._open:
            self.answer_open_calls()
        for call in recorded["tool_calls"]:
            function = call["function"]
            call["id"] = call_id = self._unique(call.get("id"))
            call["type"] = "function"
            function["name"] = self._open[call_id] = _valid_name(function.get("name"))
            function["arguments"] = _valid_arguments(function.get("arguments"))
        self.messages.append(recorded)
        return recorded

    def call(self, name: str, arguments: dict[str, Any] | str, call_id: str | None) -> str:
        """Announce one call that was not announced by ``announce``; returns the call's id.

        While other calls wait for their observation, it joins their message.
        """
        identifier, name = self._unique(call_id), _valid_name(name)
        self._open[identifier] = name
        function = {"name": name, "arguments": _valid_arguments(arguments)}
        call = {"id": identifier, "type": "function", "function": function}
        if len(self._open) > 1:
            announcing = next(m for m in reversed(self.messages) if m["role"] == "assistant")
            announcing["tool_calls"].append(call)
        else:
            self.messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        return identifier

    def answer(self, call_id: str | None, name: str, arguments: dict[str, Any] | str, content: str) -> str:
        """Append the observation of a call, announced here unless it is open; returns the call's id.

        Both at once keep the history valid.
        """
        if call_id.__class__ is not str or call_id not in self._open:
            call_id = None if call_id is None else _own_id(call_id)
            if call_id is None or call_id not in self._open:
                call_id = self.call(name, arguments, call_id)
        name = self._open.pop(call_id)
        self.messages.append({"role": "tool", "tool_call_id": call_id, "name": name, "content": content})
        return call_id

    def observe(self, call_id: str, content: str) -> None:
        """Append the observation of an open call."""
        name = self._open.pop(call_id)
        self.messages.append({"role": "tool", "tool_call_id": call_id, "name": name, "content": content})

    def say(self, speaker: str, message: Message) -> None:
        """Append a line of the agent or the user."""
        if self._open:
            self.answer_open_calls()
        self.lines.append(Line(speaker, text_of(message.get("content"))))
        self.messages.append(message)

    def reply(self, message: str | Message) -> None:
        """Append the agent's reply; raises ``AgentError`` if it says nothing."""
        if isinstance(message, str):
            message = {"content": message}
        elif not isinstance(message, dict):
            raise AgentError(f"the agent answered with {type(message).__name__}, not a str or a message dict")
        said: Message = plain(message)
        if said.pop("tool_calls", None):
            raise AgentError("the agent answered with tool calls in the message; they go through call_tool")
        text = text_of(said.get("content"))
        if not text.strip():
            raise AgentError("the agent answered with nothing to say")
        self.say("agent", _assistant_message(said, text))

    def answer_open_calls(self) -> None:
        """Answer announced calls that were never run, so that the history stays valid."""
        for call_id in list(self._open):
            self.observe(call_id, NOT_RUN)

    def _unique(self, given: Any) -> str:
        """An id not used before; nine letters and digits, the strictest form a provider asks for."""
        call_id = _own_id(given) if given else ""
        while not call_id or call_id in self._used:
            self._issued += 1
            call_id = f"call{self._issued:05d}"
        self._used.add(call_id)
        return call_id


def _own_id(given: Any) -> str:
    """The id in the history of a call with the id ``given``, which is short enough for providers."""
    if len(text := str(given)) <= LONGEST_NAME:
        return foreign_name(given)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:9]


def shown_text(content: Any) -> str:
    """A message's content for people, with a word for each part that is no text: ``[image_url: https://…]``."""
    if not isinstance(content, list):
        return text_of(content)
    return "\n".join(text for part in content if (text := _shown_part(part)))


def _shown_part(part: Any) -> str:
    text = text_of([part])
    if text or not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return text
    kind = encodable(part["type"])
    value = part.get(kind)
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        return f"[{kind}]"
    if url.startswith("data:"):
        form, _, data = url.removeprefix("data:").partition(",")
        return encodable(f"[{kind}: {form.partition(';')[0]}, {len(data)} characters]")
    return encodable(f"[{kind}: {url}]")


def conversation_text(
    messages: Iterable[Message], *, opening: int = 0, longest_result: int | None = None
) -> str:
    """A conversation for a model to read, a line for each reply, tool call and result.

    The first ``opening`` messages were given; results are cut after ``longest_result`` characters.
    """
    lines = []
    for number, message in enumerate(messages):
        text = shown_text(message.get("content"))
        role = message["role"]
        if role == "tool":
            if longest_result is not None and len(text) > longest_result:
                text = f"{text[:longest_result]}… ({len(text) - longest_result} more characters)"
            lines.append(f"result of {message.get('name', 'the tool')}: {text}")
            continue
        calls = message.get("tool_calls") or ()
        if text:
            aside = " (to itself)" if calls else " (given)" if number < opening else ""
            lines.append(f"{'agent' if role == 'assistant' else role}{aside}: {text}")
        who = "agent" if role == "assistant" else role
        lines += [
            f"{who} calls: {call['function']['name']}({call['function']['arguments']})" for call in calls
        ]
    return "\n".join(lines)


def parse_arguments(arguments: dict[str, Any] | str | None) -> dict[str, Any] | None:
    """The object in a model's arguments text; None if it is no JSON object.

    Nothing, blanks and ``null`` stand for no arguments, as several models write it.
    """
    if isinstance(arguments, dict):
        return arguments
    if not isinstance(arguments, str | None):
        return None
    if not arguments or arguments.isspace():
        return {}
    try:
        parsed = parsed_json(arguments)
    except ValueError:
        return None
    return {} if parsed is None else parsed if isinstance(parsed, dict) else None


def written_arguments(recorded: str) -> str:
    """The text that a model wrote, from the arguments as the history holds them."""
    parsed = parse_arguments(recorded)
    if parsed is not None and parsed.keys() == {MALFORMED} and isinstance(parsed[MALFORMED], str):
        return str(parsed[MALFORMED])
    return recorded


def called(call: Any) -> tuple[str, dict[str, Any] | str]:
    """The tool and the arguments of a call, also of a malformed one.

    The registry answers a name that is missing and arguments that are no object with an error for the model.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return "", ""
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(arguments, str | dict | None):
        arguments = json.dumps(arguments, default=str)
    return name if isinstance(name, str) else "", arguments or ""


def calls_in(messages: Sequence[Message]) -> Iterator[ToolCall]:
    """The agent's calls that were run, as far as the messages tell: without step, turn, time and changes.

    One whose result begins with "Error:" has failed. Results without an id are of the calls without one.
    """
    waiting: list[dict[str, Any]] = []
    for message in messages:
        waiting += message.get("tool_calls") or ()
        call_id, content = message.get("tool_call_id"), text_of(message.get("content"))
        call = next((one for one in waiting if one.get("id") == call_id), None)
        if message["role"] == "tool" and call is not None:
            waiting.remove(call)
            written = written_arguments(call["function"]["arguments"])
            arguments = written if (parsed := parse_arguments(written)) is None else parsed
            name, status = call["function"]["name"], "failed" if content.startswith("Error:") else "ok"
            if content != NOT_RUN:
                yield ToolCall(0, call_id or "", 0, 0, name, arguments, content, status, [], 0.0, 0.0)


def _valid_arguments(arguments: Any) -> str:
    if arguments.__class__ is str:
        try:  # a quarter of the time of ``json``
            if from_json(arguments, allow_inf_nan=False).__class__ is dict:
                return arguments if arguments.isascii() else encodable(arguments)
        except ValueError:
            pass
    parsed = parse_arguments(arguments)
    if parsed is None:
        parsed = {MALFORMED: arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)}
    try:
        text = _ENCODER.encode(parsed)
    except ValueError:  # NaN, infinity
        text = _ENCODER.encode({MALFORMED: json.dumps(parsed, default=str)})
    return text if text.isascii() else encodable(text)


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=str)


def _valid_name(name: Any) -> str:
    """A tool's name as providers take it back; a model may have made up any."""
    if not isinstance(name, str) or not name:
        return "unnamed"
    return name if _VALID.fullmatch(name) else _FORBIDDEN.sub("_", name)[:64]


_MESSAGE = frozenset({"role", "content", "tool_calls"})
_CALL, _FUNCTION, _TEXT = frozenset({"id", "type", "function"}), frozenset({"name", "arguments"}), {str}


def _usual_copy(message: Any) -> Message | None:
    """As ``_checked_copy``, of an answer with nothing but calls and ASCII texts; None for others."""
    if message.__class__ is not dict or not _MESSAGE.issuperset(message):
        return None
    calls, content = message.get("tool_calls"), message.get("content") or ""
    if calls.__class__ is not list or not 0 < len(calls) <= MOST_CALLS:
        return None
    texts, copies = [content], []
    for call in calls:
        if call.__class__ is not dict or call.keys() != _CALL:
            return None
        function = call["function"]
        if function.__class__ is not dict or function.keys() != _FUNCTION:
            return None
        texts += call["id"], call["type"], function["name"], function["arguments"]
        copies.append({**call, "function": {**function}})
    if {*map(type, texts)} != _TEXT or len(together := "".join(texts)) >= LONG or not together.isascii():
        return None
    return {"role": "assistant", "content": content or None, "tool_calls": copies}


def _checked_copy(message: Any, *, of_model: bool) -> Message:
    """A message with tool calls as the history holds it, but for the values of its calls."""
    message = plain(message)
    if not isinstance(message, dict) or not message.get("tool_calls"):
        fault = "record() takes an assistant message with tool calls; respond() returns what is said"
        raise AgentError(fault)
    calls = [*message.pop("tool_calls")]
    for place, call in enumerate(calls):
        if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
            if not of_model:
                raise AgentError('each of the tool_calls is like {"id": ..., "function": {"name": ..., ...}}')
            calls[place] = {**(call if isinstance(call, dict) else {}), "function": {}}
    recorded = _assistant_message(message, text_of(message.get("content")) or None)
    recorded["tool_calls"] = calls
    return recorded


def _assistant_message(message: Message, content: str | None) -> Message:
    """Role and content first, then the fields a provider gave and wants back (reasoning, signatures)."""
    recorded = {"role": "assistant", "content": content}
    for key, one in message.items():
        if one is not None and key not in recorded:
            recorded[key] = one
    return recorded
