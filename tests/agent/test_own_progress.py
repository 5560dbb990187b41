"""What a caller's progress raises is told as its own, and costs nothing that is over."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle, flight_bundle

from reward_kit.agent import agent_eval
from reward_kit.errors import UsageError


class Told:
    """Notes what it is told; raises where it is asked to."""

    def __init__(self, raises: str | None = None) -> None:
        self.raises = raises
        self.told: list[str] = []

    def started(self, tally: Any) -> None:
        self._note("started")

    def ended(self, outcome: Any, tally: Any) -> None:
        self._note("ended")

    def closed(self, tally: Any) -> None:
        self._note("closed")

    def _note(self, what: str) -> None:
        self.told.append(what)
        if what == self.raises:
            raise KeyError("no such bar")


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.chdir(tmp_path)
    made = flight_bundle(tmp_path)
    made.rows({"evaluation_criteria": {"actions": GOLD}, "actions": GOLD, "sim_user_prompt": None})
    return made


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("method", ["started", "ended", "closed"])
def test_what_it_raises_names_its_line_and_what_is_over_is_kept(
    bundle: Bundle, method: str, workers: int
) -> None:
    with pytest.raises(
        UsageError, match=rf"progress\.{method} raised test_own_progress\.py:\d+: KeyError: 'no such bar'"
    ):
        agent_eval(
            bundle.dataset,
            agent="gold",
            n_rollouts=6,
            max_concurrency=1,
            workers=workers,
            eval_id="one",
            progress=Told(method),
        )
    told = Told()
    result = agent_eval(resume="one", progress=told)
    assert (result.score, len(result.outcomes)) == (1.0, 6)
    expected = {"started": range(6, 7), "ended": range(1, 6), "closed": range(1)}[method]
    assert told.told.count("ended") in expected
    lines = result.log_path.read_text().splitlines()
    assert sum('"kind":"rollout"' in line.replace(" ", "") for line in lines) == 6


def test_the_results_are_written_before_it_is_told_of_the_end(bundle: Bundle) -> None:
    with pytest.raises(UsageError):
        agent_eval(bundle.dataset, agent="gold", eval_id="one", progress=Told("closed"))
    assert json.loads(Path("runs/evals/one.json").read_text())["status"] == "complete"


def test_one_that_would_have_to_be_awaited_is_refused(bundle: Bundle) -> None:
    class Awaited(Told):
        async def ended(self, outcome: Any, tally: Any) -> None:  # type: ignore[override]
            await asyncio.sleep(0)

    with pytest.raises(UsageError, match=r"progress\.ended is async, and nobody awaits it"):
        agent_eval(bundle.dataset, agent="gold", progress=Awaited())
    assert not Path("runs").exists()


def test_it_is_told_of_rollouts_that_are_judged_again(bundle: Bundle) -> None:
    reward = (bundle.folder / "reward.py").read_text()
    bundle.write("reward.py", reward.replace("    ok =", "    open('judge').close()\n    ok ="))
    assert agent_eval(bundle.dataset, agent="gold", n_rollouts=2, eval_id="one").unjudged
    Path("judge").touch()
    with pytest.raises(UsageError, match=r"progress\.ended raised test_own_progress"):
        agent_eval(resume="one", max_concurrency=1, progress=Told("ended"))
    told = Told()
    assert agent_eval(resume="one", progress=told).score == 1.0
    assert told.told == ["started", "ended", "closed"]
