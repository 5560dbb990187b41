"""The protocols of Anthropic, Gemini, Bedrock, Cohere and Ollama, as their documentation describes them."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

from provider_stub import Answer, Conversation, Json, Request, known, need

MOST_MARKS = 4
TOKENS = 10
"""Tokens of a block, however long it is."""


class Anthropic:
    """``POST /v1/messages``, with a prompt cache: a request reads the longest beginning that was marked."""

    FIELDS = (
        "model messages max_tokens system tools tool_choice temperature thinking stop_sequences top_p top_k "
        "metadata stream service_tier output_config"
    )

    def __init__(self) -> None:
        self._cached: set[str] = set()

    def read(self, request: Request) -> Conversation:
        body = request.body
        need(request.path == "/v1/messages", f"404: {request.path}")
        need("anthropic-version" in {name.lower() for name in request.headers}, "no anthropic-version")
        known(body, self.FIELDS, "request")
        need(body["max_tokens"] > 0, "max_tokens: required")
        thinks = body.get("thinking", {}).get("type") in ("enabled", "adaptive")
        if thinks:
            need(
                body["thinking"].get("budget_tokens", 0) < body["max_tokens"], "max_tokens: below the budget"
            )
            need(body.get("temperature", 1) == 1, "temperature: 1 only while thinking")
        for tool in body.get("tools", ()):
            known(tool, "name description input_schema cache_control type", "tools")
            need(tool["input_schema"]["type"] == "object", "tools: input_schema.type must be object")
        messages = body["messages"]
        need(messages[0]["role"] == "user", "messages: first message must use the user role")
        results = self._check_turns(messages, thinks=thinks)
        need(body.get("tools") or not results, "tools: required with tool_result blocks")
        said = sum(message["role"] == "assistant" for message in messages)
        parallel = not body.get("tool_choice", {}).get("disable_parallel_tool_use")
        return Conversation(bool(body.get("tools")), results, said, parallel)

    def _check_turns(self, messages: list[Json], *, thinks: bool) -> list[str]:
        open_calls: list[str] = []
        results: list[str] = []
        for number, message in enumerate(messages):
            known(message, "role content", f"messages.{number}")
            blocks = _blocks(message["content"])
            need(blocks, f"messages.{number}: content must not be empty")
            for block in blocks:
                need(
                    block["type"] != "text" or block["text"].strip(),
                    f"messages.{number}: an empty text block",
                )
            answered = [block for block in blocks if block["type"] == "tool_result"]
            need(
                sorted(open_calls) == sorted(block["tool_use_id"] for block in answered),
                f"messages.{number}: tool_use ids {open_calls} without tool_result blocks right after",
            )
            need(blocks[: len(answered)] == answered, f"messages.{number}: tool_result blocks come first")
            results += [json.dumps(block["content"]) for block in answered]
            calls = [block for block in blocks if block["type"] == "tool_use"]
            open_calls = [call["id"] for call in calls]
            for call in calls:
                known(call, "type id name input cache_control", f"messages.{number}")
                need(
                    re.fullmatch(r"[\w-]+", call["id"]) and isinstance(call["input"], dict),
                    f"bad call {call}",
                )
            need(
                not (thinks and calls) or blocks[0] == THOUGHT,
                f"messages.{number}: an answer with calls must begin with its thinking block",
            )
        need(not open_calls, "messages: the last calls have no results")
        return results

    def write(self, answer: Answer, request: Request) -> Json:
        thinks = request.body.get("thinking", {}).get("type") == "enabled"
        content: list[Json] = [THOUGHT] if thinks else []
        content += [{"type": "text", "text": answer.text}] if answer.text else []
        content += [
            {
                "type": "tool_use",
                "id": f"toolu_{call.number:024d}",
                "name": call.name,
                "input": call.arguments,
            }
            for call in answer.calls
        ]
        read, written, fresh = self._tokens(request.body)
        usage = {
            "input_tokens": fresh,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
        }
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": request.body["model"],
            "content": content,
            "stop_reason": "tool_use" if answer.calls else "end_turn",
            "stop_sequence": None,
            "usage": {**usage, "output_tokens": TOKENS},
        }

    def _tokens(self, body: Json) -> tuple[int, int, int]:
        """Tokens read from the cache, written to it, and neither."""
        turns = [_blocks(message["content"]) for message in body["messages"]]
        blocks = [
            *body.get("tools", ()),
            *_blocks(body.get("system", [])),
            *(one for turn in turns for one in turn),
        ]
        return cache_tokens(
            [({**block, "cache_control": None}, "cache_control" in block) for block in blocks], self._cached
        )

    def fault(self, text: str) -> Json:
        return {"type": "error", "error": {"type": "invalid_request_error", "message": text}}


THOUGHT = {"type": "thinking", "thinking": "Think.", "signature": "c2lnbmVk"}


def _blocks(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def cache_tokens(blocks: list[tuple[Json, bool]], cached: set[str]) -> tuple[int, int, int]:
    """Tokens of a request's blocks: read from the cache, written to it, and neither; the marks are stored."""
    marks = [number for number, (_, marked) in enumerate(blocks, 1) if marked]
    need(len(marks) <= MOST_MARKS, f"a maximum of {MOST_MARKS} blocks with cache_control, found {len(marks)}")
    beginnings = {end: json.dumps([block for block, _ in blocks[:end]]) for end in marks}
    # a beginning is also found if it was marked in an earlier request only
    found = [
        end for end in range(1, len(blocks) + 1) if json.dumps([one for one, _ in blocks[:end]]) in cached
    ]
    read = max([end for end in found if marks and end <= max(marks)], default=0)
    cached.update(beginnings.values())
    written = max([read, *marks]) - read
    return TOKENS * read, TOKENS * written, TOKENS * (len(blocks) - read - written)


