"""An evaluation that is killed at random moments, again and again, ends as an undisturbed one.

Real processes and real signals. ``make test-thorough`` kills a hundred times, or ``REWARD_KIT_KILLS`` times.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from command import start, wait_for
from flight_bundle import flight_bundle
from seeded_players import AGENT, BEGUN, USER, write_players
from stored_rollouts import query_so_far
from thorough import THOROUGH, often

from reward_kit.agent.rollout.outcome import BrokenOff
from reward_kit.agent.store.layout import load_evaluation
from reward_kit.agent.store.loading import load_rollout
from reward_kit.agent.store.writer import LARGEST_GROUP, writer_of

KILLS = int(os.environ.get("REWARD_KIT_KILLS", often(100, 3)))
SEED = int(os.environ.get("REWARD_KIT_KILLS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
STARTING = 1.0 if THOROUGH else 0.1
"""Seconds that a command needs to start: as a new Python, or forked."""
ROWS = 8
MINUTE = 60.0
INTERRUPTED = 130

Key = tuple[str, int]


class Killed:
    """The evaluation ``mine`` in a folder, and what its log and its agent say of it."""

    def __init__(self, folder: Path, n_rollouts: int) -> None:
        self.folder = folder
        self.n_rollouts = n_rollouts
        self.planned = n_rollouts * ROWS
        bundle = flight_bundle(folder)
        bundle.rows(*({"id": f"row{number}", "max_steps": 8} for number in range(ROWS)))
        write_players(folder)
        self.dataset = bundle.dataset
        self.log = folder / "runs" / "evals" / "mine.db"

    def options(self, name: str) -> list[str]:
        line = f"--dataset {self.dataset} --agent {AGENT} --user {USER} --eval-id {name} --quiet"
        return [*line.split(), "--n-rollouts", str(self.n_rollouts)]

    def start(self, *options: str) -> subprocess.Popen[str]:
        return start("agent-eval", *options, cwd=self.folder, stdout=subprocess.DEVNULL)

    def finished(self) -> list[Key]:
        """The finished rollouts in the store; one that is there twice was counted twice."""
        found = query_so_far(self.log, "SELECT row_id, idx FROM rollouts WHERE final ORDER BY seq")
        return [(row["row_id"], row["idx"]) for row in found]

    def begun(self) -> list[Key]:
        """What the agent was asked to play since the last call."""
        path = self.folder / BEGUN
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [(row_id, int(index)) for row_id, index in (line.split() for line in lines)]

    def wait_for_growth(self, process: subprocess.Popen[str], lines: int) -> None:
        """Return when this many rollouts have come to the store, or the process has ended."""
        start = len(self.finished())
        wait_for(lambda: process.poll() is not None or len(self.finished()) - start >= lines)


def kill(process: subprocess.Popen[str], way: signal.Signals, chance: random.Random) -> None:
    """End it; asked in a friendly manner, it ends in good order and says so."""
    process.send_signal(way)
    if way is not signal.SIGKILL and chance.random() < 0.5:
        time.sleep(0.02 * chance.random())
        process.kill()  # in the middle of its good order
        way = signal.SIGKILL
    _, errors = process.communicate(timeout=MINUTE)
    assert "Traceback" not in errors, errors
    assert process.returncode in (-way, 0, INTERRUPTED), errors


def told(folder: Path, results: Path) -> dict[str, Any]:
    """All of an evaluation's results, with its trajectories, but for names of files, ids and times, and for
    what rollouts have used that were broken off: in an undisturbed run there are none.
    """
    result = json.loads(results.read_text())
    times = ("eval_id", "seconds", "configuration", "broken_off")
    plain = {name: value for name, value in result.items() if name not in times}
    plain["averages"] = without(plain["averages"], ("seconds", "model_call_seconds"))
    for row in plain["rows"]:
        row["rollouts"] = [told_of(folder, rollout) for rollout in row["rollouts"]]
        del row["seconds"]
    return plain


def told_of(folder: Path, rollout: dict[str, Any]) -> dict[str, Any]:
    own = ("id", "file", "database", "eval_id", "started", "seconds", "model_seconds")
    record = load_rollout(folder / rollout["file"]).to_json()
    for calls in ("tool_calls", "model_calls"):
        record[calls] = [without(call, ("started", "seconds")) for call in record[calls]]
    return {**without(rollout, own), "trajectory": without(record, own)}


def without(plain: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in plain.items() if name not in names}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("workers", "kills", "at_once", "per_kill"),
    [  # per_kill: rollouts of a row; some 300 may end in the second before a kill, and it must not be over
        (0, KILLS, range(2, 9), 5),
        (2, max(KILLS // 6, 1), range(2, 9), 30),
        (0, max(KILLS // 6, 1), range(LARGEST_GROUP, LARGEST_GROUP + 9), 20),
    ],
    ids=["few", "workers", "crowd"],
)
def test_killed_at_random_moments_it_ends_as_undisturbed(
    tmp_path: Path, workers: int, kills: int, at_once: range, per_kill: int
) -> None:
    chance = random.Random(SEED)
    mine = Killed(tmp_path, per_kill * kills)
    undisturbed = mine.start(*mine.options("undisturbed"), "--output-dir", "undisturbed")
    assert undisturbed.wait(MINUTE) == 0
    assert len(mine.begun()) == mine.planned
    for number in range(kills):
        before = set(mine.finished())
        again = ["--resume", "mine", "--quiet"] if before and chance.random() < 0.5 else mine.options("mine")
        more = ["--workers", str(workers)] if workers else []
        process = mine.start(*again, "--max-concurrency", str(chance.choice(at_once)), *more)
        way = chance.choice([signal.SIGKILL] * 5 + [signal.SIGTERM, signal.SIGINT])
        lines = chance.choice([0, 1, 2, 4, 7, 10])
        if number == kills - 1 and not before:
            lines = 10  # all kills may come while it starts; one is to find something finished
        if lines == 0 and way is signal.SIGKILL:
            time.sleep(STARTING * chance.random())  # while it starts, most often
        else:  # Python itself, while it starts, answers SIGINT with a traceback
            mine.wait_for_growth(process, max(lines, 1))
            time.sleep(0.02 * chance.random())
        where = f"kill {number} (REWARD_KIT_KILLS_SEED={SEED})"
        assert process.poll() is None, f"over before {where}"
        kill(process, way, chance)
        again_begun = before & set(mine.begun())
        # The workers of a killed process may begin one more each before they notice.
        assert not again_begun or workers, f"a finished rollout was run again before {where}"
        after = mine.finished()
        assert len(after) == len(set(after)), f"a rollout was counted twice before {where}"
        assert before <= set(after), f"a finished rollout was lost before {where}"
    assert 0 < len(mine.finished()) < mine.planned
    assert mine.start(*mine.options("mine")).wait(MINUTE) == 0
    assert len(mine.finished()) == len(set(mine.finished())) == mine.planned
    evals = mine.log.parent
    assert told(tmp_path / "runs", evals / "mine.json") == told(
        tmp_path / "undisturbed", tmp_path / "undisturbed" / "evals" / "undisturbed.json"
    )
    broken_off = json.loads((evals / "mine.json").read_text()).get("broken_off", BrokenOff().to_json())
    assert broken_off == load_evaluation(mine.log).broken_off.to_json()
    assert writer_of(mine.log) is None
