"""A model as judge of a conversation, by criteria in words."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from reward_kit.agent.base.history import conversation_text
from reward_kit.agent.base.lenient_json import read_object
from reward_kit.agent.base.types import Usage
from reward_kit.agent.base.worker_thread import run_sync
from reward_kit.agent.models.answer_parts import usable_answer
from reward_kit.errors import RewardError
from reward_kit.models import MetricResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reward_kit.agent.base.types import Message
    from reward_kit.agent.models.calls import Limiters

T = TypeVar("T")

MODEL = "MODEL_JUDGE"
"""The environment variable with the judge's model."""
NO_JUDGE = "none"
"""The judge that leaves the criteria out, where a reward can do without."""
CONCURRENCY = 10
TIMEOUT = 120.0
"""Seconds for one call; a reward may take 300."""
AGAIN = "This answer cannot be used: {problem}. Answer again, with the JSON object alone."


def criteria_met(
    criteria: Sequence[str],
    messages: Sequence[Message],
    *,
    model: str | None = None,
    rollout: Any = None,
    prompt: str | None = None,
    model_args: dict[str, Any] | None = None,
) -> MetricResult:
    """The share of ``criteria`` that a model finds met by the conversation, for ``def`` rewards.

    ``model`` is named like ``--model``; the default is ``MODEL_JUDGE`` of the environment. The reason names
    it and the version of the prompt. ``rollout`` counts the calls, for the role ``judge``. ``prompt``
    replaces the judge's instructions. Calls are limited and retried like an agent's. Raises ``RewardError``
    without a model and for two answers that cannot be used, ``ModelError`` if there is no answer.
    """
    name = judge_name(model)
    instructions = prompt or _prompt()
    listed = "\n".join(f"{number}. {text}" for number, text in enumerate(criteria, start=1))
    said = conversation_text(one for one in messages if one["role"] != "system")
    shown = f"<conversation>\n{said}\n</conversation>"
    asked: list[Message] = [
        {"role": "system", "content": instructions},
        {"role": "user", "content": f"<criteria>\n{listed}\n</criteria>\n\n{shown}"},
    ]
    read = partial(_read, len(criteria))
    verdicts = ask_judge(name, asked, read, rollout=rollout, model_args=model_args)
    unmet = [
        f"not met: {text!r} ({why})" for text, (met, why) in zip(criteria, verdicts, strict=True) if not met
    ]
    count = len(criteria) - len(unmet)
    version = hashlib.sha256(instructions.encode()).hexdigest()[:12]
    reason = f"judge {name}, prompt {version}: {count} of {len(criteria)} criteria met"
    return MetricResult(score=count / len(criteria) if criteria else 1.0, reason="; ".join([reason, *unmet]))


def ask_judge(
    name: str,
    messages: list[Message],
    read: Callable[[str], T],
    *,
    rollout: Any = None,
    model_args: dict[str, Any] | None = None,
) -> T:
    """The answer of the model ``name`` as ``read`` makes it; asked for once more after a ``ValueError``.

    ``rollout`` counts the calls, for the role ``judge``. Raises ``RewardError`` for two answers that cannot
    be used, ``ModelError`` if there is no answer.
    """
    usage = Usage()
    try:
        return run_sync(_answer(name, messages, read, usage, model_args))
    except ValueError as error:
        raise RewardError(f"the judge {name}: {error}") from error
    finally:
        if rollout is not None and usage.calls:
            rollout.count_usage(usage, model=name)


def judge_name(model: str | None, default: str | None = None) -> str:
    """The judge: ``model``, that of the environment, or ``default``; raises ``RewardError`` without one."""
    name = model or os.environ.get(MODEL) or default
    if not name:
        remedy = f'Name one in the environment ({MODEL}), or in the row ("judge_model").'
        raise RewardError("the criteria need a model as judge", remedy=remedy)
    return name


def check_judge(model: str | None, default: str | None = None) -> None:
    """Raise ``RewardError`` without a judge, ``ModelSetupError`` for one that cannot be called.

    ``default`` is that of a reward of a bundle's own, which can do without a judge.
    """
    from reward_kit.agent.models.litellm import remote_model

    name = judge_name(model, default)
    if default is None or name != NO_JUDGE:
        remote_model(name, client="direct")


@cache
def _prompt() -> str:
    return (Path(__file__).parent / "prompts" / "judge.txt").read_text(encoding="utf-8").rstrip("\n")


@cache
def _limiters(_loop: asyncio.AbstractEventLoop) -> Limiters:
    """The limiters of all judges of an event loop, which no other can wait for."""
    from reward_kit.agent.models.calls import Limiters

    return Limiters(ceiling=CONCURRENCY, patience=TIMEOUT)


async def _answer(
    name: str,
    messages: list[Message],
    read: Callable[[str], T],
    usage: Usage,
    model_args: dict[str, Any] | None,
) -> T:
    from reward_kit.agent.models.litellm import LiteLLMModel, remote_model

    limiters = _limiters(asyncio.get_running_loop())
    model = remote_model(
        name, client="direct", timeout=TIMEOUT, limiters=limiters, model_args=model_args or {}
    )
    try:
        return await usable_answer(model, messages, read, again=AGAIN, count=usage.add)
    finally:
        if not isinstance(model, LiteLLMModel):  # which would close those of all others
            await model.close()


def _read(count: int, text: str) -> list[tuple[bool, str]]:
    """The verdicts, met or not and why, in the last JSON object that holds them; raises ``ValueError``."""
    for found in reversed(list(re.finditer(r'\{\s*["\']?verdicts', text))):
        given = read_object(text, found.start())[0].get("verdicts")
        if not isinstance(given, list) or len(given) != count:
            break
        if not all(isinstance(one, dict) and isinstance(one.get("met"), bool) for one in given):
            raise ValueError('a verdict has no "met" that is true or false')
        return [(one["met"], " ".join(str(one.get("reason") or "no reason").split())) for one in given]
    raise ValueError(f'the answer holds no object with the list "verdicts" of {count}')
