"""What the simulated user did wrong, found without a model in what was said.

A finding is a reason to look; ``decisive`` marks those that may by themselves explain why the task failed.
Rather one too few than one too many: what a person could well say is not reported.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from reward_kit.agent.cut_text import excerpt
from reward_kit.agent.history import History, Line
from reward_kit.agent.rollout import STOP_TOKEN
from reward_kit.agent.users.literals import IDENTIFYING, Known, Said, literals
from reward_kit.agent.users.phrases import (
    answers_again,
    asks,
    plain,
    refuses,
    speaks_as_agent,
    takes_leave,
    thinks_aloud,
    waits,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.calls import ToolCall

UserFaultKind = Literal[
    "stopped_early",
    "contradicts_instruction",
    "invented_detail",
    "speaks_as_agent",
    "repeats_itself",
    "stop_token_in_text",
    "thought_aloud",
]
USER_FAULT_KINDS: tuple[UserFaultKind, ...] = get_args(UserFaultKind)

REPEATED = 3
"""So often the same line is a fault."""

FEW_LINES = 2
"""A user that leaves with its first or second line has hardly said what it wants."""


@dataclass(frozen=True, slots=True)
class UserFault:
    """One fault. ``turn`` is the agent's turn that the line answers, 0 for the line that opens."""

    kind: UserFaultKind
    turn: int
    detail: str
    decisive: bool

    def to_json(self) -> dict[str, Any]:
        """As it stands in a trajectory."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Spoken:
    """A line of the user's: the turn that it answers, and the agent's line before it (None for none)."""

    turn: int
    text: str
    heard: str | None


def find_user_faults(
    *,
    lines: Sequence[Line | tuple[str, str]],
    instruction: str | None,
    tool_calls: Sequence[ToolCall],
    stop_reason: str | None,
    expected: Sequence[Any] = (),
    given: int = 0,
) -> list[UserFault]:
    """The faults of a simulated user, in the order of the conversation. Raises nothing, whatever was said.

    ``lines`` are all of (speaker, text), speaker ``"user"`` or ``"agent"``; the first ``given`` of them stand
    in the row and are nobody's fault. ``instruction`` is the row's ``sim_user_prompt`` (None: literals are
    not checked). ``expected`` is what is missing at the end: row changes of the gold actions that the
    agent did not make, outputs that it did not say. Only whether there is anything counts.
    """
    spoken = _spoken(lines, given)
    faults = [
        *_stopped_early(spoken, tool_calls, stop_reason, missing=bool(expected)),
        *_literal_faults(lines, given, instruction, tool_calls),
        *_repeated(spoken),
    ]
    for each in spoken:
        faults.extend(_line_faults(each))
    return sorted(faults, key=lambda fault: (fault.turn, USER_FAULT_KINDS.index(fault.kind)))


def lines_of(messages: Sequence[dict[str, Any]]) -> list[Line]:
    """What is said aloud in a list of messages; for the ``given`` of a row: ``len(lines_of(...))``."""
    return History(messages).lines


def _spoken(lines: Sequence[Line | tuple[str, str]], given: int) -> list[_Spoken]:
    spoken = []
    turn = 0
    heard: str | None = None
    for position, (speaker, text) in enumerate(lines):
        if speaker != "user":
            turn += position >= given
            heard = text
        elif position >= given:
            spoken.append(_Spoken(turn, text, heard))
    return spoken


def _stopped_early(
    spoken: list[_Spoken], tool_calls: Sequence[ToolCall], stop_reason: str | None, *, missing: bool
) -> Iterator[UserFault]:
    """The user left although something it came for was still open, and the agent was still at it.

    An agent that refuses, or that says it is done when it is not, has failed by itself.
    """
    if not missing or stop_reason != "user_stop" or not spoken:
        return
    last = spoken[-1]
    if last.heard is not None and refuses(last.heard):
        return
    hardly_begun = not tool_calls and len(spoken) <= FEW_LINES
    if len(spoken) == 1 and not last.turn:
        why = "left before the agent had said a word"
    elif asks(last.text.replace(STOP_TOKEN, "")):
        why = "left while it was asking for something"
    elif last.heard is not None and (waits(last.heard) or (hardly_begun and asks(last.heard))):
        why = "left instead of answering the agent"
    else:
        return
    yield UserFault("stopped_early", last.turn, f"{why}, and what it came for was not done", decisive=True)


def _literal_faults(
    lines: Sequence[Line | tuple[str, str]],
    given: int,
    instruction: str | None,
    tool_calls: Sequence[ToolCall],
) -> Iterator[UserFault]:
    """Literals that the user can neither have from its instruction nor have heard."""
    if not instruction:
        return
    told = [*literals(instruction)]
    known = Known([instruction, *(text for _, text in lines[:given])])
    used = Known(str(call.arguments) for call in tool_calls)
    turn = 0
    for speaker, text in lines[given:]:
        if speaker == "user":
            for said in literals(text):
                if said not in known:
                    yield _literal_fault(said, told, turn, used=said in used)
        else:
            turn += 1
        known.add(text)


def _literal_fault(said: Said, told: list[Said], turn: int, *, used: bool) -> UserFault:
    """What the agent never passed to a tool has misled nobody, unless the right one was kept from it."""
    same_role = [each.text for each in told if each.kind == said.kind and each.shape == said.shape]
    if same_role and said.kind in IDENTIFYING:
        detail = f"said {said.text!r}, its instruction says {', '.join(dict.fromkeys(same_role))}"
        return UserFault("contradicts_instruction", turn, detail, decisive=True)
    detail = f"said {said.text!r}, which neither its instruction nor the agent has mentioned"
    return UserFault("invented_detail", turn, detail, decisive=used and said.kind in IDENTIFYING)


def _repeated(spoken: list[_Spoken]) -> Iterator[UserFault]:
    """The same line again and again; answers are passed over, an agent may ask for them again."""
    counts: Counter[str] = Counter()
    for each in spoken:
        line = plain(each.text)
        counts[line] += 1
        if line and counts[line] == REPEATED and not answers_again(each.text):
            decisive = not any(literals(each.text))
            yield UserFault(
                "repeats_itself", each.turn, f"said {REPEATED} times: {_short(each.text)}", decisive
            )


def _line_faults(each: _Spoken) -> Iterator[UserFault]:
    said = each.text.replace(STOP_TOKEN, " ").strip(" \t\n\"'`*.!")
    stops = STOP_TOKEN in each.text
    if speaks_as_agent(said):
        # towards the end, polite models of both sides take over each other's phrases, which harms nobody
        yield UserFault("speaks_as_agent", each.turn, _short(said), decisive=not stops)
    if stops and said and not (takes_leave(said) and each.text.rstrip().endswith(STOP_TOKEN)):
        yield UserFault("stop_token_in_text", each.turn, _short(each.text), decisive=False)
    if thinks_aloud(said):
        yield UserFault("thought_aloud", each.turn, _short(said), decisive=False)


def _short(text: str) -> str:
    return excerpt(text, 120)
