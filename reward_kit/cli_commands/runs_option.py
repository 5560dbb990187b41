"""The option that says where stored evaluations lie, for the commands that look for them by name."""

from __future__ import annotations

import click

runs_option = click.option(
    "-o",
    "--output-dir",
    "--log-dir",
    metavar="DIR",
    default="runs",
    help="The folder in which names are looked for. Default: runs.",
)
