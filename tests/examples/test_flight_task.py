"""The flight bundle of the tutorial: it is sound, and its rewards tell right from wrong."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import run_command

from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.agent.checks import validate_async
from reward_kit.agent.database import Database
from reward_kit.agent.rollout.orchestrator import run_rollout_async

EXAMPLE = Path(__file__).parents[2] / "examples" / "flight_task"

# As it was given to users, over several lines.
PUBLISHED_ROW = """\
{"id": "flight.booking.001", "seed_sql": "file:seed.sql",
 "end_goal_sql": "SELECT COUNT(*)>0 FROM bookings WHERE passenger='Alice' AND status='paid';",
 "initial_messages": [{"role": "user", "content": "Book me a flight from SFO to JFK for tomorrow morning"}],
 "sim_user_prompt": "You are Alice, a traveller.", "toolset": "flight_task.tools", "n_rollouts": 4}
"""


@pytest.fixture
def bundle() -> Iterator[TaskBundle]:
    with TaskBundle.load(EXAMPLE) as opened:
        yield opened


class Caller:
    """Makes the given calls; ``BOOKING`` stands for the last booking id. Then says the given text."""

    def __init__(self, *calls: tuple[str, dict[str, Any]], text: str = "Done") -> None:
        self.calls, self.text = calls, text

    async def respond(self, rollout: Any) -> str:
        booking = ""
        for name, arguments in self.calls:
            given = {key: booking if value == "BOOKING" else value for key, value in arguments.items()}
            answer = await rollout.call_tool(name, given)
            if "booking_id" in answer:
                booking = json.loads(answer)["booking_id"]
        return self.text


def book(flight: int, passenger: str) -> tuple[str, dict[str, Any]]:
    return "create_booking", {"flight_id": flight, "passenger": passenger}


PAY = ("pay_booking", {"booking_id": "BOOKING"})


async def test_the_bundle_is_sound(bundle: TaskBundle) -> None:
    report = await validate_async(bundle)
    assert report.ok
    assert report.warnings == []
    assert len(bundle.tasks) == 5


@pytest.mark.parametrize(
    ("row", "calls", "text", "expected"),
    [
        ("flight.booking.001", [book(1, "Alice")], "", 0.0),
        ("flight.booking.001", [book(1, "Bob"), PAY], "", 0.0),
        ("flight.booking.002", [book(6, "Bob Miller"), PAY], "", 0.0),
        ("flight.booking.002", [book(7, "Bob Miller"), PAY, book(7, "Bob Miller")], "", 0.0),
        ("flight.full.003", [book(2, "Carla Diaz"), PAY], "", 0.0),
        ("flight.full.003", [book(2, "Carla Diaz"), book(3, "Carla Diaz"), PAY], "", 1.0),
        ("flight.full.003", [book(4, "Carla Diaz"), PAY], "", 0.0),
        ("flight.question.004", [], "It leaves at 06:40.", 1.0),
        ("flight.question.004", [], "It leaves at 11:10.", 0.0),
        ("flight.question.004", [book(8, "Dan")], "It leaves at 06:40, and I booked it.", 0.0),
        ("flight.payment.005", [("pay_booking", {"booking_id": "7F3A91C2"}), book(1, "Erin Walsh")], "", 0.0),
    ],
)
async def test_the_rewards_tell_right_from_wrong(
    bundle: TaskBundle, tmp_path: Path, row: str, calls: list[Any], text: str, expected: float
) -> None:
    (task,) = bundle.select(task_ids=[row])
    agent = Caller(*calls, text=text or "Done")
    with Database.seed(tmp_path / "base.db", task.seed.sql, origin=task.seed.origin) as base:
        finished = await run_rollout_async(task, 0, base=base, agent=agent, seed=0)
        finished.database.close()
    assert (finished.trace.error, finished.trace.reward) == (None, expected)


def test_the_published_row_works_in_the_folder_as_it_was_given(tmp_path: Path) -> None:
    folder = tmp_path / "flight_task"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "task.jsonl").write_text(PUBLISHED_ROW)
    done = run_command("agent-eval", "--dataset", "task.jsonl", "--validate-only", cwd=folder)
    assert done.code == 0, done.err
    assert (
        "flight_task: 1 row, 3 tools: successfully validated; doing nothing earns the reward in none"
        in done.out
    )
