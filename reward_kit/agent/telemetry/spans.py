"""A rollout as spans, by OpenTelemetry's semantic conventions for generative AI.

One ``invoke_agent`` span for the rollout, and in it one ``chat`` span for each model call and one
``execute_tool`` span for each tool call. Plain data: OpenTelemetry is not imported.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.base.history import shown_text
from reward_kit.agent.base.types import UNJUDGED_STOPS
from reward_kit.agent.records.outcome import REWARD_ERROR, total_usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.base.types import Message, ModelCall, ToolCall, Usage
    from reward_kit.agent.records.rollout_record import RolloutRecord

Value = str | int | float | bool | list[str]

FAULTY_STOPS = frozenset({*UNJUDGED_STOPS, "agent_error", "timeout"})
NANOSECONDS = 1_000_000_000
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


@dataclass(slots=True)
class SpanData:
    """One span, its times in nanoseconds of Unix time; ``error`` describes a failure.

    ``events`` are names and attributes, at the end of the span.
    """

    name: str
    kind: Literal["internal", "client"]
    started: int
    ended: int
    attributes: dict[str, Value]
    error: str | None = None
    events: list[tuple[str, dict[str, Value]]] = field(default_factory=list)


def spans_of(record: RolloutRecord, *, contents: bool) -> list[SpanData]:
    """The span of the rollout, then those in it; ``contents`` adds messages, arguments and results."""
    calls = [
        *(_chat(call, record.models, contents=contents) for call in record.model_calls),
        *(_tool(call, contents=contents) for call in record.tool_calls),
    ]
    return [_rollout(record, contents=contents), *sorted(calls, key=lambda span: span.started)]


def _rollout(record: RolloutRecord, *, contents: bool) -> SpanData:
    attributes: dict[str, Value | None] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": record.agent,
        "gen_ai.conversation.id": record.id,
        "reward_kit.eval_id": record.eval_id,
        "reward_kit.row_id": record.row_id,
        "reward_kit.rollout.index": record.index,
        "reward_kit.rollout.attempt": record.attempt,
        "reward_kit.rollout.seed": record.seed,
        "reward_kit.user": record.user,
        "reward_kit.steps": record.steps,
        "reward_kit.turns": record.turns,
        "reward_kit.stop_reason": record.stop_reason,
        "reward_kit.reward": record.reward,
        "reward_kit.failure": record.failure["kind"] if record.failure else None,
        "reward_kit.cost": total_usage(record.usage.values()).cost,
        **(_provider_and_model(record.models["agent"]) if "agent" in record.models else {}),
        **(_usage(record.usage["agent"]) if "agent" in record.usage else {}),
    }
    if contents:
        given = record.fields.get("initial_messages") or ()
        opening = sum(message.get("role") != "system" for message in given)
        system = [part for each in record.messages if each["role"] == "system" for part in _parts(each)]
        talk = [
            {"role": message["role"], "parts": list(_parts(message))}
            for message in record.messages
            if message["role"] != "system"
        ]
        attributes["gen_ai.system_instructions"] = _json(system)
        attributes["gen_ai.input.messages"] = _json(talk[:opening])
        attributes["gen_ai.output.messages"] = _json(talk[opening:])
    error = record.error
    if record.stop_reason in FAULTY_STOPS:
        error = record.stop_detail or record.stop_reason
        attributes["error.type"] = record.stop_reason
    elif error is not None:
        attributes["error.type"] = REWARD_ERROR
    name = f"invoke_agent {record.agent}"
    span = _span(name, "internal", record.started, record.seconds, attributes, error)
    if record.reward is not None:
        reason = (record.result or {}).get("reason")
        event: dict[str, Value] = {
            "gen_ai.evaluation.name": "reward",
            "gen_ai.evaluation.score.value": record.reward,
        }
        if contents and isinstance(reason, str):
            event["gen_ai.evaluation.explanation"] = reason
        span.events.append(("gen_ai.evaluation.result", event))
    return span


def _chat(call: ModelCall, models: Mapping[str, str], *, contents: bool) -> SpanData:
    configured = models.get(call.role) or ""  # with its provider, which the name in a call may lack
    named = _provider_and_model(configured if configured.endswith(f"/{call.model}") else call.model)
    attributes: dict[str, Value | None] = {
        "gen_ai.operation.name": "chat",
        **named,
        "reward_kit.role": call.role,
        "reward_kit.step": call.step,
        "reward_kit.turn": call.turn,
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
    return _span(name, "client", call.started + call.waited, seconds, attributes, call.error)


def _tool(call: ToolCall, *, contents: bool) -> SpanData:
    failed = call.status != "ok"
    attributes: dict[str, Value | None] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.id,
        "gen_ai.tool.type": "function",
        "reward_kit.tool.status": call.status,
        "reward_kit.tool.changed_rows": len(call.changes),
        "reward_kit.step": call.step,
        "reward_kit.turn": call.turn,
        "error.type": call.status if failed else None,
    }
    if contents:
        written = call.arguments if isinstance(call.arguments, str) else _json(call.arguments)
        attributes |= {"gen_ai.tool.call.arguments": written, "gen_ai.tool.call.result": call.content}
    error = (call.content if contents else call.status) if failed else None
    return _span(f"execute_tool {call.name}", "internal", call.started, call.seconds, attributes, error)


def _span(
    name: str,
    kind: Literal["internal", "client"],
    started: float,
    seconds: float,
    attributes: Mapping[str, Value | None],
    error: str | None,
) -> SpanData:
    begin = int(started * NANOSECONDS)
    known = {name: value for name, value in attributes.items() if value is not None}
    return SpanData(name, kind, begin, begin + int(seconds * NANOSECONDS), known, error)


def _provider_and_model(name: str) -> dict[str, Value | None]:
    """LiteLLM's ``provider/model`` taken apart; a name without a provider is the model alone."""
    provider, slash, model = name.partition("/")
    if not slash:
        return {"gen_ai.request.model": name}
    return {"gen_ai.provider.name": PROVIDERS.get(provider, provider), "gen_ai.request.model": model}


def _usage(usage: Usage) -> dict[str, Value | None]:
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
