"""``reward-kit play``: play a rollout by hand, and save it as a row."""

from __future__ import annotations

import json
import shlex
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.files import check_target
from reward_kit.agent.base.network import LOOPBACK, listen
from reward_kit.agent.base.printing import say
from reward_kit.agent.base.text import count, from_here
from reward_kit.cli.agent_eval import DONE, INCOMPLETE, INTERRUPTED, evaluated
from reward_kit.cli.options import PATH, command, runs_option, user_model_option
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Role
    from reward_kit.agent.bundles.bundle import BundleRows
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.players.agents.human import Screen
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.rows.task_row import TaskRow
    from reward_kit.agent.store.results import EvaluationResult

PLAY = "play"
"""The address of the page of ``play --browser``."""
SETTING = ("toolset", "toolset_outside", "user_toolset", "seed_sql", "system_prompt", "now")
"""Fields that a new row takes from the first row of its dataset."""
SIDE = click.Choice(["agent", "user", "both"])


@command("play")
@click.argument("bundle")
@click.argument("row", required=False)
@click.option("--as", "side", type=SIDE, help="Who you are. Default: the agent; in a new row both.")
@click.option("--model", metavar="NAME", help="The agent's model, if you are the user.")
@user_model_option(help="The simulated user's model, if you are the agent.")
@click.option("--save-row", metavar="ID", help="Save what you do as the gold actions of the row ID.")
@click.option("--out", type=PATH, metavar="FILE", help="Save it there, not in the dataset.")
@runs_option
@click.option("--browser", is_flag=True, help="Play on a page in a browser on this machine.")
def play(
    bundle: str, row: str | None, side: str | None, save_row: str | None, out: Path | None, **options: Any
) -> int:
    """Play a rollout by hand: as agent, as user, or as both.

    The reward is shown at the end; a row need not have one yet. The other side is a model: --user-model if
    you are the agent of a row with a simulated user, --model if you are the user.

    \b
      reward-kit play my_task lend.1
      reward-kit play my_task --save-row lend.4

    With --save-row, the calls that changed something become the gold actions of the row ID: of ROW itself, if
    that is its id and it has none, else of a copy of ROW. Without ROW it is a new row: with the defaults of
    the dataset, and tools, data and system prompt of the first row. It begins with what you say as the user.
    """
    from reward_kit.agent.after.as_row import stated_fields
    from reward_kit.agent.bundles.bundle import read_bundle
    from reward_kit.agent.bundles.task import select_tasks
    from reward_kit.agent.evaluation.options import make_config, new_name

    given = {"dataset": bundle, "n_rollouts": 1, "output_dir": options["output_dir"], "quiet": True}
    with read_bundle(bundle) as rows, TemporaryDirectory(prefix="reward-kit-") as scratch:
        if row is not None:
            played, *others = select_tasks(rows.rows, task_ids=row, called=lambda _: "ROW")
            if others:
                raise UsageError(f"{row!r} names {1 + len(others)} rows; play takes one", place="ROW")
            side = side or "agent"
        elif save_row is not None:
            played, side = _new_row(rows, save_row), side or "both"
            file = Path(scratch) / rows.dataset.name
            file.write_text(json.dumps(stated_fields(played.reward_fields())), encoding="utf-8")
            given |= {"dataset": str(file), "task_dir": str(rows.folder)}
        else:
            remedy = "Name a row of the bundle, or the id of a new one with --save-row."
            raise UsageError("no row is named", place="ROW", remedy=remedy)
        saving = _Saving.checked(rows, played, save_row, out, is_new=row is None)
        given |= {"task_ids": [played.id], "eval_id": new_name()}
        given |= {"model": options["model"], "sim_model": options["user_model"]}
        given |= {"agent": None if side == "user" else "human", "user": None if side == "agent" else "human"}
        config = make_config({name: value for name, value in given.items() if value is not None})
        name, flag = ("model", "--model") if side == "user" else ("sim_model", "--user-model")
        needed = side == "user" or (side == "agent" and played.sim_user_prompt)
        if needed and not config.or_environment(name):
            other = "agent" if side == "user" else "simulated user"
            remedy = f"Name one with {flag}, or be both: --as both."
            raise UsageError(f"the {other} needs a model", remedy=remedy)
        if options["browser"]:
            return _in_browser(config, side, saving)
        return _over(evaluated(config, _players(side)), saving)


def _new_row(rows: BundleRows, row_id: str) -> TaskRow:
    """A row that is not in the dataset, without a reward."""
    from reward_kit.agent.bundles.task import no_answer
    from reward_kit.agent.rows.task_row import TaskRow

    setting = {name: getattr(rows.rows[0], name) for name in SETTING}
    fields = {"sim_user_prompt": "", **setting, **rows.defaults}
    return TaskRow.from_json({**fields, "id": row_id, "reward": f"{no_answer.__module__}:no_answer"})


