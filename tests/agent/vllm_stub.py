"""Answers as vLLM gives them, with token ids and log-probabilities if the request asks for them."""

import json
from collections.abc import Callable
from typing import Any

from stub_server import Answer


def ids_of(text: str) -> list[int]:
    """The tokens of a text: its bytes, as larger numbers."""
    return [1000 + byte for byte in text.encode()]


def prompt_of(request: dict[str, Any]) -> str:
    """The messages as a chat template writes them: each prompt begins with the former one."""
    return "".join(f"<{one['role']}>{written(one)}" for one in request["messages"]) + "<assistant>"


def written(message: dict[str, Any]) -> str:
    """What the model has written, or read, of a message."""
    calls = [one["function"] for one in message.get("tool_calls") or ()]
    return (
        "".join(f"{one['name']}{one['arguments']}" for one in calls) + (message.get("content") or "") + "</>"
    )


def vllm(choose: Callable[[dict[str, Any], int], str | tuple[str, dict[str, Any]]]) -> Any:
    """A script for ``StubServer``: ``choose`` gives a text, or the name and the arguments of a call."""

    def answer(request: dict[str, Any], place: int) -> Answer:
        chosen = choose(request, place)
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "reasoning": None}
        if isinstance(chosen, str):
            message["content"] = chosen
        else:
            function = {"name": chosen[0], "arguments": json.dumps(chosen[1])}
            message["tool_calls"] = [
                {"id": f"chatcmpl-tool-{place}", "type": "function", "function": function}
            ]
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "finish_reason": "stop",
            "stop_reason": None,
        }
        prompt, sampled = ids_of(prompt_of(request)), ids_of(written(message))
        returned = request.get("return_token_ids")
        choice["token_ids"] = sampled if returned else None
        choice["logprobs"] = (
            {"content": [_logprob(token) for token in sampled]} if request.get("logprobs") else None
        )
        body = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": request["model"],
            "choices": [choice],
            "prompt_logprobs": None,
            "prompt_token_ids": prompt if returned else None,
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": len(sampled),
                "prompt_tokens_details": None,
            },
        }
        return Answer(body=json.dumps(body).encode())

    return answer


def _logprob(token: int) -> dict[str, Any]:
    return {"token": chr(token - 1000), "logprob": -token / 8192, "bytes": None, "top_logprobs": []}
