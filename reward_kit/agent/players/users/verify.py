"""Users whose lines are judged by their model before they are said."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from reward_kit.agent.base.text import text_of
from reward_kit.agent.models.answer_parts import add_note, split_thoughts
from reward_kit.agent.players.users.llm import Draft, LLMUser, prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.base.history import Line
    from reward_kit.agent.base.types import Message
    from reward_kit.agent.rollout.rollout import UserRollout

_GOOD = frozenset({"true", "yes", "good", "correct"})
_BAD = frozenset({"false", "no", "bad", "incorrect"})
_VERDICT = re.compile(r"\b(?:not\s+(?:true|good|correct)|true|yes|good|correct|false|no|bad|incorrect)\b")


class VerifyUser(LLMUser):
    """Drafts a line and has the model judge it, up to three times; if all are refused, the last is said.

    A bare stop token is judged like any line: to end too early is the worst that a user can do. Refused
    drafts are shown while that line is drafted, and never again.
    """

    drafts = 3

    async def respond(self, rollout: UserRollout) -> str:
        """The user's next line; ``SimulatedUserError`` after three answers in a row with nothing to say."""
        advice = ""
        draft = Draft("")
        for number in range(self.drafts):
            messages = self.conversation(rollout)
            if number:
                again = prompt(rollout, "user_again", line=draft.line, advice=advice)
                messages = add_note(messages, again)
            draft = await self.draft(rollout, messages)
            if verdict(await self.review(rollout, "user_verify", draft.line)):
                break
            if number + 1 < self.drafts:
                advice = await self.advice(rollout, draft.line)
        return draft.line

    async def advice(self, _rollout: UserRollout, _refused: str) -> str:
        """Advice for the next draft: none."""
        return ""

    async def review(self, rollout: UserRollout, name: str, line: str) -> str:
        """The model's answer to the prompt ``name`` about a line that may be said next."""
        conversation, messages = transcript(rollout.lines), labelled(self.conversation(rollout))
        text = prompt(rollout, name, conversation=conversation, messages=messages, line=line)
        completion = await rollout.complete([{"role": "user", "content": text}], role="user")
        return split_thoughts(text_of(completion.message.get("content")))[0]


class ReflectionUser(VerifyUser):
    """Drafts a line and has it judged; if it is refused, the model says why, and what to say instead.

    The second draft is said even if it is refused too: the first is known to be bad, and the second was
    written knowing why.
    """

    drafts = 2

    async def advice(self, rollout: UserRollout, refused: str) -> str:
        """The model's own words on what is wrong with the refused line."""
        reflection = await self.review(rollout, "user_reflect", refused)
        return f"{reflection.strip()}\n" if reflection.strip() else ""


def verdict(answer: str) -> bool:
    """False if the answer says that the line is bad; one that says nothing has nothing against it.

    The first word counts; else the last word of the kind, as models conclude with it.
    """
    words = re.findall(r"[a-z]+", answer.casefold())
    if words[:1] and words[0] in _GOOD | _BAD:
        return words[0] in _GOOD
    found = _VERDICT.findall(" ".join(words))
    return not found or found[-1] in _GOOD


def transcript(lines: Sequence[Line]) -> str:
    """The conversation in a form that names each speaker beyond doubt."""
    if not lines:
        return "(Nothing yet: the customer speaks first.)"
    return "\n\n".join(f"{'Customer' if line.speaker == 'user' else 'Agent'}: {line.text}" for line in lines)


def labelled(messages: Sequence[Message]) -> str:
    """The messages of the user's model with tau-bench's labels: what it hears is the customer's."""
    labels = {"system": "System", "user": "Customer", "assistant": "Agent", "tool": "Result"}
    return "\n".join(
        f"{labels[message['role']]}: {message['content']}" for message in messages if message.get("content")
    )
