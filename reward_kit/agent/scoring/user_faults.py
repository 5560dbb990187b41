"""Faults of the simulated user, found without a model in what was said.

Tuned for precision: anything that a real user might plausibly say is not flagged. ``decisive`` faults may
explain by themselves why the task failed.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from reward_kit.agent.base.history import History, Line
from reward_kit.agent.base.text import excerpt
from reward_kit.agent.base.types import STOP_TOKEN
from reward_kit.agent.scoring.phrases import (
    is_agents_line,
    is_answer,
    is_goodbye,
    is_refusal,
    is_request,
    is_thought,
    is_waiting,
    normalize,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reward_kit.agent.base.types import ToolCall

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
"""The same line this often is a fault."""
FEW_LINES = 2
"""A user that stops with one of its first lines has hardly said its request."""
FEWEST_DIGITS = 4
"""Shorter numbers are counts, sizes and times, which a user may choose freely."""
LONGEST_QUOTE = 120
_WORD = re.compile(
    r"(?P<email>[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,8})|[$€£]\s?\d[\d,.]*"
    r"|(?P<word>(?<![\w-])\w+(?:[_-]\w+)*)",
    re.ASCII,
)
_ID = re.compile(r"\d+|[a-z_][a-z0-9]*(?:[_-][a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class UserFault:
    """One fault. ``turn`` is the agent's turn that the line answers, 0 for the opening line."""

    kind: UserFaultKind
    turn: int
    detail: str
    decisive: bool

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as in a trajectory."""
        return asdict(self)


class _Spoken(NamedTuple):
    """A user's line: the turn that it answers, and the agent's line before it (None: none)."""

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
    """The faults of a simulated user, in the order of the conversation.

    ``lines`` are pairs (``"user"`` or ``"agent"``, text); the first ``given`` of them come from the row and
    are not checked. ``instruction`` is the row's ``sim_user_prompt`` (None: ids are not checked).
    ``expected`` is what is missing at the end, changes or outputs; only whether it is empty counts.
    """
    spoken = _spoken(lines, given)
    faults = [
        *_stopped_early(spoken, tool_calls, stop_reason, missing=bool(expected)),
        *_wrong_details(lines, given, instruction, tool_calls),
        *_repeated(spoken),
        *(fault for each in spoken for fault in _faults_of_line(each)),
    ]
    return sorted(faults, key=lambda fault: (fault.turn, USER_FAULT_KINDS.index(fault.kind)))


def lines_of(messages: Sequence[dict[str, Any]]) -> list[Line]:
    """The lines that are said aloud in a list of messages."""
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
    """The user stopped while its request was open and the agent was still working on it.

    If the agent refused, or said that it was done, the failure is the agent's.
    """
    if not missing or stop_reason != "user_stop" or not spoken:
        return
    last = spoken[-1]
    if last.heard is not None and is_refusal(last.heard):
        return
    hardly_begun = not tool_calls and len(spoken) <= FEW_LINES
    if len(spoken) == 1 and not last.turn:
        why = "left before the agent had said a word"
    elif is_request(last.text.replace(STOP_TOKEN, "")):
        why = "left while it was asking for something"
    elif last.heard is not None and (is_waiting(last.heard) or (hardly_begun and is_request(last.heard))):
        why = "left instead of answering the agent"
    else:
        return
    yield UserFault("stopped_early", last.turn, f"{why}, and its request was not done", decisive=True)


def _details(text: str) -> Iterator[tuple[str, str]]:
    """The email addresses, ids and long numbers of a text, as (normal form, text)."""
    for found in _WORD.finditer(text):
        word = found[0]
        form = word.casefold().rstrip(".")
        digits = sum(character.isdigit() for character in form)
        if found["email"] or (found["word"] and digits >= FEWEST_DIGITS and _ID.fullmatch(form)):
            yield form, word


def _shape(form: str) -> str:
    """The same for details of one role: ``w12`` and ``w34``; words of three letters in an id are names."""
    return "email" if "@" in form else re.sub(r"[a-z]{3,}", "a", re.sub(r"\d", "9", form))


def _squeezed(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold())


def _wrong_details(
    lines: Sequence[Line | tuple[str, str]],
    given: int,
    instruction: str | None,
    tool_calls: Sequence[ToolCall],
) -> Iterator[UserFault]:
    """Details that the user has neither from its instruction nor from the conversation."""
    if not instruction:
        return
    instructed = dict(_details(instruction))
    known = _squeezed(" ".join([instruction, *(text for _, text in lines[:given])]))
    used = _squeezed(" ".join(str(call.arguments) for call in tool_calls))
    turn = 0
    for speaker, text in lines[given:]:
        turn += speaker != "user"
        for form, word in _details(text) if speaker == "user" else ():
            if _squeezed(form) in known:
                continue
            same_role = [other for key, other in instructed.items() if _shape(key) == _shape(form)]
            if same_role:
                detail = f"said {word!r}, its instruction says {', '.join(same_role)}"
                yield UserFault("contradicts_instruction", turn, detail, decisive=True)
            else:
                detail = f"said {word!r}, which neither its instruction nor the agent has mentioned"
                yield UserFault("invented_detail", turn, detail, decisive=_squeezed(form) in used)
        known += _squeezed(text)


def _repeated(spoken: Iterable[_Spoken]) -> Iterator[UserFault]:
    """The same line again and again, except answers, which an agent may ask for again."""
    counts: Counter[str] = Counter()
    for each in spoken:
        line = normalize(each.text)
        counts[line] += 1
        if line and counts[line] == REPEATED and not is_answer(each.text):
            detail = f"said {REPEATED} times: {excerpt(each.text, LONGEST_QUOTE)}"
            yield UserFault("repeats_itself", each.turn, detail, decisive=not any(_details(each.text)))


def _faults_of_line(each: _Spoken) -> Iterator[UserFault]:
    said = each.text.replace(STOP_TOKEN, " ").strip(" \t\n\"'`*.!")
    stops = STOP_TOKEN in each.text
    quote = excerpt(said, LONGEST_QUOTE)
    if is_agents_line(said):
        # In its last line a polite model takes over the agent's phrases, which does no harm.
        yield UserFault("speaks_as_agent", each.turn, quote, decisive=not stops)
    if stops and said and not (is_goodbye(said) and each.text.rstrip().endswith(STOP_TOKEN)):
        whole = excerpt(each.text, LONGEST_QUOTE)
        yield UserFault("stop_token_in_text", each.turn, whole, decisive=False)
    if is_thought(said):
        yield UserFault("thought_aloud", each.turn, quote, decisive=False)
