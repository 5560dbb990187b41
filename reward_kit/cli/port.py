"""``reward-kit port``: benchmarks of others as bundles, and their results as evaluations."""

from __future__ import annotations

import click

from reward_kit.cli.common_options import Command
from reward_kit.cli.port_results import results


class _Commands(click.Group):
    command_class = Command


@click.group(cls=_Commands)
def port() -> None:
    """Read the tasks and results of other benchmarks."""


port.add_command(results)
