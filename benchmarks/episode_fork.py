"""The cost of ``Episode.fork`` in the middle of a rollout: time of one fork, memory of thousands.

    python benchmarks/episode_fork.py [--open 5000] [--rounds 1000]

The rollout is a retail row whose gold actions have been played, with a simulated user. "Forked and asked" is
a fork with the first statement on its database. "Open" keeps all forks, each with its first statement done;
memory is the growth of the process. The table has medians, and targets beside them.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys
import time
from pathlib import Path

import click

from reward_kit.agent import Episode, TaskBundle

QUERY = "SELECT count(*) FROM users WHERE user_id = 'nobody'"
TURNS = 5
TARGET_MICROSECONDS, TARGET_MEGABYTES = 200, 300


async def played(bundle: TaskBundle) -> Episode:
    """An episode in which the gold actions of a row were played, and some lines were said."""
    task = next(task for task in bundle.tasks if task.row.actions and len(task.row.actions) > 3)
    episode = bundle.episode(task, models={"user": lambda _messages: "What else?"})
    await episode.start()
    for action in task.row.actions or ():
        await episode.call(action.name, action.arguments)
    for _ in range(TURNS):
        await episode.say("Done.")
    return episode


def resident() -> float:
    """Megabytes of memory that the process holds."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


async def measure(opened: int, rounds: int) -> None:
    with TaskBundle.load("tau_retail_task") as bundle, await played(bundle) as episode:
        alone, asked = [], []
        for _ in range(rounds):
            start = time.perf_counter()
            twin = episode.fork()
            forked = time.perf_counter()
            await twin.database.fetch_val(QUERY)
            alone.append(forked - start)
            asked.append(time.perf_counter() - start)
            twin.close()
        before, forks, crowded = resident(), [], []
        for _ in range(opened):
            start = time.perf_counter()
            forks.append(episode.fork())
            await forks[-1].database.fetch_val(QUERY)
            crowded.append(time.perf_counter() - start)
        grown = resident() - before
        for twin in forks:
            twin.close()
        click.echo(f"{len(episode.messages)} messages, {len(episode.tool_calls)} tool calls")
        for name, seconds in (("forked", alone), ("forked and asked", asked), ("as one of many", crowded)):
            value = statistics.median(seconds) * 1e6
            click.echo(f"{name:<18}{value:8.1f} us   (target {TARGET_MICROSECONDS})")
        click.echo(f"{opened} open       {grown:8.1f} MB   (target {TARGET_MEGABYTES} for 5000)")


@click.command()
@click.option("--open", "opened", default=5000, show_default=True, help="Forks that are open at a time.")
@click.option("--rounds", default=1000, show_default=True, help="Forks that are timed one by one.")
def main(opened: int, rounds: int) -> None:
    """Measure forks of an episode."""
    asyncio.run(measure(opened, rounds))


if __name__ == "__main__":
    main()
