"""Token ids and log-probabilities of model calls: read from an answer, and kept without what repeats.

A server returns them if the model argument ``return_token_ids`` is true, as vLLM does. They are what the
engine read and sampled: the same text, tokenised again, can give other ids.
"""

from __future__ import annotations

import math
from itertools import takewhile
from operator import eq
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.types import Tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from reward_kit.agent.base.types import ModelCall

ASKED_FOR = "return_token_ids"
"""The model argument, and vLLM's field of a request."""


def with_logprobs(model_args: dict[str, Any]) -> dict[str, Any]:
    """The model arguments; if they ask for token ids, they ask for log-probabilities, too."""
    return {"logprobs": True, **model_args} if model_args.get(ASKED_FOR) else model_args


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
        and all(one.__class__ is float and math.isfinite(one) for one in tokens.logprobs)
    )


def kept_tokens(tokens: Tokens | None, before: Iterable[ModelCall], sent: int | None) -> Tokens | None:
    """The tokens of the call after those of ``before``, as a trace keeps them."""
    if tokens is None:
        return None
    former: list[int] = []
    for last, prompt in calls_with_tokens(before):
        former = [*prompt, *last.completion]
    shared = sum(1 for _ in takewhile(bool, map(eq, tokens.prompt, former)))
    return Tokens(tokens.prompt[shared:], tokens.completion, tokens.logprobs, shared, sent)


def calls_with_tokens(calls: Iterable[ModelCall]) -> Iterator[tuple[Tokens, list[int]]]:
    """The tokens of each call that has them, as they are kept, and the whole prompt."""
    former: list[int] = []
    for call in calls:
        if (tokens := call.tokens) is not None:
            prompt = [*former[: tokens.shared], *tokens.prompt]
            yield tokens, prompt
            former = [*prompt, *tokens.completion]
