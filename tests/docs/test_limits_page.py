"""The numbers on the page about providers' limits are those of the program."""

from __future__ import annotations

import math
import re
from pathlib import Path

from reward_kit.agent.evaluation_config import DEFAULTS
from reward_kit.agent.model_clients import wordings
from reward_kit.agent.providers import (
    blame,
    chance,
    concurrency,
    gate,
    headers,
    outage,
    pauses,
    spacing,
    trial,
)

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())


def test_its_numbers_are_right() -> None:
    assert f"A gate begins with {concurrency.START} calls" in TEXT
    assert (concurrency.RESTART, "two are made at once" in TEXT) == (2, True)
    assert (concurrency.TOWARDS, "grows by a quarter of the way" in TEXT) == (1 / 4, True)
    assert (concurrency.STEP, "by a twentieth of itself" in TEXT) == (1 / 20, True)
    assert (round(math.exp(chance.ENOUGH)), "150 times likelier" in TEXT) == (148, True)
    assert f"with {trial.FAILED} of {trial.RECENT} calls refused" in TEXT
    assert (trial.TOLD, "When sixteen of the last 32 are told so" in TEXT) == (16, True)
    assert (spacing.LONG, "a tenth of a second or more" in TEXT) == (0.1, True)
    assert (gate.BACK_OFF, "the number is halved" in TEXT) == (0.5, True)
    assert (gate.EASE_OFF, "takes a quarter off" in TEXT) == (0.75, True)
    assert f"at least {pauses.SPACING * 1000:.0f} ms apart" in TEXT
    assert (gate.SHORT_WAIT, "a pause of half a second" in TEXT) == (0.5, True)
    assert f"less than one in {1 / blame.UNLIKELY:.0f}" in TEXT
    assert (blame.LONGEST_PUT_OFF, "at most a minute, or after half a second" in TEXT) == (60.0, True)
    assert (wordings.LONGEST_WAIT_OF_A_LIMIT, "at most ten minutes are named" in TEXT) == (600.0, True)
    assert (outage.FAILURES, "Three attempts in a row" in TEXT) == (3, True)
    assert (outage.LONGEST_INTERVAL, "up to a minute" in TEXT) == (60.0, True)
    assert f"After `--patience` seconds ({DEFAULTS['patience']})" in TEXT


def test_it_names_the_headers_that_are_read() -> None:
    named = set(re.findall(r"`(x-ratelimit-[a-z-]+)`", PAGE))
    known = {name for names in (*headers.REQUESTS, *headers.TOKENS) for name in names}
    assert named == {name for name in known if name.startswith("x-ratelimit")}


def test_options_that_it_names_exist() -> None:
    from reward_kit.agent.evaluation_config import OPTIONS

    flags = {part for option in OPTIONS.values() for flag in option.flags for part in flag.split("/")}
    named = set(re.findall(r"`(--[a-z-]+)", PAGE))
    assert named <= flags
