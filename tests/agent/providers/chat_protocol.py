"""OpenAI's protocol of chat completions, with what each provider changes about it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from provider_stub import Answer, Conversation, Json, Request, known, need

FIELDS = (
    "model messages tools tool_choice parallel_tool_calls temperature top_p seed stop n stream max_tokens "
    "max_completion_tokens reasoning_effort presence_penalty frequency_penalty response_format user"
)
DETAILS = [{"type": "reasoning.encrypted", "data": "ZW5j", "id": "r1", "format": "anthropic-claude-v1"}]
MESSAGE_FIELDS = "role content name tool_calls tool_call_id refusal"


@dataclass
class Chat:
    """``POST .../chat/completions``.

    ``path`` is the end of the path. A request may have ``fields`` beside OpenAI's, but none of ``refused``.
    ``thoughts`` is the field of an answer with the model's thoughts, ``returned`` are fields that the history
    may hold beside OpenAI's. ``ids`` is the form of the calls' ids. ``choice``, ``message``, ``usage`` and
    ``top`` are further parts of an answer. With ``marks``, contents may be blocks, marked for a prompt cache.
    With ``details``, answers have ``reasoning_details``, which must come back.
    """

    path: str
    fields: str = ""
    refused: str = ""
    thoughts: str = ""
    returned: str = ""
    ids: str = "call_{:024d}"
    choice: Json = field(default_factory=dict)
    message: Json = field(default_factory=dict)
    usage: Json = field(default_factory=dict)
    top: Json = field(default_factory=dict)
    marks: bool = False
    details: bool = False

    def read(self, request: Request) -> Conversation:
        body = request.body
        need(request.path.endswith(self.path), f"404: {request.path}")
        allowed = set(f"{FIELDS} {self.fields}".split()) - set(self.refused.split())
        known(body, " ".join(allowed), "request")
        open_calls: list[str] = []
        results: list[str] = []
        for number, message in enumerate(body["messages"]):
            details = "reasoning_details" if self.details else ""
            known(message, f"{MESSAGE_FIELDS} {self.returned} {details}", f"messages.{number}")
            need(message["role"] in ("system", "user", "assistant", "tool"), f"messages.{number}: role")
            self._check_content(message.get("content"), message["role"])
            if message["role"] == "tool":
                need(message["tool_call_id"] in open_calls, f"messages.{number}: unknown tool_call_id")
                open_calls.remove(message["tool_call_id"])
                results.append(message["content"])
                continue
            need(not open_calls, f"messages.{number}: tool calls without results {open_calls}")
            returned = message.get("reasoning_details") == DETAILS
            need(not (self.details and message.get("tool_calls")) or returned, "reasoning_details: missing")
            for call in message.get("tool_calls") or ():
                known(call, "id type function index", f"messages.{number}.tool_calls")
                known(call["function"], "name arguments", f"messages.{number}.tool_calls.function")
                need(isinstance(json.loads(call["function"]["arguments"]), dict), "arguments")
                need(re.fullmatch(self._id_pattern(), call["id"]), f"Tool call id was {call['id']}")
                open_calls.append(call["id"])
            need(
                message["role"] != "assistant" or message.get("content") or open_calls,
                f"messages.{number}: must have either content or tool_calls",
            )
        need(not open_calls, f"the last tool calls have no results: {open_calls}")
        for tool in body.get("tools", ()):
            known(tool, "type function", "tools")
            known(tool["function"], "name description parameters strict", "tools.function")
        said = sum(message["role"] == "assistant" for message in body["messages"])
        parallel = body.get("parallel_tool_calls", True)
        return Conversation(bool(body.get("tools")), results, said, parallel)

    def _check_content(self, content: Any, role: str) -> None:
        for block in content if isinstance(content, list) else ():
            need(self.marks and role != "tool", f"content of {role}: not a string")
            known(block, "type text cache_control", "content")

    def _id_pattern(self) -> str:
        return r"[a-zA-Z0-9]{9}" if self.ids == "{:09d}" else r"[\w.-]{1,64}"

    def write(self, answer: Answer, request: Request) -> Json:
        message: Json = {"role": "assistant", "content": answer.text or None, **self.message}
        if self.thoughts:
            message[self.thoughts] = "Think."
        if self.details:
            message["reasoning_details"] = DETAILS
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": self.ids.format(call.number),
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for call in answer.calls
            ]
        reason = "tool_calls" if answer.calls else "stop"
        tokens = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": request.body.get("model", "gpt-4o-mini"),
            "choices": [{"index": 0, "message": message, "finish_reason": reason, **self.choice}],
            "usage": {**tokens, **self.usage},
            **self.top,
        }

    def fault(self, text: str) -> Json:
        return {"error": {"message": text, "type": "invalid_request_error", "code": None, "param": None}}


class Azure(Chat):
    """A deployment in the path is the model, the key is in a header, the version in the query."""

    def read(self, request: Request) -> Conversation:
        need(
            re.fullmatch(r"/openai/deployments/[^/]+/chat/completions", request.path), f"404: {request.path}"
        )
        need("api-version=20" in request.query, "api-version: required")
        need("api-key" in {name.lower() for name in request.headers}, "api-key: required")
        return super().read(request)
