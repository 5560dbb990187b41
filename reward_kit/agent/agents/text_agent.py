"""An agent whose model writes its actions as text: the loop that ``act`` and ``react`` share."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from reward_kit.agent.agents.text_actions import RESPOND, Action
from reward_kit.agent.agents.text_protocol import Call, Reply, UnusableAnswerError, read_answer, step_of
from reward_kit.agent.agents.text_transcript import answered, observed, opening, written
from reward_kit.agent.cut_text import cut
from reward_kit.agent.model_clients.answer_parts import joined, reasoning_of, split_thoughts, text_in
from reward_kit.errors import AgentError, BundleError

if TYPE_CHECKING:
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.completion import Completion, Message
    from reward_kit.agent.rollout import Rollout

UNUSABLE_ANSWERS = 3
"""So many unusable answers in a row are the agent's error; until then the model is told what was wrong."""

SHOWN = 200
"""Characters of an unusable answer that the error shows."""


class TextAgent:
    """Asks the model for one action at a time, and does it; ``respond`` ends the turn.

    The model sees a transcript of its own, in which everything is text. The rollout's history stays in the
    OpenAI format: a thought is the content beside a tool call, or the reasoning beside a reply.
    """

    needs_model = True
    protocol: ClassVar[str]
    """The file in ``prompts/`` that tells the model how to answer."""

    def __init__(self) -> None:
        self._transcript: list[Message] = []
        self._heard = 0

    def check(self, task: Task) -> None:
        """Raise ``BundleError`` where a tool has the name of the action that speaks to the user."""
        if RESPOND in task.registry.tools:
            raise BundleError(
                f"the tool {RESPOND} has the name of the action with which this agent speaks to the user",
                place=task.row.place,
                remedy="Rename the tool, or choose --agent tool-calling.",
            )

    async def respond(self, rollout: Rollout) -> Message:
        """What is said to the user; ``AgentError`` after three unusable answers in a row."""
        self._listen(rollout)
        unusable = 0
        while True:
            completion = await rollout.complete(list(self._transcript), tools=[])
            try:
                step = _read(completion.message, rollout)
            except UnusableAnswerError as error:
                unusable += 1
                if unusable == UNUSABLE_ANSWERS:
                    raise _unusable(completion, error) from error
                self._correct(text_in(completion.message), error.fault)
                continue
            unusable = 0
            self._transcript.append(answered(step.text))
            if isinstance(step, Reply):
                return _reply(completion.message, step)
            self._transcript.append(observed(await _run(rollout, completion.message, step)))

    def _listen(self, rollout: Rollout) -> None:
        """Take over what was said since the last turn; at first, all that the rollout begins with."""
        new = rollout.messages[self._heard :]
        self._heard = len(rollout.messages)
        if not self._transcript:
            self._transcript = opening(new, rollout.tools, instruction(self.protocol))
            return
        self._transcript += [
            {"role": "user", "content": message["content"]} for message in new if message["role"] == "user"
        ]

    def _correct(self, text: str, fault: str) -> None:
        self._transcript += [
            answered(text.strip()),
            {
                "role": "user",
                "content": f"Your answer could not be used: {fault}. Nothing was done. Answer again, in the "
                'form that was asked for: after "Action:" one JSON object with "name" and "arguments".',
            },
        ]


@functools.cache
def instruction(protocol: str) -> str:
    """The text of ``prompts/NAME.txt``."""
    return (Path(__file__).parent / "prompts" / f"{protocol}.txt").read_text(encoding="utf-8").strip()


def _read(message: Message, rollout: Rollout) -> Reply | Call:
    """The step that an answer asks for; of native tool calls, which nobody offered, the first one."""
    tools = rollout.task.registry.tools
    text = text_in(message)
    native = _native(message)
    if native is None:
        return read_answer(text, tools)
    said, hidden = split_thoughts(text)
    thought = joined(hidden, said)
    return step_of(native, tools, thought=thought, text=written(said, native.name, native.arguments))


def _native(message: Message) -> Action | None:
    for call in message.get("tool_calls") or ():
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"].strip():
            given: Any = function.get("arguments")
            return Action(function["name"].strip(), {} if given in (None, "") else given)
    return None


async def _run(rollout: Rollout, message: Message, step: Call) -> str:
    """Announce and make the call; what the provider gave beside the answer is kept with it."""
    call = {"type": "function", "function": {"name": step.name, "arguments": step.arguments}}
    recorded = rollout.record({**message, "content": step.thought or None, "tool_calls": [call]})
    return await rollout.call_tool(step.name, step.arguments, call_id=recorded["tool_calls"][0]["id"])


def _reply(message: Message, step: Reply) -> Message:
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
