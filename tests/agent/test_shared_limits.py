"""What several processes send together: counted by a real server, requests and tokens in any window."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import Bundle, flight_bundle
from stub_server import Answer, StubServer, call

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.executors.shares import share_concurrency
from reward_kit.agent.providers import leave

WINDOW = 2.0
"""Seconds of a minute."""
LOST = 0.6
"""Seconds that a request may take longer to arrive than another."""

PLAYERS = '''
import asyncio
import json
import os
import time
from pathlib import Path


async def sleeps(rollout):
    """Says in which process it ran, and from when to when."""
    began = time.monotonic()
    await asyncio.sleep(0.3)
    Path(f"ran_{rollout.row.id}_{rollout.index}").write_text(
        json.dumps([os.getpid(), began, time.monotonic()])
    )
    return "Hello"
'''
DEADLY = """
import os
from pathlib import Path


@R.tool(description="Ends its process, once", parameters={})
async def die():
    try:
        Path("died").touch(exist_ok=False)
    except FileExistsError:
        return {"ok": True}
    os._exit(9)
"""


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    made = flight_bundle(tmp_path)
    made.rows(*({"id": f"row-{number}", "n_rollouts": 2} for number in range(3)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(leave, "MINUTE", WINDOW)
    return made


class Counted:
    """What came to a stub, and when."""

    def __init__(self, stub: StubServer, *answers: Any, tokens: int = 100, delay: float = 0.0) -> None:
        self.arrivals: list[float] = []
        self.tokens = tokens
        usage = {"prompt_tokens": tokens - 10, "completion_tokens": 10, "total_tokens": tokens}

        def answer(request: dict[str, Any], place: int) -> Answer:
            self.arrivals.append(time.monotonic())
            wanted = answers[min(place, len(answers) - 1)] if answers else "Hello"
            given = wanted if isinstance(wanted, Answer) else Answer(content=wanted)
            return Answer(content=given.content, tool_calls=given.tool_calls, usage=usage, delay=delay)

        stub.script("gpt-4o-mini", answer)

    @property
    def most(self) -> int:
        """The largest number of requests in any window."""
        times, seconds = self.arrivals, WINDOW - LOST
        return max(sum(begin <= time < begin + seconds for time in times) for begin in times)


def run(bundle: Bundle, **options: Any) -> EvaluationResult:
    return agent_eval(
        bundle.dataset, model="openai/gpt-4o-mini", user="none", **{"keep_db": "none", **options}
    )


def test_requests_per_minute_hold_for_all_processes_together(bundle: Bundle, stub_llm: StubServer) -> None:
    server = Counted(stub_llm)
    result = run(bundle, workers=3, rpm=2)
    assert [outcome.judged for outcome in result.outcomes] == [True] * 6
    assert len(server.arrivals) == 6
    assert server.most <= 2
    assert sum(outcome.waited_seconds > 0 for outcome in result.outcomes) >= 4
    assert result.averages.waiting is not None
    assert 0 < result.averages.waiting < 1
    assert all(outcome.waited_seconds <= outcome.seconds for outcome in result.outcomes)


def test_tokens_per_minute_hold_where_a_processs_part_is_less_than_a_call(
    bundle: Bundle, stub_llm: StubServer
) -> None:
    server = Counted(stub_llm, tokens=6_000)
    result = run(bundle, workers=4, tpm=13_000)
    assert [outcome.judged for outcome in result.outcomes] == [True] * 6
    assert server.most * server.tokens <= 13_000


def test_a_process_that_dies_midway_takes_nothing_of_the_limits_along(
    bundle: Bundle, stub_llm: StubServer
) -> None:
    bundle.write("tools.py", (bundle.folder / "tools.py").read_text() + DEADLY)
    server = Counted(stub_llm, call("die"), "Hello")
    result = run(bundle, workers=2, rpm=4)
    assert Path("died").exists()
    assert [outcome.judged for outcome in result.outcomes] == [True] * 6
    assert len(server.arrivals) >= 12
    assert server.most <= 4


def test_calls_that_are_refused_while_others_wait_for_leave(bundle: Bundle, stub_llm: StubServer) -> None:
    server = Counted(stub_llm)
    stub_llm.fail("gpt-4o-mini", Answer(status=429, headers={"Retry-After": "0.5"}), times=3)
    stub_llm.fail("gpt-4o-mini", Answer(status=500), times=2)
    result = run(bundle, workers=3, rpm=6, tpm=700, retries=3)
    assert [outcome.judged for outcome in result.outcomes] == [True] * 6
    assert len(server.arrivals) == 6
    assert server.most <= 6


def test_what_is_waited_for_leave_is_not_part_of_a_rollouts_time(
    bundle: Bundle, stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reward_kit.agent.executors.worker_processes.HANG_GRACE", 2.0)
    Counted(stub_llm)
    result = run(bundle, workers=3, rpm=1, timeout=3.0, retries=0)
    assert {outcome.stop_reason for outcome in result.outcomes} == {"agent_done"}
    assert result.seconds > 8.0


@pytest.mark.parametrize(("most", "workers", "processes"), [(5, 4, 4), (2, 4, 2), (1, 3, 1)])
def test_never_more_rollouts_at_the_same_time_than_max_concurrency(
    bundle: Bundle, tmp_path: Path, most: int, workers: int, processes: int
) -> None:
    name = f"shared_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(PLAYERS)
    agent_eval(bundle.dataset, agent=f"{name}:sleeps", user="none", workers=workers, max_concurrency=most)
    ran = [json.loads(path.read_text()) for path in tmp_path.glob("ran_*")]
    assert len(ran) == 6
    assert max(sum(began <= moment < ended for _, began, ended in ran) for _, moment, _ in ran) <= most
    assert len({process for process, *_ in ran}) == processes
    assert os.getpid() not in {process for process, *_ in ran}


@pytest.mark.parametrize(
    ("most", "processes", "parts"),
    [(5, 4, [2, 1, 1, 1]), (10, 3, [4, 3, 3]), (4, 4, [1, 1, 1, 1]), (8, 1, [8])],
)
def test_max_concurrency_is_split_without_a_rest(most: int, processes: int, parts: list[int]) -> None:
    assert share_concurrency(most, processes) == parts
