"""The parts of a model's answer: its text, its reasoning, and its refusal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from reward_kit.agent.base.text import encodable, excerpt, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.base.types import Message, Model, Usage

T = TypeVar("T")

ASKED = 2
"""Times that a model is asked for an answer that can be used."""
LONGEST_SAID = 120
"""Characters of an unusable answer that its problem quotes."""
WAS_EMPTY = "(Your last answer to this was empty.)"

_TAG = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)


def split_thoughts(text: str) -> tuple[str, str]:
    """Split ``text`` into the visible text and the contents of its ``<think>`` blocks.

    A block that is not closed extends to the end. Text before a closing tag without an opening one is a
    thought too: some chat templates put the opening tag into the prompt.
    """
    said: list[str] = []
    thoughts: list[str] = []
    position = 0
    inside = False
    for tag in _TAG.finditer(text):
        piece = text[position : tag.start()]
        position = tag.end()
        if tag[1] and not inside:
            thoughts += [*said, piece]
            said = []
        else:
            (thoughts if inside else said).append(piece)
        inside = not tag[1]
    if position == 0:
        return text, ""
    (thoughts if inside else said).append(text[position:])
    return "".join(said).strip(), joined(*thoughts)


def joined(*thoughts: str | None) -> str:
    """Join thoughts by line breaks, without the empty ones."""
    return "\n".join(thought.strip() for thought in thoughts if thought and thought.strip())


def reasoning_of(message: Message) -> str:
    """The reasoning that a provider gave beside the content."""
    found = (message.get(name) for name in ("reasoning_content", "reasoning"))
    return next((encodable(text).strip() for text in found if isinstance(text, str) and text), "")


def text_in(message: Message) -> str:
    """The text of an answer, or that of the model's refusal if there is no other."""
    text = text_of(message.get("content"))
    return text if text.strip() else text_of(message.get("refusal"))


def add_note(messages: list[Message], note: str = WAS_EMPTY) -> list[Message]:
    """The messages with a note at the end of the last one; a message of its own would break strict orders."""
    last = messages[-1]
    content = last.get("content")
    if isinstance(content, list):
        return [*messages[:-1], {**last, "content": [*content, {"type": "text", "text": note}]}]
    return [*messages[:-1], {**last, "content": f"{text_of(content)}\n\n{note}"}]


async def usable_answer(
    model: Model,
    messages: list[Message],
    read: Callable[[str], T],
    *,
    again: str,
    count: Callable[[Usage], object],
    seed: int | None = None,
) -> T:
    """The answer to ``messages`` as ``read`` makes it of its text; asked for once more if that fails.

    ``again`` asks again, with ``{problem}`` in it, the text of the ``ValueError`` of ``read``; ``count`` gets
    the usage of each call. Raises ``ValueError`` after ``ASKED`` answers that cannot be used.
    """
    for _ in range(ASKED):
        answer = await model.complete(messages, seed=seed)
        count(answer.usage)
        text = split_thoughts(text_in(answer.message))[0]
        try:
            return read(text)
        except ValueError as error:
            problem = str(error)
        messages = [
            *messages,
            {"role": "assistant", "content": text or "(nothing)"},
            {"role": "user", "content": again.format(problem=problem)},
        ]
    said = excerpt(text, LONGEST_SAID) or f"it is empty (finish reason {answer.finish_reason})"
    raise ValueError(f"{ASKED} answers could not be used, the last because {problem}: {said}")
