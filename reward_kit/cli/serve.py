"""``reward-kit serve``: episodes of a bundle over HTTP, also for OpenEnv and NeMo Gym."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.network import address_of, listen
from reward_kit.agent.base.printing import say, warn
from reward_kit.agent.base.text import count
from reward_kit.cli.common_options import command, listening_options
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Model, Role
    from reward_kit.integrations.serving.episodes import Episodes


@command("serve")
@click.argument("bundle")
@click.option(
    "--user-model",
    "--sim-model",
    metavar="NAME",
    envvar="MODEL_SIM",
    help="The simulated user's model.",
)
@click.option("--user", metavar="NAME", help="The simulated user: react, none, module:function and others.")
@click.option("--reasons", is_flag=True, help="Send the whole reason of a reward, which may name the answer.")
@listening_options()
def serve(bundle: str, user_model: str | None, user: str | None, reasons: bool, host: str, port: int) -> None:
    """Serve episodes of a bundle over HTTP, for trainers.

    A client begins an episode in a session, calls tools, says lines to the simulated user, and gets the
    reward at the end: /docs has all routes. Those of OpenEnv and NeMo Gym are among them.

    Clients must send the bearer token of the environment variable REWARD_KIT_SERVER_TOKEN if it is set; it is
    required for listening on any other address than this machine's own.
    """
    import uvicorn

    from reward_kit.agent.bundles.bundle import TaskBundle
    from reward_kit.agent.players.loading import load_user
    from reward_kit.agent.servers.access import check_guarded
    from reward_kit.agent.servers.http import MAX_BODY, TOKEN
    from reward_kit.integrations.serving.app import build_app
    from reward_kit.integrations.serving.episodes import Episodes

    check_guarded(TOKEN, host)
    models = _models(bundle, user_model)
    with TaskBundle.load(bundle) as loaded, listen(host, port) as listener:
        played_by: dict[str, Any] = {}
        if user is not None:
            load_user(user)
            played_by["user"] = user
        episodes = Episodes(loaded, reasons=reasons, models=models, **played_by)
        _warn_of_unplayable(episodes)
        say(f"{address_of(host, listener)} (Ctrl-C ends it)")
        sys.stdout.flush()
        app = build_app(episodes, models.values())
        config = uvicorn.Config(app, log_level="warning", ws_max_size=MAX_BODY, timeout_graceful_shutdown=2)
        uvicorn.Server(config).run(sockets=[listener])


def _models(bundle: str, user_model: str | None) -> dict[Role, Model]:
    """The user's model; raises ``ModelSetupError`` for one that cannot be called."""
    if not user_model:
        return {}
    from reward_kit.agent.evaluation.options import make_config
    from reward_kit.agent.models.calls import Limiters
    from reward_kit.agent.players.participants import find_models
    from reward_kit.integrations.serving.episodes import MAX_SESSIONS

    config = make_config({"dataset": bundle, "sim_model": user_model})
    return find_models(config, Limiters(ceiling=MAX_SESSIONS), agent=False, user=True)


def _warn_of_unplayable(episodes: Episodes) -> None:
    refused = []
    for task in episodes.bundle.tasks:
        try:
            episodes.talks(task)
        except UsageError as error:
            refused.append(error)
    if refused:
        others = len(refused) - 1
        more = f" ({count(others, 'row')} more)" if others else ""
        warn(f"{refused[0]}{more}")
