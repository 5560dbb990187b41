"""``reward-kit init``: make a new bundle."""

from __future__ import annotations

from pathlib import Path

import click

from reward_kit.agent.base.printing import say
from reward_kit.cli.common_options import command
from reward_kit.errors import RewardKitError, UsageError


@command("init")
@click.argument("name", type=click.Path(path_type=Path))
@click.option("--from-openapi", type=click.Path(path_type=Path), help="Make tools of an OpenAPI 3 file.")
@click.option("--from-mcp", metavar="COMMAND", help="Make tools of the MCP server that COMMAND starts.")
def init(name: Path, from_openapi: Path | None, from_mcp: str | None) -> None:
    """Make a new bundle, with comments that say what to do.

    NAME is its folder. It validates as it is; its comments say what to change. With --from-openapi or
    --from-mcp, it has the tools of that API, with bodies, data and tasks to be written.
    """
    from reward_kit.agent.bundles.new_bundle import tools_of_mcp, tools_of_openapi, write_starter

    if from_openapi is not None and from_mcp is not None:
        raise UsageError("cannot be combined with --from-openapi", place="--from-mcp")
    tools = tools_of_openapi(from_openapi) if from_openapi else tools_of_mcp(from_mcp) if from_mcp else []
    origin = from_openapi.name if from_openapi else f"the MCP server {from_mcp}"
    try:
        files = write_starter(name, tools, origin)
    except OSError as error:
        raise RewardKitError(f"cannot be written: {error.strerror}", place=str(name)) from error
    say(f"{name} has {', '.join(files)}. Next:")
    if tools:
        say(f"  reward-kit tools {name}    # {len(tools)} tools; write their bodies, the data and the tasks")
    else:
        say(f"  reward-kit validate {name}")
        say(f"  reward-kit agent-eval {name} --agent gold")
