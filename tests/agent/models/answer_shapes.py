"""Answers of the servers that people use: the fields that each sends beside OpenAI's, and what it takes back.

``answer_of`` plays agent and user in a rollout of the flight bundle: two tool calls at once with text beside
them, one more, and a reply. The first message names the server, which checks the history as strictly as the
real one does.
"""

import json
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from stub_server import Answer

Fields = dict[str, Any]

THOUGHT = "They want the morning flight."
NULLS = {"refusal": None, "annotations": None, "audio": None, "function_call": None}
FILTERED = {
    name: {"filtered": False, "severity": "safe"} for name in ("hate", "self_harm", "sexual", "violence")
}
SIGNED = {"extra_content": {"google": {"thought_signature": "CpQBAcu98PA="}}}
DETAILS = {
    "type": "reasoning.encrypted",
    "data": "ZW5j",
    "id": "rs_1",
    "format": "google-gemini-v1",
    "index": 0,
}
SEARCH = {"origin": "SFO", "dest": "JFK", "date": "2025-05-20"}


@dataclass(frozen=True)
class Server:
    """The fields of a server's answers, by the object that holds them.

    Fields of None in ``call`` are left out. ``returned`` must come back with the history as they were sent,
    in the message or in each of its calls; ``taken`` may come back. Any other field that is not of OpenAI's
    requests is refused.
    """

    message: Fields = field(default_factory=dict)
    call: Fields = field(default_factory=dict)
    choice: Fields = field(default_factory=dict)
    usage: Fields = field(default_factory=dict)
    answer: Fields = field(default_factory=dict)
    returned: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    finish_reason: str = "tool_calls"
    arguments_are_objects: bool = False
    thinks_in_parts: bool = False
    has_null_calls: bool = False


SERVERS = {
    # vLLM 0.17 with --reasoning-parser; it refuses a tool call of a thinking model without its reasoning
    "vllm": Server(
        message={**NULLS, "reasoning": THOUGHT},
        choice={"logprobs": None, "stop_reason": None, "token_ids": None},
        usage={"prompt_tokens_details": None},
        answer={
            "service_tier": None,
            "system_fingerprint": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "kv_transfer_params": None,
        },
        returned=("reasoning",),
    ),
    # SGLang 0.5
    "sglang": Server(
        message={"reasoning_content": None},
        call={"index": -1},
        choice={"logprobs": None, "matched_stop": 151645},
        usage={"prompt_tokens_details": None, "reasoning_tokens": 0},
        answer={"metadata": {"weight_version": "default"}},
        has_null_calls=True,
    ),
    # Ollama 0.12, /v1
    "ollama": Server(
        message={"reasoning": THOUGHT},
        call={"index": 0},
        answer={"system_fingerprint": "fp_ollama"},
        returned=("reasoning",),
    ),
    # gateways in front of Ollama's own /api/chat: arguments are objects, calls have neither id nor type
    "ollama-gateway": Server(
        call={"id": None, "type": None}, finish_reason="stop", arguments_are_objects=True
    ),
    # llama.cpp b6000, llama-server --jinja
    "llama.cpp": Server(
        message={"reasoning_content": THOUGHT},
        answer={
            "system_fingerprint": "b6000-abc",
            "timings": {"prompt_n": 10, "prompt_ms": 1.5, "predicted_n": 5, "cache_n": 3},
        },
        returned=("reasoning_content",),
    ),
    # LM Studio 0.3
    "lm-studio": Server(
        message={"reasoning": ""},
        choice={"logprobs": None},
        answer={"stats": {}, "system_fingerprint": "qwen3-8b"},
        taken=("reasoning",),
    ),
    # OpenRouter; https://openrouter.ai/docs/use-cases/reasoning-tokens
    "openrouter": Server(
        message={"refusal": None, "reasoning": THOUGHT, "reasoning_details": [DETAILS]},
        call={"index": 0},
        choice={"native_finish_reason": "STOP", "logprobs": None},
        usage={
            "cost": 0.00123,
            "is_byok": False,
            "cost_details": {"upstream_inference_cost": None},
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0, "video_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 20, "image_tokens": 0},
        },
        answer={"provider": "Google AI Studio", "system_fingerprint": None},
        returned=("reasoning", "reasoning_details"),
    ),
    # Groq; its API reference has ``reasoning`` in assistant messages and no ``reasoning_content``
    "groq": Server(
        message={"reasoning": THOUGHT},
        choice={"logprobs": None},
        usage={"queue_time": 0.01, "prompt_time": 0.02, "completion_time": 0.3, "total_time": 0.32},
        answer={"x_groq": {"id": "req_1"}, "usage_breakdown": None, "service_tier": "on_demand"},
        returned=("reasoning",),
    ),
    # DeepSeek V3.2 and V4, thinking; https://api-docs.deepseek.com/guides/thinking_mode: also if it is empty
    "deepseek": Server(
        message={"reasoning_content": ""},
        choice={"logprobs": None},
        usage={
            "prompt_cache_hit_tokens": 64,
            "prompt_cache_miss_tokens": 36,
            "prompt_tokens_details": {"cached_tokens": 64},
            "completion_tokens_details": {"reasoning_tokens": 4},
        },
        returned=("reasoning_content",),
    ),
    # a gateway in front of Mistral's API, mistral-medium with reasoning_effort
    "mistral": Server(
        call={"index": 0, "type": None},
        taken=("reasoning_content",),
        thinks_in_parts=True,
        has_null_calls=True,
    ),
    # Gemini's OpenAI endpoint; https://ai.google.dev/gemini-api/docs/openai: signatures are wanted back
    "gemini": Server(
        call=SIGNED,
        usage={"prompt_tokens_details": None},
        returned=("extra_content",),
        finish_reason="stop",
    ),
    # Azure OpenAI, 2024-10-21
    "azure": Server(
        message={"refusal": None, "annotations": []},
        choice={"logprobs": None, "content_filter_results": FILTERED},
        usage={
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
        answer={
            "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": FILTERED}],
            "system_fingerprint": "fp_1",
        },
    ),
    # a proxy that leaves out all that a client can do without
    "sparse": Server(finish_reason=""),
}
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
OF_REQUESTS = {"role", "content", "name", "refusal", "tool_calls"}
OF_CALLS = {"id", "type", "function"}


