"""``reward-kit list``: the installed bundles."""

from __future__ import annotations

from reward_kit.agent.base.printing import say, warn
from reward_kit.agent.base.text import count
from reward_kit.cli.common_options import command
from reward_kit.errors import RewardKitError


@command("list")
def list_bundles() -> None:
    """List the installed bundles.

    Packages make them known by an entry point in the group reward_kit.bundles.
    """
    from importlib.metadata import entry_points

    from reward_kit.agent.bundles.files import BundleFiles
    from reward_kit.agent.bundles.packing import bundle_hash, file_hashes
    from reward_kit.agent.bundles.source import find_bundle
    from reward_kit.agent.rows.dataset import read_dataset

    found = sorted(entry_points(group="reward_kit.bundles"), key=lambda point: point.value)
    for point in found:
        try:
            folder = find_bundle(point.value).folder
            version = f" {point.dist.version}" if point.dist is not None else ""
            say(f"{point.value}{version}  {bundle_hash(file_hashes(folder))[:16]}  {folder}")
            for path in sorted(folder.glob("*.jsonl")):
                say(f"  {path.name}: {count(len(read_dataset(path, BundleFiles(folder)).rows), 'row')}")
        except RewardKitError as error:
            warn(f"{point.value}: {error}")
    if not found:
        say("No installed package has a bundle.")
