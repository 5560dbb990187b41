"""A user that thinks before it speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.users.labelled import labelled_draft
from reward_kit.agent.users.llm import LLMUser, asked, turned_round
from reward_kit.agent.users.prompting import prompt

if TYPE_CHECKING:
    from reward_kit.agent.completion import Message
    from reward_kit.agent.rollout import Rollout


class ReactUser(LLMUser):
    """Its model writes a thought and then the line. The line alone is said.

    In the conversation that the model is shown, its own lines keep their thoughts, so that it goes on as it
    began. The stop token counts in the line, not in the thought.
    """

    def __init__(self) -> None:
        self._thoughts: dict[int, str] = {}

    async def respond(self, rollout: Rollout) -> str:
        """The user's next line; ``SimulatedUserError`` after three answers in a row without one."""
        draft = await asked(rollout, self.conversation(rollout), labelled_draft)
        self._thoughts[len(rollout.lines)] = draft.thought
        return draft.line

    def conversation(self, rollout: Rollout) -> list[Message]:
        """The part with the form of the answer, and the conversation with the thoughts so far."""
        form = prompt(rollout.task, "user_react")
        instead = {
            position: as_written(self._thoughts.get(position, ""), line.text)
            for position, line in enumerate(rollout.lines)
            if line.speaker == "user"
        }
        return [
            {"role": "system", "content": f"{prompt(rollout.task, 'user')}\n\n{form}".rstrip()},
            *turned_round(rollout.lines, instead),
        ]


def as_written(thought: str, line: str) -> str:
    """A thought and a line in the form that the model is asked for."""
    said = f"User Response:\n{line}"
    return f"Thought:\n{thought}\n\n{said}" if thought else said
