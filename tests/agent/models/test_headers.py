"""Waits and limits in headers, in all the ways in which providers say them."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import often

from reward_kit.agent.base.network import LONGEST_NAMED, Quota, quotas, retry_after, seconds_until
from reward_kit.agent.base.network import QUOTAS as QUOTA_NAMES
from reward_kit.agent.models.litellm_library import response_headers


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "30s"}, 30.0),
        ({"retry-after": "1000000000"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}, None),
        ({"retry-after": "0001-01-01T00:00:00+23:59"}, 0.0),
        ({"retry-after": "9999-12-31T23:59:59-23:59"}, LONGEST_NAMED),
        ({"retry-after": "9" * 90}, LONGEST_NAMED),
        ({"retry-after": "1" + "0" * 400 + "s"}, None),
        ({"retry-after-ms": "1" + "0" * 400, "retry-after": "2"}, 2.0),
        ({"retry-after": "1" * 100_000}, None),
    ],
)
def test_the_wait_that_is_asked_for(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


@settings(max_examples=often(300))
@given(st.text() | st.from_regex(r"[A-Z][a-z]{2}, \d+ (Jan|Dec) \d+ [\d:]+ ([A-Z]+|[+-]\d+)", fullmatch=True))
def test_any_header_is_read_without_an_error(text: str) -> None:
    headers = {name: text for names in QUOTA_NAMES for name in names}
    found = [seconds_until(text), *(quota.seconds for quota in quotas(headers))]
    assert all(seconds is None or 0.0 <= seconds <= LONGEST_NAMED for seconds in found)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("12ms", 0.012),
        ("1h2m3.5s", 3723.5),
        ("2d", 172800.0),
        ("5", 5.0),
        ("never", None),
        ("inf", None),
        ("2001-01-01T00:00:00Z", 0.0),
    ],
)
def test_when_a_limit_is_reset(text: str, seconds: float | None) -> None:
    assert seconds_until(text) == (None if seconds is None else pytest.approx(seconds))


def test_resets_at_points_in_time() -> None:
    moment = datetime.now(UTC) + timedelta(seconds=40)
    for text in (
        moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        moment.isoformat(),
        f"{moment.timestamp():.0f}",
        f"{moment.timestamp() * 1000:.0f}",
    ):
        seconds = seconds_until(text)
        assert seconds is not None
        assert 37 <= seconds <= 41


OPENAI = [
    *(("remaining-requests", "3"), ("reset-requests", "20s")),
    *(("remaining-tokens", "1500"), ("reset-tokens", "1m")),
]
ANTHROPIC = [
    *(("requests-remaining", "0"), ("requests-reset", "2001-01-01T00:00:00Z")),
    *(("output-tokens-remaining", "8000"), ("output-tokens-reset", "2001-01-01T00:00:00Z")),
]
QUOTAS = [Quota(3, 20.0), Quota(1500, 60.0, "all")], [Quota(0, 0.0), Quota(8000, 0.0, "output")]


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, []),
        ({"x-ratelimit-remaining-requests": "3"}, []),  # until when?
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "24h"}, []),
        ({f"x-ratelimit-{name}": value for name, value in OPENAI}, QUOTAS[0]),
        ({f"anthropic-ratelimit-{name}": value for name, value in ANTHROPIC}, QUOTAS[1]),
    ],
)
def test_what_is_left_is_read_where_it_is_whole(headers: dict[str, str], found: list[Quota]) -> None:
    assert list(quotas(headers)) == found


def test_litellm_puts_a_word_before_them() -> None:
    headers = {"llm_provider-X-RateLimit-Remaining-Requests": "3"}
    answer = SimpleNamespace(_hidden_params={"additional_headers": headers})
    assert response_headers(answer) == {"x-ratelimit-remaining-requests": "3"}
    assert response_headers(object()) == {}
