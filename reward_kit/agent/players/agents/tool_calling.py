"""A model with native tool calling, alone or with worked examples before the conversation."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.base.text import encodable, text_of
from reward_kit.agent.bundles.files import read_text
from reward_kit.agent.models.answer_parts import add_note, joined, reasoning_of, split_thoughts, text_in
from reward_kit.agent.rollout.calls import run_calls
from reward_kit.agent.rollout.rollout import episode_of
from reward_kit.agent.rows.field_checks import message_faults, show
from reward_kit.agent.rows.task_row import field_name
from reward_kit.errors import AgentError, BundleError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reward_kit.agent.base.types import Message
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.rollout.rollout import Rollout, TaskView

EMPTY_ANSWERS = 3
"""Empty answers in a row that are unusable output; until then the model is asked again, a step each."""


class ToolCallingAgent:
    """Asks the model, runs the tools it calls, and asks again until an answer calls none: that is the reply.

    Text beside tool calls stays in the history and is not shown to the user, and neither are thoughts in
    ``<think>`` blocks. Without parallel tool calls only the first call of an answer counts, and the history
    shows only that one.
    """

    needs_model = True

    async def respond(self, rollout: Rollout) -> Message:
        """The assistant message with the reply, reasoning fields included."""
        episode, empty = episode_of(rollout), 0
        while True:
            messages = self.messages(rollout)
            if empty:
                messages = add_note(rollout.messages if messages is None else messages)
            completion = await episode.complete(messages, again=empty)
            message = completion.message
            if message.get("tool_calls"):
                empty = 0
                await run_calls(episode, message)
                continue
            reply = _reply(message)
            if reply["content"]:
                return reply
            empty += 1
            if empty == EMPTY_ANSWERS:
                raise AgentError(
                    f"{EMPTY_ANSWERS} answers in a row held neither text nor a tool call "
                    f"(finish reason {completion.finish_reason})",
                    place=f"model {completion.model}" if completion.model else None,
                )

    def messages(self, _rollout: Rollout) -> list[Message] | None:
        """The messages for the model; None for the rollout's own."""
        return None


def _reply(message: Message) -> Message:
    """The message without thoughts."""
    said, thought = split_thoughts(text_in(message))
    reply = {**message, "content": said if said.strip() else ""}
    reply.pop("refusal", None)  # it is the content
    if thought:
        reply["reasoning_content"] = joined(reasoning_of(message), thought)
    return reply


# -- examples

EXAMPLES = 5
"""Example conversations that are shown in a rollout."""

FORM = (
    'Each line is an object with "messages_display", a conversation as text, '
    'or "messages", a list of messages in the OpenAI format.'
)


class FewShotAgent(ToolCallingAgent):
    """``tool-calling`` whose model also sees a few of the ``displays``, drawn by the rollout's seed.

    They follow the system prompt for the model alone: the recorded history keeps the row's own.
    """

    def __init__(self, displays: Sequence[str]) -> None:
        self._displays = displays

    @classmethod
    def configured(
        cls,
        config: EvaluationConfig,
        tasks: Sequence[TaskView],  # noqa: ARG003 - the hook's form
    ) -> Callable[[], FewShotAgent]:
        """Return a maker of agents with the displays of ``--few-shot-displays``, which are read once.

        Raises ``UsageError`` if the option is missing, ``BundleError`` for a faulty file.
        """
        if config.few_shot_displays is None:
            raise UsageError(
                "the agent few-shot needs example conversations",
                remedy=f"Name a .jsonl file with --few-shot-displays. {FORM}",
            )
        displays = read_displays(config.few_shot_displays)
        return lambda: cls(displays)

    def messages(self, rollout: Rollout) -> list[Message]:
        """Return the rollout's messages, with the examples after the system prompt."""
        drawn = self.drawn(rollout.seed)
        shown = "\n\n".join(f"Example {number}:\n{text}" for number, text in enumerate(drawn, 1))
        messages = rollout.messages
        policy = ""
        if messages and messages[0]["role"] == "system":
            policy = f"{text_of(messages.pop(0)['content'])}\n\n"
        return [{"role": "system", "content": f"{policy}{shown}"}, *messages]

    def drawn(self, seed: int) -> list[str]:
        """Return the examples for a rollout of this seed; all of them, shuffled, if there are too few."""
        chance = random.Random(f"few-shot {seed}")  # noqa: S311 - repeatable is what it must be
        return chance.sample(self._displays, min(EXAMPLES, len(self._displays)))


def read_displays(path: str | Path) -> list[str]:
    """Return the conversations in a file, as text, in its order; blank lines are skipped.

    Raises ``BundleError`` with the file and line of the first fault.
    """
    lines = read_text(Path(path)).split("\n")  # other line ends may be inside of a JSON string
    displays = [_display(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not displays:
        raise BundleError("holds no example conversation", place=str(path), remedy=FORM)
    return displays


def _display(line: str, place: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"is not valid JSON: {error}", place=place, remedy=FORM) from None
    given = value if isinstance(value, dict) else {}
    text, messages = given.get("messages_display"), given.get("messages")
    if isinstance(text, str) and text.strip():
        return encodable(text.strip())
    if not isinstance(messages, list):
        raise BundleError(f"{show(value)} is no example conversation", place=place, remedy=FORM)
    for way, fault in message_faults(messages):
        raise BundleError(f"{field_name(('messages', *way))}: {fault}", place=place)
    display = "\n".join(line for message in messages for line in _lines(message))
    if not display:
        raise BundleError("nobody says anything in these messages", place=place, remedy=FORM)
    return display


def _lines(message: Message) -> Iterator[str]:
    """Yield a message as text; nothing of a system prompt, since the agent has its own row's."""
    text = text_of(message.get("content")).strip()
    speaker = {"user": "User", "assistant": "Agent", "tool": "Tool result"}.get(message["role"])
    if speaker and text:
        yield f"{speaker}: {text}"
    for call in message.get("tool_calls") or ():
        yield f"Agent calls {call['function']['name']} with {call['function']['arguments']}"
