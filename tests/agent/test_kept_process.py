"""What a command leaves behind of the process that it ran in."""

from __future__ import annotations

import os
import sys

import pytest

from reward_kit.agent.bundles.breakage import kept_process


class Finder:
    """Finds nothing, and cannot be compared."""

    __hash__ = None  # type: ignore[assignment]

    def find_spec(self, *_: object) -> None:
        return None


def test_finders_that_are_gone_come_back_and_those_that_came_stay_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, new = list(sys.meta_path), Finder()
    monkeypatch.setattr(sys, "meta_path", list(before))
    with kept_process():
        sys.meta_path[:] = [new, *before[1:]]  # type: ignore[list-item]
    assert sys.meta_path == [*before, new]


def test_leaving_is_an_error_of_the_command_s_own() -> None:
    leave = os._exit
    with pytest.raises(SystemExit, match=r"os\._exit\(3\)"), kept_process():
        os._exit(3)
    assert os._exit is leave