@dataclass(frozen=True, slots=True)
class _Saving:
    """The row as which a rollout is saved; if ``fills``, as the answer of a row of the dataset."""

    row_id: str
    target: Path
    like: dict[str, Any]
    fills: bool

    @classmethod
    def checked(
        cls, rows: BundleRows, row: TaskRow, row_id: str | None, out: Path | None, *, is_new: bool
    ) -> _Saving | None:
        """Raise ``UsageError`` before anything is played if it cannot be saved."""
        from reward_kit.agent.after.as_row import stated_fields
        from reward_kit.agent.rows.dataset import check_is_new, row_as_written
        from reward_kit.agent.rows.task_row import TaskRow

        if row_id is None:
            if out is not None:
                raise UsageError("names the file for --save-row, which is not given", place="--out")
            return None
        check_target("--out", out)
        if out is None and rows.is_unpacked:
            raise UsageError("the bundle is packed", place="--save-row", remedy="Name a file with --out.")
        TaskRow.from_json({"id": row_id, "toolset": row.toolset})
        fills = not is_new and out is None and row_id == row.id
        written = {} if is_new else row_as_written(rows.dataset, row.id)
        if not fills:
            check_is_new(out or rows.dataset, row_id)
        elif row.actions is not None or "actions" in written or not written.get("outputs", True):
            fault = f"row {row_id!r} has actions, or empty outputs"
            raise UsageError(fault, place="--save-row", remedy="Choose another id.")
        like = rows.defaults | written
        if is_new:
            like = stated_fields(row.reward_fields())
            like |= {"reward": None, "sim_user_prompt": row.sim_user_prompt or None}
        return cls(row_id, out or rows.dataset, like, fills)

    def save(self, trace: Trace) -> None:
        """Save it and say so."""
        from reward_kit.agent.after.as_row import row_of
        from reward_kit.agent.base.types import UNJUDGED_STOPS
        from reward_kit.agent.rewards.checks import said_to_user
        from reward_kit.agent.rows.dataset import add_answer, add_row

        if trace.stop_reason in UNJUDGED_STOPS or not (trace.tool_calls or said_to_user(trace.messages)):
            say(f"not saved: {trace.stop_detail or 'nothing was called or said'}")
            return
        row = row_of(trace, self.row_id, like=self.like)
        (add_answer if self.fills else add_row)(self.target, row)
        outputs = f" and the outputs {', '.join(map(repr, row['outputs']))}" if row.get("outputs") else ""
        place = from_here(self.target)
        say(f"saved: row {self.row_id!r} in {place}, with {count(len(row['actions']), 'action')}{outputs}")
        say(f"  {shlex.join(['reward-kit', 'validate', str(place)])}")


def _players(side: str, screen: Screen | None = None) -> dict[Role, Any]:
    """The person at one screen, as the players that they are."""
    from reward_kit.agent.players.agents.human import HumanAgent, HumanUser

    agent: dict[Role, Any] = {"agent": partial(HumanAgent, screen)}
    user: dict[Role, Any] = {"user": partial(HumanUser, screen, alone=side == "user")}
    return {"agent": agent, "user": user, "both": agent | user}[side]


def _over(result: EvaluationResult, saving: _Saving | None) -> int:
    """Show the reward of the rollout, and save it; returns the exit code."""
    from reward_kit.agent.bundles.imports import JUDGED_BY

    if result.status == "interrupted":
        return INTERRUPTED
    outcome = result.outcomes[0]
    with result.record(outcome) as trace:
        unanswered = not trace.row.given_fields() & {*JUDGED_BY} and not trace.outputs
        if outcome.reward is not None:
            more = " (the row has no answer yet)" if unanswered else ""
            say(f"reward {outcome.reward:g}{more}\n{(trace.result or {}).get('reason') or ''}".rstrip())
        elif unanswered and trace.error is not None:
            say("no reward: the row has no answer yet")
        else:
            say(f"not judged: {outcome.trouble}")
        if saving is not None:
            saving.save(trace)
    return DONE if result.complete or (unanswered and trace.error is not None) else INCOMPLETE


def _in_browser(config: EvaluationConfig, side: str, saving: _Saving | None) -> int:
    """Play on a page, and serve it with the others until Ctrl-C."""
    from reward_kit.agent.evaluation.progress import outcome_line
    from reward_kit.agent.reports.pages.play_page import PlayPage
    from reward_kit.agent.reports.pages.rendering import rollout_address
    from reward_kit.agent.reports.pages.site import served

    page = PlayPage()
    with listen(LOOPBACK, 0) as listener, served(Path(config.output_dir), listener, page.route(PLAY)):
        site = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        say(f"{site}/{PLAY} (Ctrl-C ends it)")
        sys.stdout.flush()
        result = evaluated(config, _players(side, page))
        code = _over(result, saving)
        if code == INTERRUPTED:
            return code
        (outcome,) = result.outcomes
        page.result, page.link = outcome_line(outcome), rollout_address(outcome)
        say(f"{page.result}\n{site}/{page.link} (Ctrl-C ends it)")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            while page.link:
                time.sleep(3600)
    return code
