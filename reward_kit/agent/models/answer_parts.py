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
    reasoning = message.get("reasoning_content")
    return encodable(reasoning).strip() if isinstance(reasoning, str) else ""


def text_in(message: Message) -> str:
    """The text of an answer, or that of the model's refusal if there is no other."""
    text = text_of(message.get("content"))
    fields = message.get("provider_specific_fields")
    if text.strip() or not isinstance(fields, dict):
        return text
    return text_of(fields.get("refusal"))


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
        text = text_in(answer.message)
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
