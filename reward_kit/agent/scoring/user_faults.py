"""Faults of the simulated user, found without a model in what was said. Only English phrases are known.

Tuned for precision: anything that a real user might plausibly say is not flagged. ``decisive`` faults may
explain by themselves why the task failed.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from reward_kit.agent.base.text import excerpt
from reward_kit.agent.base.types import STOP_TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from reward_kit.agent.base.history import Line
    from reward_kit.agent.base.types import ToolCall

UserFaultKind = Literal[
    "stopped_early",
    "contradicts_instruction",
    "invented_detail",
    "speaks_as_agent",
    "repeats_itself",
    "stop_token_in_text",
    "stop_token_misspelt",
    "thought_aloud",
    "sent_back",
]
USER_FAULT_KINDS: tuple[UserFaultKind, ...] = get_args(UserFaultKind)
REPEATED = 3
"""The same line this often is a fault."""
FEW_LINES = 2
"""A user that stops with one of its first lines has hardly said its request."""
SHORTEST_SENTENCE = 4
"""Lines with fewer words are answers and courtesies, which may be repeated."""
LONGEST_GOODBYE = 40
"""Lines with more words say something besides goodbye."""
FEWEST_DIGITS = 4
"""Shorter numbers are counts, sizes and times, which a user may choose freely."""
LONGEST_QUOTE = 120


def _any_of(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE | re.MULTILINE)


_DETAIL = re.compile(
    r"(?P<email>[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,8})|[$€£]\s?\d[\d,.]*"
    r"|(?P<word>(?<![\w-])\w+(?:[_-]\w+)*)",
    re.ASCII,
)
"""Email addresses, words that may be ids, and amounts, which are passed over."""
_ID = re.compile(r"\d+|[a-z_][a-z0-9]*(?:[_-][a-z0-9]+)*")
_DONE = r"(?:cancell?ed|processed|refunded|modified|updated|exchanged|returned|booked|confirmed|verified)"
_AGENT = _any_of(
    r"\b(?:how|what) (?:can|may|else can) I (?:help|assist|do for)\b",
    r"\banything else (?:that )?I can (?:help|assist|do)\b",
    r"\bI(?:'d| would|'ll|'m| am| can) (?:be )?(?:happy to |glad to |here to )?(?:help|assist) you\b",
    r"\bthank you for (?:contacting|reaching out|calling|choosing)\b",
    r"\bapologi\w+ for (?:the|any) (?:inconvenience|trouble|delay)",
    rf"\b(?:I|we)(?: have|'ve| was able to| just)? (?:now |successfully |just |already )*{_DONE} your\b",
    rf"\byour (?:[\w#-]+ ){{1,4}}(?:has|have) (?:now |been |successfully )*been {_DONE}\b(?!\?)",
    r"\b(?:provide|share|confirm|tell|give) (?:me )?(?:with )?your (?:(?:full|order|user|zip|email) )*"
    r"(?:order|e-?mail|zip|user ?id|account|name|number|code|address|identity)",
    r"\blet me (?:check|look up|pull up|look into|verify|cancel|process|update|modify) your\b",
    r"\A\s*(?:agent|assistant|representative)\s*:",
    # tool calls
    r'\{\s*"(?:name|action|tool|function)"\s*:\s*"[^"]{1,100}"\s*,\s*"(?:arguments|parameters|args|kwargs)"\s*:',
    r"^[ \t*]*(?:action|tool call|observation)\**\s*:",
    r"</?(?:tool_call|function_call)s?\b",
    r"\A\s*[a-z]+(?:_[a-z]+)+\([^()]*\)\s*\Z",
)
"""Phrases that only an agent says: an offer of help, a report of work, a question for data, a tool call."""
_OF_AGENTS = ("do for", "else", "help", "assist", "thank you for", "apologi", "your", ":", "_call", "(")
"""Each phrase has one of these in it."""
_REQUEST = _any_of(
    r"\?",
    r"\b(?:please|kindly) (?:provide|share|confirm|tell|give|let|reply|specify|choose|verify"
    r"|cancel|return|exchange|change|help|check|add|remove|update|book)\b",
    r"\b(?:can|could|may|would) you\b",
    r"\bI(?:'d| would) (?:also |still )?(?:like|want|need)\b",
    r"\bI (?:also |still )?(?:want|need) (?:to|you|my|a|an|the)\b",
    r"\b(?:one moment|a moment|hold on|let me (?:check|look|see|find))\b",
)
_ALL = _any_of(r"\b(?:all|everything|the (?:only|last) thing) (?:that )?I(?:'d)? (?:want|need|like|came)")
_OFFER = _any_of(
    r"\b(?:anything|something|what|any|nothing) (?:else|more|other|further)\b",
    r"\b(?:else|further|other) (?:I can|you need|questions)\b",
    r"\b(?:more|further|additional) (?:help|assistance|questions|requests)\b",
    r"\bneed (?:any |some )?(?:help|assistance|anything)\b",
)
_REFUSAL = _any_of(
    r"\b(?:can(?:not| not|'t)|could(?: not|n't)|unable to|won't|will not|not able to)\b",
    r"\b(?:do|does)(?: not|n't) (?:allow|permit|support|offer|qualify)\b",
    r"\bnot (?:possible|allowed|permitted|eligible)\b|\bunfortunately\b",
    r"\btransfer(?:red|ring)?\b[^\n]{0,60}\b(?:human|agent|representative|colleague)\b",
)
_CONDITION = _any_of(r"\b(?:without|unless|until|before|otherwise)\b")
_CONFIRMED = (
    r"yes|yeah|sure|ok|okay|correct|right|exactly|confirmed|I (?:confirm|do|am)"
    r"|please (?:do|proceed|go|continue)|go ahead|that(?:'s| is) (?:right|correct|fine)"
)
_YES = _any_of(rf"\A\W*(?:{_CONFIRMED})\b")
_ANSWER = _any_of(
    rf"\A\W*(?:{_CONFIRMED}|no|that(?:'s| is) (?:all|it)|thanks|thank you|great|perfect|sounds good|fine)\b",
    r"\b(?:don't|do not|can't|cannot|didn't) (?:\w+ )?(?:know|remember|recall|have|think of)\b",
    r"\ball (?:that )?I (?:know|have|remember|can say)\b",
    r"\b(?:not sure|no idea|forgot)",
)
"""Answers that fit more than one question."""
_GOODBYE = _any_of(
    r"\b(?:thanks|thank you|appreciate|(?:good)?bye|take care|see you)\b",
    r"\bhave a (?:\w+ )?(?:day|evening|night|weekend|one)\b",
    r"\b(?:that|this)(?:'s| is| was| will be) (?:all|everything|it)\b",
)
_THOUGHT = _any_of(
    r"^[ \t>*_#`]*(?:thoughts?|reasoning|user\s+response)[*_`]*\s*:|</?think(?:ing)?>|\bmy instructions?\b"
)
_MISSPELT_STOP = re.compile(r"(?i:#+[ \t]*STOP[ \t]*#+)|\A[\W_]*STOP[\W_]*\Z")


@dataclass(frozen=True, slots=True)
class UserFault:
    """One fault. ``turn`` is the agent's turn that the line answers, 0 for the opening line."""

    kind: UserFaultKind
    turn: int
    detail: str
    decisive: bool