class Gemini:
    """``POST /v1beta/models/MODEL:generateContent``. Calls come with a signature, which must come back."""

    FIELDS = (
        "contents tools toolConfig systemInstruction generationConfig safetySettings cachedContent labels"
    )
    SETTINGS = "temperature seed maxOutputTokens topP topK stopSequences thinkingConfig candidateCount"
    NOT_IN_SCHEMAS = re.compile(
        r'"(additionalProperties|\$schema|\$ref|const|exclusiveMinimum|prefixItems)":'
    )
    SIGNATURE = "U0lHTkFUVVJF"

    def read(self, request: Request) -> Conversation:
        body = {_camel(name): value for name, value in request.body.items()}
        need(re.search(r"/models/[\w.-]+:generateContent$", request.path), f"404: {request.path}")
        known(body, self.FIELDS, "Invalid JSON payload received")
        settings = {_camel(name): value for name, value in body.get("generationConfig", {}).items()}
        known(settings, self.SETTINGS, "generation_config")
        need(-(2**31) <= settings.get("seed", 0) < 2**31, "generation_config.seed (TYPE_INT32)")
        for tool in body.get("tools", ()):
            for function in next(iter(tool.values())):
                known(function, "name description parameters parametersJsonSchema", "function_declarations")
                wrong = self.NOT_IN_SCHEMAS.search(json.dumps(function.get("parameters")))
                need(not wrong, f"function_declarations: Unknown name {wrong and wrong[1]}")
        open_calls: list[str] = []
        results: list[str] = []
        for content in body["contents"]:
            need(content["role"] in ("user", "model"), "Please use a valid role: user, model.")
            need(content["parts"] and all(content["parts"]), "a part must not be empty")
            parts = [{_camel(name): value for name, value in part.items()} for part in content["parts"]]
            answered = [part["functionResponse"] for part in parts if "functionResponse" in part]
            need(
                open_calls == [response["name"] for response in answered],
                "the function response parts must equal the function call parts of the turn before",
            )
            results += [json.dumps(response) for response in answered]
            calls = [part for part in parts if "functionCall" in part]
            open_calls = [part["functionCall"]["name"] for part in calls]
            need(
                not calls or calls[0].get("thoughtSignature") == self.SIGNATURE,
                "Function call is missing a thought_signature in functionCall parts.",
            )
        need(not open_calls, "the last calls have no responses")
        said = sum(content["role"] == "model" for content in body["contents"])
        return Conversation(bool(body.get("tools")), results, said)

    def write(self, answer: Answer, request: Request) -> Json:
        parts: list[Json] = [{"text": answer.text}] if answer.text else []
        for number, call in enumerate(answer.calls):
            signature = {"thoughtSignature": self.SIGNATURE} if number == 0 else {}
            parts.append({"functionCall": {"name": call.name, "args": call.arguments}, **signature})
        usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
        return {
            "candidates": [
                {"content": {"parts": parts, "role": "model"}, "finishReason": "STOP", "index": 0}
            ],
            "usageMetadata": usage,
            "modelVersion": request.path.rpartition("/")[2].partition(":")[0],
        }

    def fault(self, text: str) -> Json:
        return {"error": {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}}


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda letter: letter[1].upper(), name)


