"""docs/limits.md names the numbers that the limiter works with."""

from __future__ import annotations

from pathlib import Path

from reward_kit.agent.config import EvaluationConfig
from reward_kit.agent.models import concurrency, limiter, outage, rate_limits

TEXT = " ".join((Path(__file__).parents[2] / "docs" / "limits.md").read_text().split())


def test_the_numbers_are_those_of_the_code() -> None:
    assert f"begins with {concurrency.START:.0f} calls at a time" in TEXT
    assert f"more than {concurrency.TOLERATED:.0%}".replace("%", " %") in TEXT
    assert (limiter.DOUBT, "three times that share" in TEXT) == (3.0, True)
    assert f"at most {concurrency.LONGEST_SPACING:.0f} seconds" in TEXT
    assert f"shrunk to {concurrency.FELL:.0%}".replace("%", " %") in TEXT
    assert f"refusals for {limiter.TRUST:.0f} seconds" in TEXT
    assert (outage.UNLIKELY, "below 1 in 64" in TEXT) == (1 / 64, True)
    assert f"more than {outage.EXPECTED:.0%}".replace("%", " %") in TEXT
    assert (outage.FAILURES, "Three attempts in a row" in TEXT) == (3, True)
    assert f"`--patience` seconds ({EvaluationConfig().patience:g})" in TEXT


def test_each_header_that_is_followed_is_named() -> None:
    for remaining, reset, _ in rate_limits.QUOTAS:
        for name in (remaining, reset):
            family, _, rest = name.partition("ratelimit-")
            assert f"`{name}`" in TEXT or f"`{family}ratelimit-" in TEXT
            assert rest.rpartition("-")[2] or name
