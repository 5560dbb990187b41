"""``reward-kit play``: play a rollout by hand."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from reward_kit.agent.base.network import LOOPBACK, listen
from reward_kit.agent.base.printing import say
from reward_kit.cli.agent_eval import INTERRUPTED, run

PLAY = "play"
"""The address of the page of ``play --browser``."""


@click.command()
@click.argument("bundle")
@click.argument("row")
@click.option(
    "--as", "side", type=click.Choice(["agent", "user", "both"]), default="agent", show_default=True
)
@click.option("--model", metavar="NAME", help="The agent's model, if you are the user.")
@click.option("--user-model", metavar="NAME", help="The simulated user's model, if you are the agent.")
@click.option("--output-dir", default="runs", show_default=True, metavar="DIR", help="Where results go.")
@click.option("--browser", is_flag=True, help="Play on a page in a browser on this machine.")
def play(
    bundle: str,
    row: str,
    side: str,
    model: str | None,
    user_model: str | None,
    output_dir: str,
    browser: bool,
) -> int:
    """Play a rollout by hand: as agent, as user, or as both.

    The reward is shown at the end. The other side is a model: --user-model if you are the agent of a row
    with a simulated user, --model if you are the user.
    """
    from reward_kit.agent.evaluation.options import make_config

    given: dict[str, Any] = {"dataset": bundle, "task_ids": row, "n_rollouts": 1, "output_dir": output_dir}
    given |= {"agent": "human" if side != "user" else None, "user": "human" if side != "agent" else None}
    given |= {"model": model, "sim_model": user_model}
    given = {name: value for name, value in given.items() if value is not None}
    return _play_in_browser(given) if browser else run(make_config(given))


def _play_in_browser(given: dict[str, Any]) -> int:
    """Play on a page, and serve it with the others until Ctrl-C."""
    from reward_kit.agent.evaluation.options import make_config, new_name
    from reward_kit.agent.evaluation.terminal_progress import outcome_line
    from reward_kit.agent.players.agents.human import SCREEN
    from reward_kit.agent.reports.pages.play_page import PlayPage
    from reward_kit.agent.reports.pages.rendering import rollout_address
    from reward_kit.agent.reports.pages.site import served
    from reward_kit.agent.store.stored_evaluation import load_evaluation

    config = make_config({**given, "eval_id": new_name(), "quiet": True})
    page = PlayPage()
    SCREEN.set(page)
    with listen(LOOPBACK, 0) as listener, served(Path(config.output_dir), listener, page.route(PLAY)):
        site = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        say(f"{site}/{PLAY} (Ctrl-C ends it)")
        sys.stdout.flush()
        code = run(config)
        if code == INTERRUPTED:
            return code
        for outcome in load_evaluation(str(config.eval_id), config.output_dir).outcomes:
            page.result, page.link = outcome_line(outcome), rollout_address(outcome)
            say(f"{page.result}\n{site}/{page.link} (Ctrl-C ends it)")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            while page.link:
                time.sleep(3600)
    return code
