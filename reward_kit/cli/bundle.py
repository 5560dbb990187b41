"""Commands on one bundle, or the installed ones: ``init``, ``pack``, ``tools`` and ``list``."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reward_kit.agent.base.files import write_output
from reward_kit.agent.base.printing import print_lines, say, warn
from reward_kit.agent.base.text import count, json_text
from reward_kit.cli.options import PATH, command, file_option, output_for, row_option
from reward_kit.errors import RewardKitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.bundles.bundle import Task, TaskBundle
    from reward_kit.agent.tools.registry import ToolRegistry


@command("init")
@click.argument("name", type=PATH)
@click.option("--from-openapi", type=PATH, help="Make tools of an OpenAPI 3 file.")
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
        say(f"  reward-kit validate {name}\n  reward-kit agent-eval {name} --agent gold")


@command("pack")
@click.argument("bundle")
@click.option("--out", "--output", "target", metavar="FILE", help="The archive. Default: NAME.tar.gz.")
@click.option("--licence", "--license", metavar="SPDX", help="The bundle's licence, such as Apache-2.0.")
def pack(bundle: str, target: str | None, licence: str | None) -> None:
    """Pack a bundle into one file, to share it.

    --dataset takes that file. The same files always give the same archive. A manifest in it
    has the hash of each file, which is checked when it is unpacked. Results, caches and hidden files are left
    out; files with keys are refused.
    """
    from reward_kit.agent.bundles import source
    from reward_kit.agent.bundles.bundle import read_bundle
    from reward_kit.agent.bundles.new_bundle import has_starters_readme

    with read_bundle(bundle) as rows:
        if rows.dataset.name != source.DATASET:
            raise UsageError(f"an archive is played by its {source.DATASET}: name the folder", place=bundle)
        file = Path(target or f"{rows.folder.name}.tar.gz")
        if not file.name.endswith((".tar.gz", ".tgz")):
            raise UsageError("is not a name of a .tar.gz file", place=f"--out {file}")
        if licence is None and not any(rows.folder.glob("LICEN[SC]E*")):
            warn("the bundle has no licence: others may not use it; add a LICENSE file or --licence")
        if has_starters_readme(rows.folder):
            warn("README.md is still the one that reward-kit init wrote: say in it what the bundle measures")
        above = (row.toolset for row in rows.rows if f".{rows.folder.name}." in row.toolset[1:])
        if name := next(above, None):
            warn(f"the toolset {name} is in a package that is not packed: write .tools, or name it as needed")
        digest = source.pack(rows.folder, file, rows=len(rows.rows), licence=licence)
        say(f"{file}: {count(len(rows.rows), 'row')}, {file.stat().st_size} bytes, sha256 {digest}")


pack.renamed = {"-o": "--out"}


@command("list")
def list_bundles() -> None:
    """List the installed bundles.

    Packages make them known by an entry point in the group reward_kit.bundles.
    """
    from importlib.metadata import entry_points

    from reward_kit.agent.bundles.files import BundleFiles
    from reward_kit.agent.bundles.source import bundle_hash, file_hashes, find_bundle
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


@command("tools")
@click.argument("bundle")
@row_option(help="The row whose tools and data to take. Default: the first.")
@click.option("--call", nargs=2, multiple=True, metavar="TOOL ARGUMENTS", help="Call a tool; repeatable.")
@file_option("--json", help="Write the schemas as a model gets them.")
def tools(bundle: str, row: str | None, call: tuple[tuple[str, str], ...], json_path: str | None) -> int:
    """Show a bundle's tools as a model sees them; call them.

    \b
      reward-kit tools my_task
      reward-kit tools my_task --call find_books '{"title": "solaris"}'

    The calls are made one after the other on one copy of a row's data, which is thrown away. The exit
    code is 1 if a tool refused a call or failed.
    """
    from reward_kit.agent.bundles.bundle import TaskBundle
    from reward_kit.agent.bundles.task import select_tasks
    from reward_kit.agent.evaluation.signals import run_in_loop

    with output_for(None if call else json_path) as output, TaskBundle.load(bundle, unanswered=True) as found:
        task = select_tasks(found.tasks, task_ids=row, called=lambda _: "--rows")[0]
        if call:
            return run_in_loop(_call(found, task, call))
        if json_path is not None:
            schemas = json.dumps(task.registry.get_openai_tools(), indent=2, ensure_ascii=False)
            write_output([f"{schemas}\n".encode()], json_path, output)
        else:
            print_lines(_schema_lines(task.registry))
    return 0


def _schema_lines(registry: ToolRegistry) -> Iterator[str]:
    for tool in registry.get_openai_tools():
        about = tool["function"]
        schema = about["parameters"]
        yield f"{about['name']}: {about.get('description', '')}"
        for name, one in schema.get("properties", {}).items():
            kind = one.get("type") or "/".join(str(part.get("type")) for part in one.get("anyOf", ()))
            parts = (one, *one.get("anyOf", ()), one.get("items"))
            values = [value for part in parts if isinstance(part, dict) for value in part.get("enum", ())]
            among = f", one of {json_text(values)}" if values else ""
            needed = "" if name in schema.get("required", ()) else ", optional"
            text = f": {one['description']}" if one.get("description") else ""
            yield f"  {name} ({kind or 'any'}{among}{needed}){text}"


async def _call(bundle: TaskBundle, task: Task, calls: tuple[tuple[str, str], ...]) -> int:
    from reward_kit.agent.base.encoding import parsed_json
    from reward_kit.agent.base.types import RolloutStopped

    code = 0
    with closing(bundle.episode(task)) as episode:
        for name, text in calls:
            try:
                arguments = parsed_json(text)
            except ValueError as error:
                raise UsageError(f"its arguments are not JSON: {error}", place=f"--call {name}") from None
            try:
                result = await episode.call(name, arguments)
            except RolloutStopped as over:
                raise UsageError(f"the rollout is over ({over})", place=f"--call {name}") from None
            say(f"{name}: {result.status}" if result.status != "ok" else f"{name}:")
            say(result.content)
            for line in result.changes.lines() if result.changes is not None else ():
                say(f"  {line}")
            code = code or int(result.status != "ok")
    return code
