"""A user whose lines are judged before they are said."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from reward_kit.agent.history import text_of
from reward_kit.agent.model_clients.answer_parts import split_thoughts
from reward_kit.agent.users.llm import Draft, LLMUser, asked, spoken
from reward_kit.agent.users.prompting import prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.completion import Message
    from reward_kit.agent.history import Line
    from reward_kit.agent.rollout import Rollout

DRAFTS = 3

_GOOD = frozenset({"true", "yes", "good", "correct"})
_BAD = frozenset({"false", "no", "bad", "incorrect"})
_VERDICT = re.compile(r"\b(?:not\s+(?:true|good|correct)|true|yes|good|correct|false|no|bad|incorrect)\b")


class VerifyUser(LLMUser):
    """Drafts a line and has the model judge it, up to three times; if all are refused, the last is said.

    A bare stop token is judged like any line: to leave too early is the worst that a user can do. Refused
    drafts are shown while that line is drafted, and never again.
    """

    drafts = DRAFTS

    async def respond(self, rollout: Rollout) -> str:
        """The user's next line; ``SimulatedUserError`` after three answers in a row with nothing to say."""
        advice = ""
        draft = Draft("")
        for number in range(self.drafts):
            messages = self.conversation(rollout)
            if number:
                add_note(messages, prompt(rollout.task, "user_again", line=draft.line, advice=advice))
            draft = await asked(rollout, messages, spoken)
            if await accepts(rollout, draft.line):
                break
            if number + 1 < self.drafts:
                advice = await self.advice(rollout, draft.line)
        return draft.line

    async def advice(self, _rollout: Rollout, _refused: str) -> str:
        """What helps to do better than the refused line: nothing here."""
        return ""


async def accepts(rollout: Rollout, line: str) -> bool:
    """Whether the user's model finds that the line can be said."""
    return verdict(await review(rollout, "user_verify", line))


async def review(rollout: Rollout, name: str, line: str) -> str:
    """What the model answers to the prompt ``name`` about a line that may be said next."""
    text = prompt(rollout.task, name, conversation=transcript(rollout.lines), line=line)
    completion = await rollout.complete([{"role": "user", "content": text}], role="user")
    return split_thoughts(text_of(completion.message.get("content")))[0]


def verdict(answer: str) -> bool:
    """True unless the answer says that the line is bad; one that says nothing has nothing against it.

    The first word counts; else the last word of the kind, as models conclude with it.
    """
    words = _words(answer)
    if words[:1] and words[0] in _GOOD | _BAD:
        return words[0] in _GOOD
    found = _VERDICT.findall(" ".join(words))
    return not found or found[-1] in _GOOD


def _words(answer: str) -> list[str]:
    return re.findall(r"[a-z]+", answer.casefold())


def transcript(lines: Sequence[Line]) -> str:
    """The conversation in a form in which nobody can take one speaker for the other."""
    if not lines:
        return "(Nothing yet: the customer speaks first.)"
    return "\n\n".join(f"{'Customer' if line.speaker == 'user' else 'Agent'}: {line.text}" for line in lines)


def add_note(messages: list[Message], note: str) -> None:
    """Add a note to the last message, so that the roles go on alternating as strict providers want it."""
    messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']}\n\n{note}"}
