"""Waiting times between attempts."""

from reward_kit.agent.base.network import LONGEST_WAIT, backoff


def test_waits_double_and_are_bounded() -> None:
    waits = [backoff(attempt) for attempt in range(1, 2000)]
    assert all(2 ** (number - 1) / 2 <= wait <= 2 ** (number - 1) for number, wait in enumerate(waits[:6], 1))
    assert max(waits) <= LONGEST_WAIT
    assert 0.0 <= backoff(3, first=0.1, jitter=1.0) <= 0.4
