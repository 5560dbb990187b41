"""Agents whose model writes its actions as text, for models without tool calling: ``act`` and ``react``."""

from __future__ import annotations

import functools
import json
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from reward_kit.agent.base.text import cut, encodable, filled, text_of
from reward_kit.agent.models.answer_parts import joined, reasoning_of, split_thoughts, text_in
from reward_kit.agent.players.agents.text_protocol import (
    RESPOND,
    TextCall,
    TextReply,
    UnusableAnswerError,
    read_answer,
    step_of,
)
from reward_kit.errors import AgentError, BundleError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from reward_kit.agent.base.types import Completion, Message
    from reward_kit.agent.rollout.rollout import Rollout, TaskView

UNUSABLE_ANSWERS = 3
"""Unusable answers in a row that are the agent's error; until then the model is asked to correct them."""

SHOWN = 200
"""Characters of an unusable answer that the error shows."""

NO_ANSWER = "(no answer)"
"""The transcript's text for an empty answer: providers take no empty messages."""


class TextAgent:
    """Asks the model for one action at a time and runs it; the action ``respond`` ends the turn.

    The model sees a transcript in which everything is text. The rollout's history stays in the OpenAI format:
    a thought is the content beside a tool call, or the reasoning beside a reply.
    """

    needs_model = True
    protocol: ClassVar[str]
    """The file in ``prompts/`` with the form of the answers; a bundle's own is the whole system prompt."""

    def __init__(self) -> None:
        self._transcript: list[Message] = []
        self._heard = 0

    def check(self, task: TaskView) -> None:
        """Raise ``BundleError`` if a tool has the name of the action that speaks to the user."""
        if RESPOND in _names(task.tools):
            raise BundleError(
                f"the tool {RESPOND} has the name of the action with which this agent speaks to the user",
                place=task.place,
                remedy="Rename the tool, or choose --agent tool-calling.",
            )

    async def respond(self, rollout: Rollout) -> Message:
        """Return the reply to the user; raises ``AgentError`` after three unusable answers in a row."""
        self._listen(rollout)
        tools = _names(rollout.tools)
        unusable = 0
        while True:
            completion = await rollout.complete(list(self._transcript), tools=[])
            try:
                step = _read(completion.message, tools)
            except UnusableAnswerError as error:
                unusable += 1
                if unusable == UNUSABLE_ANSWERS:
                    raise _unusable(completion, error) from error
                self._correct(text_in(completion.message), error.fault)
                continue
            unusable = 0
            self._transcript.append(_answered(step.text))
            if isinstance(step, TextReply):
                return _reply(completion.message, step)
            self._transcript.append(_observed(await _run(rollout, completion.message, step)))

    def _listen(self, rollout: Rollout) -> None:
        """Append what was said since the last turn; at first, everything that the rollout begins with."""
        messages = rollout.messages
        new = messages[self._heard :]
        self._heard = len(messages)
        if not self._transcript:
            self._transcript = _opening(new, rollout, self.protocol)
            return
        self._transcript += [
            {"role": "user", "content": message["content"]} for message in new if message["role"] == "user"
        ]

    def _correct(self, text: str, fault: str) -> None:
        request = (
            f"Your answer could not be used: {fault}. Nothing was done. Answer again, in the form that was "
            'asked for: after "Action:" one JSON object with "name" and "arguments".'
        )
        self._transcript += [_answered(text.strip()), {"role": "user", "content": request}]


class ActAgent(TextAgent):
    """Each answer of the model is an action: ``react`` without its thoughts."""

    protocol = "act"


class ReactAgent(TextAgent):
    """Each answer of the model is a thought and an action (Yao et al. 2023, ReAct, arXiv 2210.03629)."""

    protocol = "react"


@functools.cache
def _instruction(protocol: str) -> str:
    return (Path(__file__).parent / "prompts" / f"{protocol}.txt").read_text(encoding="utf-8").strip()