class _Spoken(NamedTuple):
    """A user's line, the turn that it answers, the line before it, and the number of lines before it."""

    turn: int
    text: str
    heard: str
    position: int


def find_user_faults(
    *,
    lines: Sequence[Line | tuple[str, str]],
    instruction: str | None,
    tool_calls: Sequence[ToolCall],
    stop_reason: str | None,
    missing: bool = False,
    sent_back: Mapping[int, str] | None = None,
    given: int = 0,
    shown: str = "",
) -> list[UserFault]:
    """The faults of a simulated user, in the order of the conversation.

    ``lines`` are pairs (``"user"`` or ``"agent"``, text); the first ``given`` of them come from the row and
    are not checked. ``instruction`` is the row's ``sim_user_prompt`` (None: ids are not checked).
    ``missing`` says if a change or an output is missing at the end, ``sent_back`` are lines, by turn, that it
    was not allowed to say. ``shown`` are the results of its own tools.
    """
    straight = [(speaker, _straight(text)) for speaker, text in lines]
    spoken = list(_spoken(straight, given))
    ended = spoken[-1] if spoken and stop_reason == "user_stop" else None  # also by a token of the bundle's
    faults = [
        *(_wrong_details(spoken, straight, instruction, tool_calls, shown) if instruction else ()),
        *_repeated(spoken),
        *(fault for each in spoken for fault in _faults_of_line(each, each is ended)),
        *(
            UserFault("sent_back", turn, excerpt(line, LONGEST_QUOTE), decisive=False)
            for turn, line in (sent_back or {}).items()
        ),
    ]
    unheard = [each for each in spoken if each is not ended]
    faults += (
        UserFault("stop_token_misspelt", each.turn, excerpt(each.text, LONGEST_QUOTE), decisive=False)
        for each in unheard
        if STOP_TOKEN not in each.text and _MISSPELT_STOP.search(each.text)
    )
    if missing and stop_reason == "user_stop" and spoken:
        faults += _stopped_early(spoken, tool_calls)
    return sorted(faults, key=lambda fault: (fault.turn, USER_FAULT_KINDS.index(fault.kind)))


def confirms_and_leaves(heard: str, line: str, tokens: Sequence[str] = (STOP_TOKEN,)) -> bool:
    """True if ``line`` says yes to what the agent asked in ``heard``, and ends with one of the ``tokens``."""
    said = _straight(line)
    for token in tokens:
        said = said.replace(token, "")
    if said == _straight(line):
        return False
    return _asks(_straight(heard)) and any(map(_YES.search, _sentences(said)))


def _straight(text: str) -> str:
    return text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")  # models write either apostrophe


def _asks(heard: str) -> bool:
    """True if the agent asks for an answer; an offer of more help needs none."""
    return any(_is_request(sentence) and not _OFFER.search(sentence) for sentence in _sentences(heard))


