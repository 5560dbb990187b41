"""Answers in parts that are labelled: which part is the line, and which is not to be heard."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from reward_kit.agent.model_clients.answer_parts import joined, split_thoughts
from reward_kit.agent.rollout import STOP_TOKEN
from reward_kit.agent.users.llm import Draft

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARKS = r"[ \t>*_#`~-]*"
_LABEL = re.compile(
    rf"""
    ^{_MARKS}(?:
        (?P<thought>(?:user(?:'s)?\ )?(?:thoughts?|thinking|reasoning|analysis)(?:\ process)?)
      | (?P<line>(?:user|customer)(?:'s)?\ (?:response|reply|message|answer))
      | (?P<loose_line>response|reply|message|answer|line|user|customer)
      | (?P<other>agent|assistant)
    )(?:\ ?\#?\d{{1,3}})?[ \t*_`]*:[*_`]*
    | (?:(?<=\s)|(?<=[.!?)"]))[*_`]{{0,3}}
      (?:(?P<inline_line>user(?:'s)?\ response)|(?P<inline_thought>(?-i:Thought)))[*_`]{{0,3}}:[*_`]*
    """,
    re.VERBOSE | re.MULTILINE | re.IGNORECASE,
)


class _Part(NamedTuple):
    kind: str
    text: str


def labelled_draft(answer: str) -> Draft:
    """The line of an answer ``Thought: … User Response: …``, and its thoughts.

    An answer without labels is a line as a whole. The line is empty where there is but a thought; a stop
    token that stands alone in the last row of such an answer is taken for the line.
    """
    text, hidden = split_thoughts(answer)
    parts = list(_parts(text))
    lines = [part.text for part in parts if part.kind == "line" and part.text]
    before = parts[0].text
    if not lines and before:
        lines, before = [before], ""
    thoughts = joined(hidden, before, *(part.text for part in parts if part.kind == "thought"))
    if lines:
        return Draft(lines[0], thoughts)
    rows = text.split("\n")
    stops = bool(text) and rows[-1].strip(" \t*_`\"'.") == STOP_TOKEN
    return Draft(STOP_TOKEN if stops else "", thoughts)


def _parts(text: str) -> Iterator[_Part]:
    """The text before the first label (kind ``before``, often empty), then each part by its label."""
    kind, start = "before", 0
    for label in _LABEL.finditer(text):
        found = str(label.lastgroup)
        if found == "loose_line" and kind == "line":
            continue  # "Message: …" may well stand in what a person says
        yield _Part(kind, _clean(text[start : label.start()]))
        kind, start = found.removeprefix("inline_").removeprefix("loose_"), label.end()
    yield _Part(kind, _clean(text[start:]))


def _clean(text: str) -> str:
    """Without the emphasis and fences that models put around a part."""
    text = re.sub(r"\A```\w*\n|```\Z", "", text.strip()).strip()
    return text if text.strip("*_`#>-~ \t\n") else ""