def answer_of(request: Fields, place: int) -> Answer:
    """The answer in its turn ``place``, from 0; HTTP 400 for a history that the server would refuse."""
    first, *_ = request["messages"]
    name = first["content"].rpartition("You are served by ")[2].partition("!")[0]
    server = SERVERS[name]
    said = [message for message in request["messages"] if message["role"] == "assistant"]
    if fault := next(filter(None, (_fault(server, message, "tools" in request) for message in said)), None):
        return Answer(status=400, error=fault)
    if "tools" not in request:  # the simulated user's
        return Answer(body=written(name, "###STOP###" if place else "I need a flight."))
    if place == 0:
        booking = {"flight_id": 1, "passenger": "Alice"}
        return Answer(
            body=written(name, "Let me look.", ("search_flights", SEARCH), ("create_booking", booking))
        )
    if place == 1:
        booked = json.loads(request["messages"][-1]["content"])
        return Answer(body=written(name, None, ("pay_booking", {"booking_id": booked["booking_id"]})))
    return Answer(body=written(name, "Booked and paid."))


def written(name: str, text: str | None, *calls: tuple[str, Fields]) -> bytes:
    """The body of an answer."""
    server = SERVERS[name]
    content: Any = text
    if server.thinks_in_parts:
        thinking = {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}], "closed": True}
        content = [thinking, *([{"type": "text", "text": text}] if text else [])]
    message = {"role": "assistant", "content": content, **server.message}
    if calls or server.has_null_calls:
        message["tool_calls"] = [_call(server, *call) for call in calls] or None
    reason = server.finish_reason if calls and server.finish_reason else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason, **server.choice}
    head = {"id": "c1", "object": "chat.completion", "created": 1, "model": name}
    answer = {**head, "choices": [choice], "usage": {**USAGE, **server.usage}, **server.answer}
    return json.dumps({"choices": [{"message": message}]} if name == "sparse" else answer).encode()


def _call(server: Server, name: str, arguments: Fields) -> Fields:
    given = arguments if server.arguments_are_objects else json.dumps(arguments)
    function = {"name": name, "arguments": given}
    call_id = f"{crc32(json.dumps([name, arguments]).encode()):09d}"[-9:]
    call = {"id": call_id, "type": "function", "function": function, **server.call}
    return {key: value for key, value in call.items() if value is not None}


def _fault(server: Server, message: Fields, is_agents: bool) -> str | None:
    """The first thing in an assistant message of the history that the server would refuse."""
    calls = message.get("tool_calls", [])
    of_calls = [name for name in server.returned if name in server.call]
    of_messages = [name for name in server.returned if name not in of_calls]
    unknown = message.keys() - OF_REQUESTS - {*of_messages, *server.taken}
    unknown |= {name for call in calls for name in call.keys() - OF_CALLS - {*of_calls}}
    if unknown:
        return f"messages: property {sorted(unknown)} is unsupported"
    if not all(call["id"] and json.loads(call["function"]["arguments"]).keys() for call in calls):
        return "messages: a tool call needs an id, and arguments that are the text of an object"
    wrong = [name for name in of_messages if message.get(name) != server.message[name]]
    wrong += [name for name in of_calls if any(call.get(name) != server.call[name] for call in calls)]
    return f"{wrong} must be passed back as it was sent" if wrong and is_agents else None
