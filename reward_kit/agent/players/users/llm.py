"""A user played by a model, and what all users of that kind share."""

from __future__ import annotations

import functools
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from reward_kit.agent.base.text import excerpt, filled, text_of
from reward_kit.agent.models.answer_parts import add_note, split_thoughts, text_in
from reward_kit.agent.rollout.calls import run_calls
from reward_kit.agent.rollout.rollout import episode_of
from reward_kit.agent.scoring.user_faults import confirms_and_leaves
from reward_kit.errors import SimulatedUserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from reward_kit.agent.base.history import Line
    from reward_kit.agent.base.types import Message
    from reward_kit.agent.rollout.rollout import UserRollout

GREETING = "Hello! What can I do for you today?"
"""The line that the model answers if the user speaks first; it is not in the rollout's messages.

A bundle's ``prompts/greeting.txt`` replaces it."""

TOO_EARLY = """\
The agent has asked you to confirm this and acts only after your answer. If you end the conversation with it,
nothing is done. Answer without ###STOP###; end the conversation once the agent says that it is done.
"""
EMPTY_ANSWERS = 3
MOST_CALLS = 30
"""Answers with tool calls in one turn of the user."""
LONGEST_REFUSAL = 200


class Draft(NamedTuple):
    """A line that may be said, and the thought that led to it, which is never said."""

    line: str
    thought: str = ""


class LLMUser:
    """Says one line at a time, from the row's ``sim_user_prompt`` and what was said aloud so far.

    To the model, the agent's lines are the user's and its own are the assistant's. It sees no system prompt
    of the agent's, no tool calls and no reasoning. A user with tools calls them before it says its line, and
    sees its own calls and their results ever after.
    """

    needs_model = True

    async def respond(self, rollout: UserRollout) -> str:
        """The user's next line; ``SimulatedUserError`` after three answers in a row with nothing to say."""
        return (await self.draft(rollout, self.conversation(rollout))).line

    def fork(self) -> Self:
        """Return a copy for a fork of the rollout."""
        return deepcopy(self)

    def conversation(self, rollout: UserRollout) -> list[Message]:
        """The messages for the user's model: its instructions, and the conversation."""
        greeting = prompt(rollout, "greeting")
        heard = swap_roles(rollout.lines, greeting, rollout.own_messages)
        return [{"role": "system", "content": prompt(rollout, "user")}, *heard]

    def read(self, answer: str) -> Draft:
        """The line in an answer: all of it, without ``<think>`` blocks."""
        line, thought = split_thoughts(answer)
        return Draft(line.strip(), thought)

    async def draft(self, rollout: UserRollout, messages: list[Message]) -> Draft:
        """The answer of the user's model to ``messages``; it is asked again if there is no line in it.

        With ``--guard-user`` it is asked once more if its line confirms something and ends the conversation.
        Tool calls in an answer are made, and it is asked again with the results.
        """
        tools = rollout.tools
        empty = calls = 0
        while empty < EMPTY_ANSWERS:
            asked = add_note(messages) if empty else messages
            completion = await rollout.complete(asked, tools=tools, role="user", again=empty)
            if tools and completion.message.get("tool_calls"):
                if (calls := calls + 1) > MOST_CALLS:
                    raise SimulatedUserError(f"{MOST_CALLS} answers in a row were tool calls, without a line")
                messages = [*messages, *await run_calls(episode_of(rollout), completion.message, "user")]
                continue
            empty += 1
            draft = self.read(text_of(completion.message.get("content")))
            heard = rollout.lines[-1].text if rollout.lines else ""
            if draft.line and confirms_and_leaves(heard, draft.line) and rollout.send_back(draft.line):
                note = prompt(rollout, "user_again", line=draft.line, advice=TOO_EARLY)
                return await self.draft(rollout, add_note(messages, note))
            if draft.line:
                return draft
        refusal = excerpt(text_in(completion.message), LONGEST_REFUSAL)
        raise SimulatedUserError(
            f"{EMPTY_ANSWERS} answers in a row were empty: they held nothing to say "
            f"(finish reason {completion.finish_reason})" + (f"; the last one: {refusal}" if refusal else ""),
            place=f"model {completion.model}" if completion.model else None,
        )


def swap_roles(
    lines: Iterable[Line], greeting: str, own: Mapping[int, list[Message]] | None = None
) -> list[Message]:
    """The conversation as the user's model sees it: it begins with the other side and the roles alternate.

    ``greeting`` comes first if the user speaks first. ``own`` are the user's tool calls and their results, by
    the number of lines before them.
    """
    messages: list[Message] = []
    own, said = own or {}, 0
    for said, (speaker, text) in enumerate(lines, 1):
        messages += own.get(said - 1, ())
        role = "assistant" if speaker == "user" else "user"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{text}"
        else:
            messages.append({"role": role, "content": text})
    messages += own.get(said, ())
    if messages and messages[0]["role"] == "user":
        return messages
    return [{"role": "user", "content": greeting}, *messages]


def prompt(rollout: UserRollout, name: str, **parts: str) -> str:
    """The prompt ``name`` for this rollout, with ``{part}`` replaced by each of ``parts``.

    For ``user`` the row's ``sim_user_template`` comes first; then ``prompts/NAME.txt`` of the bundle, as it
    stands, then the file of that name in this package. ``{instruction}`` is the row's ``sim_user_prompt``.
    """
    instruction = rollout.sim_user_prompt or ""
    own = rollout.prompt_text(name)
    if own is not None:  # an empty file is a prompt as well: react without its form
        return filled(own, instruction=instruction, **parts)
    return filled(_built_in(name), instruction=instruction.strip(), **parts).strip()


@functools.cache
def _built_in(name: str) -> str:
    if name == "greeting":
        return GREETING
    return (Path(__file__).parent / "prompts" / f"{name}.txt").read_text(encoding="utf-8")
