"""English phrases that tell who speaks, and what for. Other languages match nothing."""

from __future__ import annotations

import re

SHORTEST_SENTENCE = 4
"""Lines with fewer words are answers and courtesies, which may be repeated."""
LONGEST_GOODBYE = 40
"""Lines with more words say something besides goodbye."""


def _any_of(*alternatives: str, flags: re.RegexFlag = re.IGNORECASE) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), flags)


_DONE_TO = (
    r"(?:cancell?ed|processed|refunded|modified|updated|exchanged|returned|issued|initiated|verified|located"
    r"|booked|rebooked|confirmed|completed)"
)
_AGENT = _any_of(
    r"\b(?:how|what) (?:can|may|could|else can) I (?:help|assist|do for|be of (?:help|service))\b",
    r"\banything else (?:that )?I can (?:help|assist|do)\b",
    r"\bI(?:'d| would|'ll| will|'m| am| can) (?:be )?(?:happy to |glad to |here to )?(?:help|assist) you\b",
    r"\bthank you for (?:contacting|reaching out|calling|choosing)\b",
    r"\b(?:I|we) (?:sincerely )?apologi[sz]e for (?:the|any) (?:inconvenience|trouble|delay)",
    r"\b(?:sorry|apologies) for (?:the|any) inconvenience",
    r"\b(?:I|we)(?: have|'ve| was able to| just)? (?:now |successfully |just |already )*"
    + _DONE_TO
    + r" your\b",
    r"\byour (?:[\w#-]+ ){1,4}(?:has|have) (?:now |been |successfully )*been (?:successfully )?"
    + _DONE_TO
    + r"\b(?!\?)",
    r"\b(?:provide|share|confirm|tell|give) (?:me )?(?:with )?your (?:(?:full|order|user|zip|email) )*"
    r"(?:order|e-?mail|zip|postal|user ?id|account|name|number|code|address|identity)",
    r"\bto (?:verify|authenticate|confirm) your (?:identity|account)\b",
    r"\blet me (?:check|look up|pull up|look into|verify|cancel|process|update|modify) your\b",
    r"\A\s*(?:agent|assistant|representative)\s*:",
)
_TOOL_CALL = _any_of(
    r'\{\s*"(?:name|action|tool|function)"\s*:\s*"[^"]{1,100}"\s*,'
    r'\s*"(?:arguments|parameters|args|input|kwargs)"\s*:',
    r"^[ \t*]*(?:action|api output|tool call|observation)\**\s*:",
    r"</?(?:tool_call|function_call|tool_calls)\b",
    r"\A\s*[a-z]+(?:_[a-z]+)+\([^()]*\)\s*\Z",
    flags=re.IGNORECASE | re.MULTILINE,
)
_REQUEST = _any_of(
    r"\?",
    r"\b(?:please|kindly) (?:provide|share|confirm|tell|give|let|reply|type|specify|choose|select|verify"
    r"|cancel|return|exchange|change|help|check|add|remove|update|book)\b",
    r"\b(?:can|could|may|would) you\b",
    r"\bI(?:'d| would) (?:also |still )?(?:like|want|need)\b",
    r"\bI (?:also |still )?(?:want|need) (?:to|you|my|a|an|the)\b",
    r"\b(?:one moment|a moment|hold on|let me (?:check|look|see|find))\b",
)
_ALL = _any_of(
    r"\b(?:all|everything|the only thing|the last thing) (?:that )?I(?:'d)? (?:want|need|like|came)"
)
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
_ANSWER = _any_of(
    r"\A\W*(?:yes|yeah|yep|yup|sure|ok|okay|no|nope|correct|right|exactly|confirm|confirmed"
    r"|I (?:confirm|do|am)|please (?:do|proceed|go|continue)|go ahead|proceed"
    r"|that(?:'s| is) (?:right|correct|fine|all|it)|thanks|thank you|great|perfect|sounds good|fine|alright"
    r"|continue)\b",
    r"\b(?:don't|do not|can't|cannot|didn't|no longer) (?:\w+ )?(?:know|remember|recall|have|think of)\b",
    r"\ball (?:that )?I (?:know|have|remember|can say)\b",
    r"\b(?:not sure|no idea|forgotten|forgot|slipped my mind|at hand)\b",
)
_GOODBYE = _any_of(
    r"\b(?:thanks|thank you|appreciate|(?:good)?bye|take care|see you)\b",
    r"\bhave a (?:\w+ )?(?:day|evening|night|weekend|one)\b",
    r"\b(?:that|this)(?:'s| is| was| will be) (?:all|everything|it)\b",
)
_THOUGHT = _any_of(
    r"^[ \t>*_#`]*(?:thoughts?|reasoning|user\s+response)[*_`]*\s*:|</?think(?:ing)?>|\bmy instructions?\b",
    flags=re.IGNORECASE | re.MULTILINE,
)


def normalize(text: str) -> str:
    """The words of a line in lower case, so that equal lines compare equal."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def is_agents_line(text: str) -> bool:
    """Return True for a line that only an agent says: an offer of help, a report of work, a tool call."""
    text = _straight(text)
    return bool(_AGENT.search(text) or _TOOL_CALL.search(text))


def is_request(text: str) -> bool:
    """Return True if the line asks the other side for something."""
    text = _straight(text)
    return bool(_REQUEST.search(text)) and not _ALL.search(text)


def is_waiting(text: str) -> bool:
    """Return True if an agent's line needs an answer; an offer of more help needs none."""
    return any(is_request(sentence) and not _OFFER.search(sentence) for sentence in _sentences(text))


def is_goodbye(text: str) -> bool:
    """Return True for a courtesy at the end: thanks, a goodbye."""
    short = len(text.split()) <= LONGEST_GOODBYE
    return short and bool(_GOODBYE.search(_straight(text))) and not is_request(text)


def is_refusal(text: str) -> bool:
    """Return True if an agent's line says that something will not be done, without a condition."""
    return any(_REFUSAL.search(each) and not _CONDITION.search(each) for each in _sentences(text))


def is_answer(text: str) -> bool:
    """Return True for an answer that fits more than one question: yes, no, I do not know."""
    return len(text.split()) < SHORTEST_SENTENCE or bool(_ANSWER.search(_straight(text)))


def is_thought(text: str) -> bool:
    """Return True if the line holds a label of a thought, or mentions the speaker's instructions."""
    return bool(_THOUGHT.search(text))


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?\n])", _straight(text))


def _straight(text: str) -> str:
    return text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