class Converse:
    """Amazon Bedrock's ``POST /model/MODEL/converse``; blocks ``cachePoint`` mark what it caches."""

    FIELDS = (
        "messages system inferenceConfig toolConfig additionalModelRequestFields guardrailConfig "
        "additionalModelResponseFieldPaths performanceConfig promptVariables requestMetadata serviceTier"
    )

    def __init__(self) -> None:
        self._cached: set[str] = set()

    def read(self, request: Request) -> Conversation:
        body, messages = request.body, request.body["messages"]
        need(re.fullmatch(r"/model/[^/]+/converse", request.path), f"404: {request.path}")
        known(body, self.FIELDS, "request")
        known(body.get("inferenceConfig", {}), "maxTokens temperature topP stopSequences", "inferenceConfig")
        known(body.get("additionalModelRequestFields", {}), "thinking tool_choice", "the model")
        need(messages[0]["role"] == "user", "A conversation must start with a user message.")
        tools = body.get("toolConfig", {}).get("tools", [])
        for tool in tools:
            need(
                "nova" not in request.path or "cachePoint" not in tool,
                "toolConfig: extraneous key [cachePoint]",
            )
        open_calls: list[str] = []
        results: list[str] = []
        role = "assistant"
        for message in messages:
            need(message["role"] != role, "A conversation must alternate between user and assistant roles.")
            role, blocks = message["role"], message["content"]
            need(blocks and "cachePoint" not in blocks[0], "content must not be empty")
            kinds = [next(iter(block)) for block in blocks]
            if "nova" in request.path:
                need(("toolResult", "cachePoint") not in pairwise(kinds), "cachePoint here")
            need(all(block.get("text", "x").strip() for block in blocks), "The text field is blank.")
            answered = [block["toolResult"] for block in blocks if "toolResult" in block]
            need(
                open_calls == [one["toolUseId"] for one in answered],
                f"Expected toolResult blocks: {open_calls}",
            )
            results += [json.dumps(one["content"]) for one in answered]
            open_calls = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
            need(all(re.fullmatch(r"[\w-]{1,64}", one) for one in open_calls), f"toolUseId {open_calls}")
            thinks = body.get("additionalModelRequestFields", {}).get("thinking")
            need(not (thinks and open_calls) or "reasoningContent" in blocks[0], "thinking must come first")
        need(not open_calls, "the last calls have no results")
        need(tools or not results, "The toolConfig field must be defined.")
        return Conversation(bool(tools), results, sum(one["role"] == "assistant" for one in messages))

    def write(self, answer: Answer, request: Request) -> Json:
        content: list[Json] = []
        if "thinking" in request.body.get("additionalModelRequestFields", {}):
            content.append({"reasoningContent": {"reasoningText": {"text": "Think.", "signature": "c2ln"}}})
        content += [{"text": answer.text}] if answer.text else []
        for call in answer.calls:
            use = {"toolUseId": f"tooluse_{call.number:020d}", "name": call.name, "input": call.arguments}
            content.append({"toolUse": use})
        body = request.body
        given = [*body.get("toolConfig", {}).get("tools", ()), *body.get("system", ())]
        given += [block for message in body["messages"] for block in message["content"]]
        marked = [
            (block, "cachePoint" in after) for block, after in zip(given, [*given[1:], {}], strict=True)
        ]
        read, written, fresh = cache_tokens(
            [one for one in marked if "cachePoint" not in one[0]], self._cached
        )
        total = read + written + fresh + TOKENS
        usage = {"inputTokens": fresh, "cacheReadInputTokens": read, "cacheWriteInputTokens": written}
        return {
            "output": {"message": {"role": "assistant", "content": content}},
            "stopReason": "tool_use" if answer.calls else "end_turn",
            "usage": {**usage, "outputTokens": TOKENS, "totalTokens": total},
            "metrics": {"latencyMs": 5},
        }

    def fault(self, text: str) -> Json:
        return {"message": text}


