"""Numbers in words that people read: the same in every report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter

    from reward_kit.agent.completion import Usage
    from reward_kit.agent.metrics import Estimate

NOTHING = "-"
NOTABLE_WAITING = 0.05
"""The share of a time from which on it is told that it was waiting."""
LONG = 1e9
"""Numbers from which on digits say little."""
LONGEST_TEXT = 300
_ESCAPE_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?)")
"""What colours a terminal or moves its cursor, and what sets its title or a link."""


def decimal(value: float, digits: int = 3) -> str:
    """With so many digits behind the point; a reward or metric that would fill the line with an exponent."""
    return f"{value:.{digits}f}" if abs(value) < LONG else f"{value:.{digits}e}"


def score(value: float | None) -> str:
    """Three decimals, as a rule."""
    return NOTHING if value is None else decimal(value)


def estimate(value: Estimate | None) -> str:
    """``0.500 [0.412, 0.588]``; without the interval where there is none."""
    if value is None:
        return NOTHING
    if value.interval is None:
        return score(value.value)
    low, high = value.interval
    return f"{decimal(value.value)} [{decimal(low)}, {decimal(high)}]"


def money(usage: Usage) -> str:
    """``$0.0123``; what has no known price is called unpriced, never $0."""
    if usage.calls == 0:
        return NOTHING
    if usage.unpriced_calls >= usage.calls:
        return "unpriced"
    cost = dollars(usage.cost)
    return f"{cost} + {count(usage.unpriced_calls, 'unpriced call')}" if usage.unpriced_calls else cost


def mean_money(usage: Usage, rollouts: int) -> str:
    """The cost of one of so many rollouts; ``$0.0123 + unpriced`` where some calls have no known price."""
    if usage.calls == 0 or usage.unpriced_calls >= usage.calls:
        return money(usage)
    cost = dollars(usage.cost / rollouts)
    return f"{cost} + unpriced" if usage.unpriced_calls else cost


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


def count(number: int, noun: str) -> str:
    """``1 row``, ``3 rows``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def from_here(path: Path) -> Path:
    """The path as a person in the working directory would type it."""
    try:
        return path.relative_to(Path.cwd())
    except (ValueError, FileNotFoundError):
        return path


def one_line(text: str, limit: int = LONGEST_TEXT) -> str:
    """Text of foreign code (an error's, a tool's) for a terminal: no line breaks, no control characters, at
    most ``limit`` characters.
    """
    words = " ".join(_ESCAPE_SEQUENCE.sub("", text).split())
    plain = "".join(character for character in words if character.isprintable())
    return plain if len(plain) <= limit else f"{plain[: limit - 3]}..."


def shares(counter: Counter[str]) -> str:
    """``wrong_tool 3 (75%), other 1 (25%)``, the most frequent first."""
    total = counter.total()
    return ", ".join(
        f"{name} {number} ({100 * number / total:.0f}%)" for name, number in counter.most_common()
    )


def tallied(counter: Counter[str]) -> str:
    """``wrong_tool 3, other 1``, the most frequent first."""
    return ", ".join(f"{name} {number}" for name, number in counter.most_common())
