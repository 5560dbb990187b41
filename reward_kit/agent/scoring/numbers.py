"""Numbers in words: scores, costs, tokens, durations and shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.base.text import count

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping

    from reward_kit.agent.base.types import Usage
    from reward_kit.agent.scoring.intervals import Interval
    from reward_kit.agent.scoring.metrics import Estimate

NOTHING = "-"
NOTABLE_WAITING = 0.05
"""The share of a time from which waiting is mentioned."""


def score(value: float | None) -> str:
    """A reward or metric with three decimals."""
    return NOTHING if value is None else f"{value:.3f}"


def estimate(value: Estimate | None) -> str:
    """``0.500 [0.412, 0.588]``, with the interval for tasks like these if there is one."""
    if value is None:
        return NOTHING
    interval = value.intervals.tasks_like_these
    return score(value.value) if interval is None else f"{score(value.value)} {bracketed(interval)}"


def pass_cells(powers: Mapping[int, Estimate], ks: Iterable[int]) -> list[str]:
    """Pass^k for each of ``ks``, the first with its interval."""
    found = [powers.get(k) for k in ks]
    others = [score(one.value if one else None) for one in found[1:]]
    return [*map(estimate, found[:1]), *others]


def bracketed(interval: Interval) -> str:
    """``[0.412, 0.588]``."""
    return f"[{interval.low:.3f}, {interval.high:.3f}]"


def money(usage: Usage, rollouts: int | None = None) -> str:
    """``$0.0123 + 2 unpriced calls``, or the mean of these ``rollouts``: ``$0.0041 + unpriced``.

    Calls without a known price are unpriced, never $0.
    """
    if usage.calls == 0:
        return NOTHING
    if usage.unpriced_calls >= usage.calls:
        return "unpriced"
    cost = dollars(usage.cost / (rollouts or 1))
    if not usage.unpriced_calls:
        return cost
    return f"{cost} + {'unpriced' if rollouts else count(usage.unpriced_calls, 'unpriced call')}"


def dollars(amount: float) -> str:
    """Cents for whole dollars, hundredths of cents below."""
    if 0 < amount < 0.0001:
        return "<$0.0001"
    return f"${amount:.2f}" if amount >= 1 else f"${amount:.4f}"


def tokens(number: int) -> str:
    """``950``, ``12.3k``, ``4.5M``."""
    if number < 1000:
        return str(number)
    return f"{number / 1000:.1f}k" if number < 999_950 else f"{number / 1_000_000:.1f}M"


def duration(seconds: float | None) -> str:
    """``0.42 s``, ``12.3 s``, ``4:05``, ``1:02:03``."""
    if seconds is None:
        return NOTHING
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration_with_waiting(seconds: float, waited: float) -> str:
    """``95.0 s``, or ``95.0 s, of which its model calls waited 83.1 s for limits``."""
    if waited <= 0 or waited < NOTABLE_WAITING * seconds:
        return duration(seconds)
    return f"{duration(seconds)}, of which its model calls waited {duration(waited)} for limits"


def shares(counter: Counter[str]) -> str:
    """``wrong_tool 3 (75%), other 1 (25%)``, the most frequent first."""
    total, every = counter.total(), counter.most_common()
    return ", ".join(f"{name} {number} ({100 * number / total:.0f}%)" for name, number in every)


def tallied(counter: Counter[str]) -> str:
    """``wrong_tool 3, other 1``, the most frequent first."""
    return ", ".join(f"{name} {number}" for name, number in counter.most_common())
