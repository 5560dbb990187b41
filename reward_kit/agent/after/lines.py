"""Exported rollouts as lines: their columns, and conversations in the formats of training libraries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, get_args

from reward_kit.agent.base.encoding import as_json
from reward_kit.agent.base.history import parse_arguments
from reward_kit.agent.models.answer_parts import calls_with_tokens, reasoning_of
from reward_kit.agent.rollout.lesson import lesson_of
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.base.types import Message
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.store.stored_evaluation import StoredEvaluation

Format = Literal["full", "openai", "trl", "tokens"]
FORMATS: tuple[Format, ...] = get_args(Format)
OPENAI_COLUMNS = ("messages", "tools", "parallel_tool_calls")
"""All that a line of OpenAI's fine-tuning may have (``FineTuneChatRequestInput`` of its OpenAPI document)."""
COLUMNS = (
    *OPENAI_COLUMNS,
    *("reward", "metrics", "reason", "row_rewards"),
    *("row_id", "rollout", "eval_id", "id", "model", "agent", "user", "seed"),
    *("stop_reason", "stop_detail", "error", "failure", "user_faults", "steps", "turns", "opening"),
    *("seconds", "model_seconds", "waited_seconds", "usage", "file"),
)
TOKEN_COLUMNS = (
    *("node_id", "prompt_token_ids", "completion_token_ids", "per_token_logps", "loss_mask"),
    *("request", "response", "metadata"),
)
"""The fields of ``TrainingTurn`` of OpenEnv, which allows no other."""
_OPENAI_KEYS = {
    "assistant": ("role", "content", "name", "refusal", "tool_calls", "weight"),
    "tool": ("role", "content", "tool_call_id"),
}
_OPENAI_OTHERS = ("role", "content", "name")
_TEMPLATE_KEYS = ("tool_calls", "tool_call_id", "name")


def line_of(
    stored: StoredEvaluation,
    outcome: Outcome,
    record: Trace,
    row_rewards: Sequence[float],
    layout: Format,
) -> dict[str, Any] | None:
    """At least ``COLUMNS`` of a rollout; None if it is for training and the agent says and calls nothing.

    Raises ``StorageError`` for a record that is damaged.
    """
    try:
        messages = conversation(record.messages, record.opening, layout)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        fault = f"is a damaged trace of a rollout: {error!r}"
        raise StorageError(fault, place=str(record.path)) from error
    if messages is None:
        return None
    return {
        **as_json(outcome),
        "messages": messages,
        "tools": stored.tools_of(outcome.row_id),
        "parallel_tool_calls": stored.parallel_tool_calls(outcome.row_id),
        "reason": (record.result or {}).get("reason"),
        "row_rewards": row_rewards,
        "rollout": outcome.index,
        "eval_id": stored.eval_id,
        "model": record.models.get("agent"),
        "agent": record.agent,
        "user": record.user,
        "opening": record.opening,
        "usage": {role: as_json(usage) for role, usage in outcome.usage.items()} or None,
    }


def known_columns(layout: Format) -> tuple[str, ...]:
    """The columns of a format."""
    return {"openai": OPENAI_COLUMNS, "tokens": TOKEN_COLUMNS}.get(layout, COLUMNS)


def token_lines(stored: StoredEvaluation, outcome: Outcome, record: Trace) -> list[dict[str, Any]]:
    """``TOKEN_COLUMNS`` of each model call of the agent; empty unless the tokens of all were kept.

    A request or response is empty if the messages of the rollout do not show it: an agent may send others.
    """
    calls = [call for call in record.model_calls if call.role == "agent" and call.error is None]
    kept = list(calls_with_tokens(calls))
    if len(kept) < len(calls) or any(len(one.logprobs) != len(one.completion) for one, _ in kept):
        return []
    reward, reason = lesson_of(record)
    about = {"eval_id": stored.eval_id, "row_id": outcome.row_id, "rollout": outcome.index}
    lines = []
    for number, (call, (tokens, prompt)) in enumerate(zip(calls, kept, strict=True)):
        after = kept[number + 1][0].sent if number + 1 < len(kept) else len(record.messages)
        request, message = {}, None
        if (sent := tokens.sent) is not None:
            request = {"messages": record.messages[:sent], "tools": stored.tools_of(outcome.row_id) or []}
            message = record.messages[sent] if after is not None and after > sent else None
        choice = {"message": message, "finish_reason": call.finish_reason}
        values = (
            *(f"{outcome.id}/{number}", prompt, tokens.completion, tokens.logprobs),
            [0] * len(prompt) + [1] * len(tokens.completion),
            *(request, {"choices": [choice]} if message else {}),
            {**about, "model": call.model, "reward": reward, "reason": reason},
        )
        lines.append(dict(zip(TOKEN_COLUMNS, values, strict=True)))
    return lines


def conversation(messages: Sequence[Message], opening: int, layout: Format) -> list[Message] | None:
    """The messages in a format; None if it is for training and the agent says and calls nothing.

    The first ``opening`` messages were there before anybody spoke. Formats for training end with the agent's
    last message. Raises ``KeyError`` or ``TypeError`` for what is no message.
    """
    roles = [message["role"] for message in messages]
    if layout == "full":
        return list(messages)
    end = len(messages)
    while end > opening and roles[end - 1] != "assistant":
        end -= 1
    if end <= opening:
        return None
    return [_of_format(message, layout) for message in messages[:end]]


def _of_format(message: Message, layout: Format) -> Message:
    """The keys that a format has; arguments are text for OpenAI, and objects for templates.

    Most templates would write text within text, and a content of None as a word.
    """
    if layout == "openai":
        keys, form = _OPENAI_KEYS.get(message["role"], _OPENAI_OTHERS), _text
        kept = {key: message[key] for key in keys if message.get(key) is not None}
    else:
        form = _object
        kept = {"role": message["role"], "content": message.get("content") or ""}
        kept |= {"reasoning_content": thought} if (thought := reasoning_of(message)) else {}
        kept |= {key: message[key] for key in _TEMPLATE_KEYS if message.get(key)}
    if kept.get("tool_calls"):
        kept["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": form(call["function"]["arguments"]),
                },
            }
            for call in kept["tool_calls"]
        ]
    return kept


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _object(arguments: Any) -> Any:
    parsed = parse_arguments(arguments)
    return arguments if parsed is None else parsed
