"""``reward-kit pack``: a bundle in one file."""

from __future__ import annotations

from pathlib import Path

import click

from reward_kit.agent.base.printing import say, warn
from reward_kit.agent.base.text import count
from reward_kit.cli.common_options import command
from reward_kit.errors import UsageError


@command("pack")
@click.argument("bundle")
@click.option(
    "--out",
    "-o",
    "--output",
    "output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The archive. Default: NAME.tar.gz.",
)
@click.option("--licence", "--license", metavar="SPDX", help="The bundle's licence, such as Apache-2.0.")
def pack(bundle: str, output: Path | None, licence: str | None) -> None:
    """Pack a bundle into one file, to share it.

    --dataset takes that file. The same files always give the same archive. A manifest in it
    has the hash of each file, which is checked when it is unpacked. Results, caches and hidden files are left
    out; files with keys are refused.
    """
    from reward_kit.agent.bundles.bundle import read_bundle
    from reward_kit.agent.bundles.new_bundle import has_starters_readme
    from reward_kit.agent.bundles.packing import pack as pack_folder

    with read_bundle(bundle) as rows:
        target = output or Path(f"{rows.folder.name}.tar.gz")
        if not target.name.endswith((".tar.gz", ".tgz")):
            raise UsageError("is not a name of a .tar.gz file", place=f"--out {target}")
        if licence is None and not any(rows.folder.glob("LICEN[SC]E*")):
            warn("the bundle has no licence: others may not use it; add a LICENSE file or --licence")
        if has_starters_readme(rows.folder):
            warn("README.md is still the one that reward-kit init wrote: say in it what the bundle measures")
        digest = pack_folder(rows.folder, target, rows=len(rows.rows), licence=licence)
        say(f"{target}: {count(len(rows.rows), 'row')}, {target.stat().st_size} bytes, sha256 {digest}")
