"""The option that names the runs folder, for commands that take names of evaluations."""

from __future__ import annotations

import click

runs_option = click.option(
    "-o",
    "--output-dir",
    "--log-dir",
    metavar="DIR",
    default="runs",
    help="The folder in which names are searched. Default: runs.",
)
