"""Names in messages: the one that was probably meant."""

import difflib
from typing import Any

import pytest

from reward_kit.agent.base import text
from reward_kit.agent.base.text import did_you_mean


def test_a_close_name_is_suggested() -> None:
    assert did_you_mean("get_usr", ["get_user", "pay"]) == " (did you mean 'get_user'?)"
    assert did_you_mean("refund", ["get_user", "pay"]) == ""


def test_only_short_names_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def counted(name: str, known: list[str], *more: Any) -> list[str]:
        compared.extend([name, *known])
        return difflib.get_close_matches(name, known, *more)

    monkeypatch.setattr(text, "get_close_matches", counted)
    assert did_you_mean("x" * 10_000_000, ["x" * 99]) == ""
    assert did_you_mean("y" * 80, ["y" * 10_000_000, "y" * 81]) == f" (did you mean {'y' * 81!r}?)"
    assert max(map(len, compared)) <= 100
