"""Users played by a model: one that answers, one that thinks first, and two whose lines are judged first."""

from __future__ import annotations

import functools
import re
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from reward_kit.agent.base.text import excerpt, filled, text_of
from reward_kit.agent.base.types import STOP_TOKEN
from reward_kit.agent.models.answer_parts import add_note, joined, split_thoughts, text_in
from reward_kit.agent.rollout.calls import run_calls
from reward_kit.agent.rollout.rollout import episode_of
from reward_kit.agent.scoring.user_faults import confirms_and_leaves
from reward_kit.errors import SimulatedUserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from reward_kit.agent.base.history import Line
    from reward_kit.agent.base.types import Message
    from reward_kit.agent.rollout.rollout import UserRollout

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
                empty, calls = 0, calls + 1
                if calls > MOST_CALLS:
                    raise SimulatedUserError(f"{MOST_CALLS} answers in a row were tool calls, without a line")
                messages = [*messages, *await run_calls(episode_of(rollout), completion.message, "user")]
                continue
            empty += 1
            draft = self.read(text_of(completion.message.get("content")))
            heard = rollout.lines[-1].text if rollout.lines else ""
            tokens = episode_of(rollout).task.stop_tokens
            if confirms_and_leaves(heard, draft.line, tokens) and rollout.send_back(draft.line):
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
    ``greeting`` is the line that the model answers if the user speaks first; the rollout does not have it.
    """
    instruction = rollout.sim_user_prompt or ""
    own = rollout.prompt_text(name)
    if own is not None:  # an empty file is a prompt as well: react without its form
        return filled(own, instruction=instruction, **parts)
    return filled(_built_in(name), instruction=instruction.strip(), **parts).strip()


@functools.cache
def _built_in(name: str) -> str:
    return (Path(__file__).parent / "prompts" / f"{name}.txt").read_text(encoding="utf-8")


# -- react

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

    def recall(self, rollout: UserRollout) -> None:
        """Take over the thoughts of the recorded rollout that this one continues."""
        drafts = map(self.read, episode_of(rollout).users_answers)
        known = {draft.line: draft.thought for draft in drafts}
        self._thoughts = {place: known.get(line.text, "") for place, line in enumerate(rollout.lines)}

    def conversation(self, rollout: UserRollout) -> list[Message]:
        """The instructions with the form of the answer, and the conversation with the thoughts so far.

        A bundle's own form with ``{instruction}`` in it is the whole system prompt.
        """
        system = prompt(rollout, "user_react")
        if "{instruction}" not in (rollout.prompt_text("user_react") or ""):
            system = f"{prompt(rollout, 'user')}\n\n{system}".rstrip()
        lines = list(rollout.lines)
        for place, line in enumerate(rollout.lines):
            if line.speaker == "user":
                thought = f"Thought:\n{said}\n\n" if (said := self._thoughts.get(place)) else ""
                lines[place] = line._replace(text=f"{thought}User Response:\n{line.text}")
        heard = swap_roles(lines, prompt(rollout, "greeting"), rollout.own_messages)
        return [{"role": "system", "content": system}, *heard]

    def read(self, answer: str) -> Draft:
        """The line of an answer ``Thought: … User Response: …``, and its thoughts.

        An answer without labels is a line as a whole. The line is empty if there is only a thought; a stop
        token that stands alone in the last row of such an answer is taken for the line.
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
        stops = text.split("\n")[-1].strip(" \t*_`\"'.") == STOP_TOKEN
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


# -- verify and reflection

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
