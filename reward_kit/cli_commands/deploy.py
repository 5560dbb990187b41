"""``reward-kit deploy``: says that it is gone, and what to do instead.

The options of the earlier releases are still read, so that scripts get this answer and not a complaint
about an option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.printing import say
from reward_kit.cli_commands.preview import FolderListCommand, folders_option
from reward_kit.compat.evaluation import create_evaluation
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    import argparse


@click.command(
    cls=FolderListCommand, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
@click.option("--id", required=True)
@folders_option
@click.option("--display-name")
@click.option("--description")
@click.option("--force", "-f", is_flag=True)
@click.option("--remote-url")
def deploy(**options: Any) -> None:
    """Not part of this package: evaluators are deployed by the platform's own tools."""
    create_evaluation(**options)


def deploy_command(args: argparse.Namespace) -> int:
    """The same for arguments that ``reward_kit.cli.parse_args`` read: prints the error, gives 1."""
    try:
        create_evaluation(args)
    except RewardKitError as error:
        say(f"Error: {error}", err=True)
    return 1
