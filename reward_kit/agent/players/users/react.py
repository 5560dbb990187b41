"""A user that thinks before it speaks: its model writes ``Thought: … User Response: …``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from reward_kit.agent.base.types import STOP_TOKEN
from reward_kit.agent.models.answer_parts import joined, split_thoughts
from reward_kit.agent.players.users.llm import Draft, LLMUser, prompt, swap_roles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.base.types import Message
    from reward_kit.agent.rollout.rollout import UserRollout

_LABEL = re.compile(
    r"""
    ^[ \t>*_#`~-]*(thoughts?|user(?:'s)?\ response|response|user|agent)(?:\ ?\#?\d{1,3})?[ \t*_`]*:[*_`]*
    | (?<=[\s.!?)"])[*_`]{0,3}(user(?:'s)?\ response|(?-i:Thought))[*_`]{0,3}:[*_`]*
    """,
    re.VERBOSE | re.MULTILINE | re.IGNORECASE,
)


class ReactUser(LLMUser):
    """Its model writes a thought and then the line; the line alone is said.

    In the conversation that the model is shown, its own lines keep their thoughts, so that it continues in
    the same form. The stop token counts in the line, not in the thought.
    """

    def __init__(self) -> None:
        self._thoughts: dict[int, str] = {}

    async def respond(self, rollout: UserRollout) -> str:
        """Return the next line; raises ``SimulatedUserError`` after three answers in a row without one."""
        draft = await self.draft(rollout, self.conversation(rollout))
        self._thoughts[len(rollout.lines)] = draft.thought
        return draft.line

    def conversation(self, rollout: UserRollout) -> list[Message]:
        """The instructions with the form of the answer, and the conversation with the thoughts so far.

        A bundle's own form with ``{instruction}`` in it is the whole system prompt.
        """
        system = prompt(rollout, "user_react")
        if "{instruction}" not in (rollout.prompt_text("user_react") or ""):
            system = f"{prompt(rollout, 'user')}\n\n{system}".rstrip()
        lines = [
            line._replace(text=as_written(self._thoughts.get(place, ""), line.text))
            if line.speaker == "user"
            else line
            for place, line in enumerate(rollout.lines)
        ]
        heard = swap_roles(lines, prompt(rollout, "greeting"), rollout.own_messages)
        return [{"role": "system", "content": system}, *heard]

    def read(self, answer: str) -> Draft:
        """The line of an answer, and its thoughts."""
        return labelled_draft(answer)


def as_written(thought: str, line: str) -> str:
    """Return a thought and a line in the form that the model is asked for."""
    said = f"User Response:\n{line}"
    return f"Thought:\n{thought}\n\n{said}" if thought else said


def labelled_draft(answer: str) -> Draft:
    """Return the line of an answer ``Thought: … User Response: …``, and its thoughts.

    An answer without labels is a line as a whole. The line is empty if there is only a thought; a stop token
    that stands alone in the last row of such an answer is taken for the line.
    """
    text, hidden = split_thoughts(answer)
    sections = list(_sections(text))
    lines = [content for kind, content in sections if kind == "line" and content]
    before = sections[0][1]
    if not lines and before:
        lines, before = [before], ""
    thoughts = joined(hidden, before, *(content for kind, content in sections if kind == "thought"))
    if lines:
        return Draft(lines[0], thoughts)
    rows = text.split("\n")
    stops = bool(text) and rows[-1].strip(" \t*_`\"'.") == STOP_TOKEN
    return Draft(STOP_TOKEN if stops else "", thoughts)


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield the text before the first label (kind ``before``), then each labelled section by kind."""
    kind, start = "before", 0
    for label in _LABEL.finditer(text):
        yield kind, _clean(text[start : label.start()])
        word = (label[1] or label[2]).lower()
        kind = "thought" if word.startswith("thought") else "agent" if word == "agent" else "line"
        start = label.end()
    yield kind, _clean(text[start:])


def _clean(text: str) -> str:
    """Remove the emphasis and fences that models put around a section."""
    text = re.sub(r"\A```\w*\n|```\Z", "", text.strip()).strip()
    return text if text.strip("*_`#>-~ \t\n") else ""