def _names(tools: Sequence[dict[str, Any]]) -> set[str]:
    return {tool["function"]["name"] for tool in tools}


def _read(message: Message, tools: Collection[str]) -> TextReply | TextCall:
    """Return the step of an answer; of native tool calls, which were not offered, the first."""
    text = text_in(message)
    for call in message.get("tool_calls") or ():
        function = call.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str) and name.strip():
            said, hidden = split_thoughts(text)
            arguments = function.get("arguments") or "{}"
            shown = written(said, name.strip(), arguments)
            return step_of(name.strip(), arguments, tools, thought=joined(hidden, said), text=shown)
    return read_answer(text, tools)


async def _run(rollout: Rollout, message: Message, step: TextCall) -> str:
    """Announce and make the call; the provider's other fields of the answer are kept with it."""
    call = {"type": "function", "function": {"name": step.name, "arguments": step.arguments}}
    recorded = rollout.record({**message, "content": step.thought or None, "tool_calls": [call]})
    return await rollout.call_tool(step.name, step.arguments, call_id=recorded["tool_calls"][0]["id"])


def _reply(message: Message, step: TextReply) -> Message:
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    thought = joined(reasoning_of(message), step.thought)
    return {**kept, "content": step.said, **({"reasoning_content": thought} if thought else {})}


def _unusable(completion: Completion, error: UnusableAnswerError) -> AgentError:
    shown = json.dumps(cut(text_in(completion.message).strip(), SHOWN), ensure_ascii=False)
    return AgentError(
        f"{UNUSABLE_ANSWERS} answers in a row could not be used; the last: {error.fault} "
        f"(finish reason {completion.finish_reason}, answer {shown})",
        place=f"model {completion.model}" if completion.model else None,
    )


def _opening(messages: Sequence[Message], rollout: Rollout, protocol: str) -> list[Message]:
    """Return the first transcript: policy, tools and the form of answers, then the conversation as text."""
    tools, own = json.dumps(rollout.tools, ensure_ascii=False), rollout.prompt_text(protocol)
    system = list(takewhile(lambda message: message["role"] == "system", messages))
    policy = [text_of(message.get("content")) for message in system]
    if own is not None:
        content = filled(own, policy="\n\n".join(policy), tools=tools)
    else:
        sections = [*policy, f"# Available tools\n\n{tools}", _instruction(protocol)]
        content = "\n\n".join(filter(None, map(str.strip, sections)))
    return [{"role": "system", "content": content}, *_as_text(messages[len(system) :])]


def _as_text(messages: Sequence[Message]) -> Iterator[Message]:
    results = {message["tool_call_id"]: message for message in messages if message["role"] == "tool"}
    for message in messages:
        calls, text = message.get("tool_calls") or (), text_of(message.get("content"))
        if message["role"] in ("system", "user"):
            yield {"role": message["role"], "content": message.get("content")}
        elif message["role"] == "assistant" and not calls:
            yield _answered(written(reasoning_of(message), RESPOND, {"content": text}))
        thought = joined(reasoning_of(message), text)
        for call in calls:
            function = call["function"]
            yield _answered(written(thought, function["name"], function["arguments"]))
            if call["id"] in results:
                yield _observed(text_of(results[call["id"]].get("content")))
            thought = ""


def written(thought: str, name: str, arguments: Any) -> str:
    """Return an action in the form of the protocol; ``arguments`` is JSON text, or a value in its place."""
    try:
        given = json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        given = arguments
    action = f"Action:\n{json.dumps({'name': name, 'arguments': given}, ensure_ascii=False)}"
    return f"Thought:\n{thought}\n{action}" if thought else action


def _answered(text: str) -> Message:
    return {"role": "assistant", "content": encodable(text) or NO_ANSWER}


def _observed(result: str) -> Message:
    return {"role": "user", "content": f"API output: {encodable(result)}"}
