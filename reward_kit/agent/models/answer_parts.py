"""A model's answer: its text, reasoning, refusal and tokens, and faults of the model's server in it."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from operator import eq
from typing import TYPE_CHECKING, Any, TypeVar

from reward_kit.agent.base.encoding import parsed_json
from reward_kit.agent.base.text import encodable, excerpt, text_of
from reward_kit.agent.base.types import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from reward_kit.agent.base.types import Completion, Message, Model, ModelCall, Usage

T = TypeVar("T")

ASKED = 2
"""Times that a model is asked for an answer that can be used."""
LONGEST_SAID = 120
"""Characters of an unusable answer that its problem quotes."""
WAS_EMPTY = "(Your last answer to this was empty.)"

_TAG = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)


class StatedError(Exception):
    """An answer that states an ``error``, with the text of its ``body``.

    Aggregators of providers send them with a status of success; then ``status_code`` is the number that the
    error names, if it does.
    """

    def __init__(self, error: Any, body: str = "", *, status: int | None = None, headers: Any = None) -> None:
        stated = error if isinstance(error, dict) else {"message": error}
        self.body = body
        self.code = stated.get("code")
        named = re.fullmatch(r"[45]\d\d", str(self.code))
        self.status_code: int | None = int(named[0]) if status is None and named else status
        self.litellm_response_headers = headers
        super().__init__(str(stated.get("message") or body or "it only says that there was an error"))


def split_thoughts(text: str) -> tuple[str, str]:
    """Split ``text`` into the visible text and the contents of its ``<think>`` blocks.

    A block that is not closed extends to the end. Text before a closing tag without an opening one is a
    thought too: some chat templates put the opening tag into the prompt.
    """
    said: list[str] = []
    thoughts: list[str] = []
    position = 0
    inside = False
    for tag in _TAG.finditer(text):
        piece = text[position : tag.start()]
        position = tag.end()
        if tag[1] and not inside:
            thoughts += [*said, piece]
            said = []
        else:
            (thoughts if inside else said).append(piece)
        inside = not tag[1]
    if position == 0:
        return text, ""
    (thoughts if inside else said).append(text[position:])
    return "".join(said).strip(), joined(*thoughts)


def joined(*thoughts: str | None) -> str:
    """Join thoughts by line breaks, without the empty ones."""
    return "\n".join(thought.strip() for thought in thoughts if thought and thought.strip())


def reasoning_of(message: Message) -> str:
    """The reasoning that a provider gave beside the content."""
    found = (message.get(name) for name in ("reasoning_content", "reasoning"))
    return next((encodable(text).strip() for text in found if isinstance(text, str) and text), "")


def text_in(message: Message) -> str:
    """The text of an answer, or that of the model's refusal if there is no other."""
    text = text_of(message.get("content"))
    return text if text.strip() else text_of(message.get("refusal"))


def add_note(messages: list[Message], note: str = WAS_EMPTY) -> list[Message]:
    """The messages with a note at the end of the last one; a separate message would break strict orders."""
    last = messages[-1]
    content = last.get("content")
    if isinstance(content, list):
        return [*messages[:-1], {**last, "content": [*content, {"type": "text", "text": note}]}]
    return [*messages[:-1], {**last, "content": f"{text_of(content)}\n\n{note}"}]


async def usable_answer(
    model: Model,
    messages: list[Message],
    read: Callable[[str], T],
    *,
    again: str,
    count: Callable[[Usage], object],
    seed: int | None = None,
) -> T:
    """The answer to ``messages`` as ``read`` makes it of its text; asked for once more if that fails.

    ``again`` asks again, with ``{problem}`` in it, the text of the ``ValueError`` of ``read``; ``count`` gets
    the usage of each call. Raises ``ValueError`` after ``ASKED`` answers that cannot be used.
    """
    for _ in range(ASKED):
        answer = await model.complete(messages, seed=seed)
        count(answer.usage)
        text = split_thoughts(text_in(answer.message))[0]
        try:
            return read(text)
        except ValueError as error:
            problem = str(error)
        messages = [
            *messages,
            {"role": "assistant", "content": text or "(nothing)"},
            {"role": "user", "content": again.format(problem=problem)},
        ]
    said = excerpt(text, LONGEST_SAID) or f"it is empty (finish reason {answer.finish_reason})"
    raise ValueError(f"{ASKED} answers could not be used, the last because {problem}: {said}")


# -- tokens, which a server returns if the model argument ``return_token_ids`` is true, as vLLM does


