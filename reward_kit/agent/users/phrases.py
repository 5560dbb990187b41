"""Turns of phrase by which a line is known: who speaks like that, and what for.

English alone is understood. In another language nothing is found, which is no harm.
"""

from __future__ import annotations

import re

WORDS_OF_A_SENTENCE = 4
"""Shorter lines are answers and courtesies, which come again."""

WORDS_OF_A_FAREWELL = 40
"""Longer ones say something besides."""

_DONE_TO = (
    r"(?:cancell?ed|processed|refunded|modified|updated|exchanged|returned|issued|initiated|verified|located"
    r"|booked|rebooked|confirmed|completed)"
)
_LOOK_UP = r"(?:check|look\ up|pull\ up|look\ into|verify|cancel|process|update|modify)"
_AS_AGENT = re.compile(
    rf"""
    \b(?:how|what)\ (?:can|may|could|else\ can)\ I\ (?:help|assist|do\ for)\ you\b
    | \bhow\ (?:can|may)\ I\ (?:assist|be\ of\ (?:help|service|assistance))\b
    | \banything\ else\ (?:that\ )?I\ can\ (?:help|assist|do)\b
    | \bI(?:'d|\ would|'ll|\ will|'m|\ am|\ can)\ (?:be\ )?(?:happy\ to\ |glad\ to\ |here\ to\ )?
      (?:help|assist)\ you\b
    | \bthank\ you\ for\ (?:contacting|reaching\ out|calling|choosing)\b
    | \b(?:I|we)\ (?:sincerely\ )?apologi[sz]e\ for\ (?:the|any)\ (?:inconvenience|trouble|delay)
    | \b(?:sorry|apologies)\ for\ (?:the|any)\ inconvenience
    | \b(?:I|we)(?:\ have|'ve|\ was\ able\ to|\ just)?\ (?:now\ |successfully\ |just\ |already\ )*
      {_DONE_TO}\ your\b
    | \byour\ (?:[\w#-]+\ ){{1,4}}(?:has|have)\ (?:now\ |been\ |successfully\ )*been\ (?:successfully\ )?
      {_DONE_TO}\b(?!\?)
    | \b(?:provide|share|confirm|tell|give)\ (?:me\ )?(?:with\ )?your\ (?:(?:full|order|user|zip|email)\ )*
      (?:order|e-?mail|zip|postal|user\ ?id|account|name|number|code|address|identity)
    | \bto\ (?:verify|authenticate|confirm)\ your\ (?:identity|account)\b
    | \blet\ me\ {_LOOK_UP}\ your\b
    | \A\s*(?:agent|assistant|representative)\s*:
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ACTION = re.compile(
    r"""
    \{\s*"(?:name|action|tool|function)"\s*:\s*"[^"]{1,100}"\s*,
      \s*"(?:arguments|parameters|args|input|kwargs)"\s*:
    | ^[ \t*]*(?:action|api\ output|tool\ call|observation)\**\s*:
    | </?(?:tool_call|function_call|tool_calls)\b
    | \A\s*[a-z]+(?:_[a-z]+)+\([^()]*\)\s*\Z
    """,
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
_PLEASE = (
    r"(?:provide|share|confirm|tell|give|let|reply|type|specify|choose|select|verify|cancel|return|exchange"
    r"|change|help|check|add|remove|update|book)"
)
_REQUEST = re.compile(
    rf"""
    \?
    | \b(?:please|kindly)\ {_PLEASE}\b
    | \b(?:can|could|may|would)\ you\b
    | \bI(?:'d|\ would)\ (?:also\ |still\ )?(?:like|want|need)\b
    | \bI\ (?:also\ |still\ )?(?:want|need)\ (?:to|you|my|a|an|the)\b
    | \b(?:one\ moment|a\ moment|hold\ on|let\ me\ (?:check|look|see|find))\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_DONE = re.compile(
    r"\b(?:all|everything|the only thing|the last thing) (?:that )?I(?:'d)? (?:want|need|like|came)",
    re.IGNORECASE,
)
_CLOSING = re.compile(
    r"""
    \b(?:anything|something|what|any|nothing)\ (?:else|more|other|further)\b
    | \b(?:else|further|other)\ (?:I\ can|you\ need|questions)\b
    | \b(?:more|further|additional)\ (?:help|assistance|questions|requests)\b
    | \bneed\ (?:any\ |some\ )?(?:help|assistance|anything)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_REFUSAL = re.compile(
    r"""
    \b(?:can(?:not|\ not|'t)|could(?:\ not|n't)|unable\ to|won't|will\ not|not\ able\ to)\b
    | \b(?:do|does)(?:\ not|n't)\ (?:allow|permit|support|offer|qualify)\b
    | \bnot\ (?:possible|allowed|permitted|eligible)\b
    | \bunfortunately\b
    | \btransfer(?:red|ring)?\b.{0,60}\b(?:human|agent|representative|colleague)\b
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_CONDITION = re.compile(r"\b(?:without|unless|until|before|otherwise)\b", re.IGNORECASE)
_ANSWER = re.compile(
    r"""
    \A\W*(?:yes|yeah|yep|yup|sure|ok|okay|no|nope|correct|right|exactly|confirm|confirmed|I\ (?:confirm|do|am)
      |please\ (?:do|proceed|go|continue)|go\ ahead|proceed|that(?:'s|\ is)\ (?:right|correct|fine|all|it)
      |thanks|thank\ you|great|perfect|sounds\ good|fine|alright|continue)\b
    | \b(?:don't|do\ not|can't|cannot|can\ not|didn't|no\ longer)\ (?:\w+\ )?
      (?:know|remember|recall|have|think\ of)\b
    | \ball\ (?:that\ )?I\ (?:know|have|remember|can\ say)\b
    | \b(?:not\ sure|no\ idea|forgotten|forgot|slipped\ my\ mind|at\ hand)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_LEAVE = re.compile(
    r"""
    \b(?:thanks|thank\ you|appreciate|(?:good)?bye|take\ care|see\ you)\b
    | \bhave\ a\ (?:\w+\ )?(?:day|evening|night|weekend|one)\b
    | \b(?:that|this)(?:'s|\ is|\ was|\ will\ be)\ (?:all|everything|it)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_THOUGHT = re.compile(
    r"^[ \t>*_#`]*(?:thoughts?|reasoning|user\s+response)[*_`]*\s*:|</?think(?:ing)?>|\bmy instructions?\b",
    re.IGNORECASE | re.MULTILINE,
)


def plain(text: str) -> str:
    """A line in the form in which equal lines are equal."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def speaks_as_agent(text: str) -> bool:
    """Whether the line is one that only the agent's side says: help offered, work reported, a tool call."""
    text = _straight(text)
    return bool(_AS_AGENT.search(text) or _ACTION.search(text))


def asks(text: str) -> bool:
    """Whether the line wants something of the other side, and so is not the end of a conversation."""
    text = _straight(text)
    return bool(_REQUEST.search(text)) and not _DONE.search(text)


def waits(text: str) -> bool:
    """Whether the agent's line waits for an answer; to be asked whether there is more needs none."""
    return any(asks(sentence) and not _CLOSING.search(sentence) for sentence in _sentences(text))


def takes_leave(text: str) -> bool:
    """Whether the line is a courtesy at the end: thanks, a good-bye."""
    return (
        bool(_LEAVE.search(_straight(text))) and not asks(text) and len(text.split()) <= WORDS_OF_A_FAREWELL
    )


def refuses(text: str) -> bool:
    """Whether the agent says that something will not be done; not where it only names what it lacks."""
    return any(_REFUSAL.search(each) and not _CONDITION.search(each) for each in _sentences(text))


def answers_again(text: str) -> bool:
    """Whether the line is an answer that fits more than one question: yes, no, I do not know."""
    return len(text.split()) < WORDS_OF_A_SENTENCE or bool(_ANSWER.search(_straight(text)))


def thinks_aloud(text: str) -> bool:
    """Whether the line holds what was not meant to be heard: a label of a thought, a word on its part."""
    return bool(_THOUGHT.search(text))


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?\n])", _straight(text))


def _straight(text: str) -> str:
    return text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