class Cohere:
    """``POST /v2/chat``."""

    FIELDS = (
        "model messages tools tool_choice strict_tools temperature seed max_tokens stream p k stop_sequences "
        "frequency_penalty presence_penalty response_format safety_mode thinking"
    )

    def read(self, request: Request) -> Conversation:
        body = request.body
        need(request.path == "/v2/chat", f"404: {request.path}")
        known(body, self.FIELDS, "parameter")
        open_calls: list[str] = []
        results: list[str] = []
        for message in body["messages"]:
            known(message, "role content name tool_calls tool_plan tool_call_id citations", "messages")
            need(message["role"] in ("system", "user", "assistant", "tool"), "role")
            if message["role"] == "tool":
                need(message["tool_call_id"] in open_calls, f"unknown tool call {message['tool_call_id']}")
                open_calls.remove(message["tool_call_id"])
                results.append(json.dumps(message["content"]))
                continue
            need(not open_calls, f"tool calls without results: {open_calls}")
            open_calls = [call["id"] for call in message.get("tool_calls") or ()]
            need(open_calls or message["content"], "all elements in messages must have content or tool calls")
        need(not open_calls, f"tool calls without results: {open_calls}")
        said = sum(message["role"] == "assistant" for message in body["messages"])
        return Conversation(bool(body.get("tools")), results, said)

    def write(self, answer: Answer, request: Request) -> Json:
        message: Json = {"role": "assistant"}
        if answer.calls:
            functions = [
                {"name": call.name, "arguments": json.dumps(call.arguments)} for call in answer.calls
            ]
            ids = [f"{call.name}_{call.number:012d}" for call in answer.calls]
            calls = [
                {"id": i, "type": "function", "function": f} for i, f in zip(ids, functions, strict=True)
            ]
            message |= {"tool_plan": answer.text or "I will.", "tool_calls": calls}
        else:
            message["content"] = [{"type": "text", "text": answer.text}]
        tokens = {"input_tokens": 100, "output_tokens": 10}
        reason = "TOOL_CALL" if answer.calls else "COMPLETE"
        usage = {"billed_units": tokens, "tokens": tokens}
        return {"id": "1", "message": message, "finish_reason": reason, "usage": usage}

    def fault(self, text: str) -> Json:
        return {"message": text}


class Ollama:
    """``POST /api/chat``. Contents are texts and arguments objects; unknown fields are ignored."""

    def read(self, request: Request) -> Conversation:
        body, messages = request.body, request.body["messages"]
        need(request.path == "/api/chat", f"404: {request.path}")
        need(isinstance(body.get("options", {}).get("seed", 1), int), "option seed must be of type integer")
        for message in messages:
            need(isinstance(message.get("content", ""), str), "messages.content must be of type string")
            for call in message.get("tool_calls") or ():
                need(isinstance(call["function"]["arguments"], dict), "arguments must be an object")
        results = [message["content"] for message in messages if message["role"] == "tool"]
        said = sum(message["role"] == "assistant" for message in messages)
        return Conversation(bool(body.get("tools")), results, said)

    def write(self, answer: Answer, request: Request) -> Json:
        message: Json = {"role": "assistant", "content": answer.text, "thinking": "Think."}
        if answer.calls:
            message["tool_calls"] = [
                {"function": {"index": number, "name": call.name, "arguments": call.arguments}}
                for number, call in enumerate(answer.calls)
            ]
        counts = {"prompt_eval_count": 100, "eval_count": 10, "total_duration": 1, "load_duration": 1}
        about = {"model": request.body["model"], "created_at": "2026-01-01T00:00:00.1Z"}
        return {**about, "message": message, "done": True, "done_reason": "stop", **counts}

    def fault(self, text: str) -> Json:
        return {"error": text}