def tokens_in(prompt: Any, choice: dict[str, Any]) -> Tokens | None:
    """The tokens in an answer in OpenAI's format; None if the server returned none that can be used."""
    completion, logprobs = choice.get("token_ids"), choice.get("logprobs")
    if not (prompt and completion):
        return None
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    found = Tokens(prompt, completion, [one.get("logprob") for one in content or ()])
    return found if are_tokens(found) else None


def are_tokens(tokens: Any) -> bool:
    """True for token ids and log-probabilities that can be stored."""
    return (
        isinstance(tokens, Tokens)
        and all(isinstance(listed, list) for listed in (tokens.prompt, tokens.completion, tokens.logprobs))
        and all(one.__class__ is int and 0 <= one < 2**32 for one in (*tokens.prompt, *tokens.completion))
        and all(one.__class__ in (int, float) and math.isfinite(one) for one in tokens.logprobs)
    )


def kept_tokens(tokens: Tokens | None, before: Iterable[ModelCall], sent: int | None) -> Tokens | None:
    """The tokens of the call after those of ``before``, as a trace keeps them."""
    if tokens is None:
        return None
    former: list[int] = []
    for last, prompt in calls_with_tokens(before):
        former = [*prompt, *last.completion]
    shared = sum(1 for _ in takewhile(bool, map(eq, tokens.prompt, former)))
    return Tokens(tokens.prompt[shared:], [*tokens.completion], [*tokens.logprobs], shared, sent)


def calls_with_tokens(calls: Iterable[ModelCall]) -> Iterator[tuple[Tokens, list[int]]]:
    """The tokens of each call that has them, as they are kept, and the whole prompt."""
    former: list[int] = []
    for call in calls:
        if (tokens := call.tokens) is not None:
            prompt = [*former[: tokens.shared], *tokens.prompt]
            yield tokens, prompt
            former = [*prompt, *tokens.completion]


# -- faults that come from the set-up of a model's server, not from the model

REMEDIES = {
    "calls_as_text": "tool calls written as text: start the server with its tool-call parser "
    "(vLLM: --enable-auto-tool-choice --tool-call-parser NAME; llama.cpp: --jinja)",
    "encoded_twice": "tool arguments encoded twice, which were decoded: check the server's tool-call parser",
    "prefixed_name": "tool names with a prefix, which was removed: check the server's tool-call parser",
    "cut_off": "answers cut at the token limit: raise it (--model-arg max_tokens=N, or the server's context)",
}
"""For each fault, the sentence that follows ``7 of 8 rollouts had``."""

_MARKS = re.compile(r"<\|?tool_call|<\uff5ctool|\[TOOL_CALLS\]|<function[=_]|<\|python_tag\|>|<invoke name=")
"""The beginnings of tool calls in the formats of open models."""
_BEFORE_TEXT = ('"', " ", "\n", "\t", "\r")
"""The first characters of arguments that may be a text."""
_CALL = re.compile(r'"name"\s*:\s*"([^"]{1,100})"\s*,\s*"(?:arguments|parameters)"\s*:')


def without_faults(completion: Completion, tools: Iterable[dict[str, Any]]) -> tuple[Completion, str | None]:
    """The completion with its tool calls as they were meant, and the fault that it had, if any.

    ``tools`` were offered to the model, in the OpenAI format.
    """
    message = completion.message
    fault = "cut_off" if completion.finish_reason == "length" else None
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        faults: list[str] = []
        meant = [_as_meant(call, tools, faults) for call in calls]
        if faults:
            fault = faults[0]
            completion = replace(completion, message={**message, "tool_calls": meant})
    elif not calls and (said := text_in(message)) and ("<" in said or "[" in said or '"name"' in said):
        said = split_thoughts(said)[0]
        names = _names_of(tools)
        if names and (_MARKS.search(said) or not names.isdisjoint(_CALL.findall(said))):
            fault = "calls_as_text"
    return completion, fault


def _names_of(tools: Iterable[dict[str, Any]]) -> set[Any]:
    return {(tool.get("function") or {}).get("name") for tool in tools}


def _as_meant(call: Any, tools: Iterable[dict[str, Any]], faults: list[str]) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    changed, fault = {}, None
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(name, str) and not name.isidentifier() and name not in (names := _names_of(tools)):
        bare = re.split(r"[.:/]", re.sub(r":\d+$", "", name))[-1]
        if bare in names:
            changed["name"], fault = bare, "prefixed_name"
    if isinstance(arguments, str) and arguments[:1] in _BEFORE_TEXT and arguments.lstrip().startswith('"'):
        with suppress(ValueError):
            inner = parsed_json(arguments)
            if isinstance(inner, str) and isinstance(parsed_json(inner), dict):
                changed["arguments"], fault = inner, "encoded_twice"
    if fault is None:
        return call
    faults.append(fault)
    return {**call, "function": {**function, **changed}}
