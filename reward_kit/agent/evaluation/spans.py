"""A rollout as spans, by OpenTelemetry's semantic conventions for generative AI.

One ``invoke_agent`` span for the rollout, and in it one ``chat`` span for each model call and one
``execute_tool`` span for each tool call. Plain data: OpenTelemetry is not imported.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.history import shown_text
from reward_kit.agent.base.types import UNJUDGED_STOPS
from reward_kit.agent.rollout.outcome import REWARD_ERROR, total_usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.base.types import Message, ModelCall, ToolCall, Usage
    from reward_kit.agent.rollout.trace import Trace

Value = str | int | float | bool | list[str] | None
Attributes = dict[str, Value]

FAULTY_STOPS = frozenset({*UNJUDGED_STOPS, "agent_error", "timeout"})
PROVIDERS = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""Names of providers in the conventions that are not LiteLLM's."""


class Span(NamedTuple):
    """One span: ``started`` in Unix seconds, then its duration; ``error`` describes a failure.

    Attributes that are None are not known. ``judgement`` are those of an event at the end of the span, the
    result of an evaluation.
    """

    name: str
    started: float
    seconds: float
    attributes: Attributes
    error: str | None = None
    is_client: bool = False
    judgement: Attributes | None = None


def spans_of(record: Trace, *, contents: bool) -> Iterator[Span]:
    """The span of the rollout, then those in it; ``contents`` adds messages, arguments and results."""
    yield _rollout(record, contents=contents)
    yield from (_chat(call, record.models, contents=contents) for call in record.model_calls)
    yield from (_tool(call, contents=contents) for call in record.tool_calls)


def _rollout(record: Trace, *, contents: bool) -> Span:
    error, kind = record.error, REWARD_ERROR if record.error is not None else None
    if record.stop_reason in FAULTY_STOPS:
        error, kind = record.stop_detail or record.stop_reason, record.stop_reason
    own = ("eval_id", "row_id", "user", "steps", "turns", "stop_reason", "reward")
    attributes: Attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": record.agent,
        "gen_ai.conversation.id": record.id,
        **{f"reward_kit.{name}": getattr(record, name) for name in own},
        **{f"reward_kit.rollout.{name}": getattr(record, name) for name in ("index", "attempt", "seed")},
        "reward_kit.failure": record.failure["kind"] if record.failure else None,
        "reward_kit.cost": total_usage(record.usage.values()).cost,
        "error.type": kind,
        **(_provider_and_model(record.models["agent"]) if "agent" in record.models else {}),
        **(_usage(record.usage["agent"]) if "agent" in record.usage else {}),
        **(_conversation(record) if contents else {}),
    }
    judgement: Attributes | None = None
    if record.reward is not None:
        reason = (record.result or {}).get("reason")
        judgement = {
            "gen_ai.evaluation.name": "reward",
            "gen_ai.evaluation.score.value": record.reward,
            "gen_ai.evaluation.explanation": reason if contents and isinstance(reason, str) else None,
        }
    name = f"invoke_agent {record.agent}"
    return Span(name, record.started, record.seconds, attributes, error, judgement=judgement)


def _conversation(record: Trace) -> Attributes:
    opening = sum(message.get("role") != "system" for message in record.messages[: record.opening])
    messages = [{"role": message["role"], "parts": list(_parts(message))} for message in record.messages]
    system = [part for message in messages if message["role"] == "system" for part in message["parts"]]
    talk = [message for message in messages if message["role"] != "system"]
    return {
        "gen_ai.system_instructions": _json(system),
        "gen_ai.input.messages": _json(talk[:opening]),
        "gen_ai.output.messages": _json(talk[opening:]),
    }


def _chat(call: ModelCall, models: Mapping[str, str], *, contents: bool) -> Span:
    configured = models.get(call.role) or ""  # with its provider, which the name in a call may lack
    named = _provider_and_model(configured if configured.endswith(f"/{call.model}") else call.model)
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        **named,
        **{f"reward_kit.{name}": getattr(call, name) for name in ("role", "step", "turn")},
        "reward_kit.cached": call.cached or None,
    }
    if call.error is None:
        attributes |= {
            **_usage(call.usage),
            "gen_ai.response.finish_reasons": [call.finish_reason],
            "reward_kit.cost": call.usage.cost,
        }
    else:
        attributes["error.type"] = "model_error"
    if contents and call.answer is not None:
        parts = [{"type": "text", "content": call.answer}]
        answer = {"role": "assistant", "parts": parts, "finish_reason": call.finish_reason}
        attributes["gen_ai.output.messages"] = _json([answer])
    seconds = 0.0 if call.cached else call.seconds  # those of the call that was made once
    name = f"chat {named['gen_ai.request.model']}"
    return Span(name, call.started + call.waited, seconds, attributes, call.error, is_client=True)


def _tool(call: ToolCall, *, contents: bool) -> Span:
    failure = None if call.status == "ok" else call.status
    attributes: Attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.id,
        "gen_ai.tool.type": "function",
        "reward_kit.tool.status": call.status,
        "reward_kit.tool.by": call.by,
        "reward_kit.tool.changed_rows": len(call.changes),
        "reward_kit.step": call.step,
        "reward_kit.turn": call.turn,
        "error.type": failure,
    }
    if contents:
        written = call.arguments if isinstance(call.arguments, str) else _json(call.arguments)
        attributes |= {"gen_ai.tool.call.arguments": written, "gen_ai.tool.call.result": call.content}
        failure = failure and call.content
    return Span(f"execute_tool {call.name}", call.started, call.seconds, attributes, failure)


def _provider_and_model(name: str) -> Attributes:
    """LiteLLM's ``provider/model`` taken apart; a name without a provider is the model alone."""
    provider, slash, model = name.partition("/")
    if not slash:
        return {"gen_ai.request.model": name}
    return {"gen_ai.provider.name": PROVIDERS.get(provider, provider), "gen_ai.request.model": model}


def _usage(usage: Usage) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens or None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens or None,
    }


def _parts(message: Message) -> Iterator[dict[str, Any]]:
    """The content in the form of the conventions: texts, tool calls, answers of tools."""
    content = shown_text(message.get("content"))
    if message["role"] == "tool":
        yield {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}
        return
    if content:
        yield {"type": "text", "content": content}
    for call in message.get("tool_calls") or ():
        yield {"type": "tool_call", "id": call["id"], **call["function"]}


def _json(value: list[Any] | dict[str, Any]) -> str:
    return json.dumps(value, default=str)