def _spoken(lines: Sequence[tuple[str, str]], given: int) -> Iterator[_Spoken]:
    turn, heard = 0, ""
    for position, (speaker, text) in enumerate(lines):
        if speaker != "user":
            turn += position >= given
            heard = text
        elif position >= given:
            yield _Spoken(turn, text, heard, position)


def _stopped_early(spoken: Sequence[_Spoken], tool_calls: Sequence[ToolCall]) -> Iterator[UserFault]:
    """The user stopped while its request was open and the agent was still working on it.

    If the agent refused, or said that it was done, the failure is the agent's.
    """
    turn, text, heard, _ = spoken[-1]
    if any(_REFUSAL.search(sentence) and not _CONDITION.search(sentence) for sentence in _sentences(heard)):
        return
    asked = _asks(heard)
    hardly_begun = not tool_calls and len(spoken) <= FEW_LINES
    if len(spoken) == 1 and not turn:
        why = "left before the agent had said a word"
    elif _is_request(text.replace(STOP_TOKEN, "")):
        why = "left while it was asking for something"
    elif asked or (hardly_begun and _is_request(heard)):
        why = "left instead of answering the agent"
    else:
        return
    yield UserFault("stopped_early", turn, f"{why}, and its request was not done", decisive=True)


def _wrong_details(
    spoken: Iterable[_Spoken],
    lines: Sequence[tuple[str, str]],
    instruction: str,
    tool_calls: Sequence[ToolCall],
    shown: str,
) -> Iterator[UserFault]:
    """Details that the user has neither from its instruction or tools nor from the conversation."""
    instructed, instructions = dict(_details(instruction)), _squeezed(instruction)
    used = _squeezed(" ".join(str(call.arguments) for call in tool_calls))
    said = [_squeezed(text) for _, text in lines]
    for turn, text, _, position in spoken:
        known = "".join([_squeezed(shown), *said[:position]])
        for form, word in _details(text):
            detail = _squeezed(form)
            if detail in instructions or detail in known:
                continue
            if same_role := [other for key, other in instructed.items() if _shape(key) == _shape(form)]:
                fault = f"said {word!r}, its instruction says {', '.join(same_role)}"
                yield UserFault("contradicts_instruction", turn, fault, decisive=True)
            else:
                fault = f"said {word!r}, which neither its instruction nor the agent has mentioned"
                yield UserFault("invented_detail", turn, fault, decisive=detail in used)


def _details(text: str) -> Iterator[tuple[str, str]]:
    """The email addresses, ids and long numbers of a text, as (normal form, text)."""
    for found in _DETAIL.finditer(text):
        form = found[0].casefold().rstrip(".")
        digits = sum(character.isdigit() for character in form)
        if found["email"] or (found["word"] and digits >= FEWEST_DIGITS and _ID.fullmatch(form)):
            yield form, found[0]


def _shape(form: str) -> str:
    """The same for details of one role: ``w12`` and ``w34``; words of three letters in an id are names."""
    return "email" if "@" in form else re.sub(r"[a-z]{3,}", "a", re.sub(r"\d", "9", form))


def _squeezed(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold())


def _repeated(spoken: Sequence[_Spoken]) -> Iterator[UserFault]:
    """The same line again and again, except answers, which an agent may ask for again."""
    counts: Counter[str] = Counter()
    for turn, text, *_ in spoken if len(spoken) >= REPEATED else ():
        line = " ".join(re.findall(r"\w+", text.casefold()))
        counts[line] += 1
        is_answer = len(text.split()) < SHORTEST_SENTENCE or _ANSWER.search(text)
        if line and counts[line] == REPEATED and not is_answer:
            detail = f"said {REPEATED} times: {excerpt(text, LONGEST_QUOTE)}"
            yield UserFault("repeats_itself", turn, detail, decisive=not any(_details(text)))


def _faults_of_line(each: _Spoken, ends: bool) -> Iterator[UserFault]:
    said = each.text.replace(STOP_TOKEN, " ").strip(" \t\n\"'`*.!")
    stops, whole = STOP_TOKEN in each.text, excerpt(said, LONGEST_QUOTE)
    # most lines hold none of these words; the search for all phrases takes much longer
    if (not said.isascii() or any(word in said.lower() for word in _OF_AGENTS)) and _AGENT.search(said):
        # In its last line a polite model takes over the agent's phrases, which does no harm.
        yield UserFault("speaks_as_agent", each.turn, whole, decisive=not (stops or ends))
    is_goodbye = len(said.split()) <= LONGEST_GOODBYE and _GOODBYE.search(said) and not _is_request(said)
    if stops and said and not (each.text.rstrip().endswith(STOP_TOKEN) and is_goodbye):
        yield UserFault("stop_token_in_text", each.turn, excerpt(each.text, LONGEST_QUOTE), decisive=False)
    if _THOUGHT.search(said):
        yield UserFault("thought_aloud", each.turn, whole, decisive=False)


def _is_request(text: str) -> bool:
    return bool(_REQUEST.search(text)) and not _ALL.search(text)


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?\n])", text)
