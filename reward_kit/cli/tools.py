"""``reward-kit tools``: a bundle's tools, shown or called."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import click

from reward_kit.agent.base.files import write_output
from reward_kit.agent.base.printing import say
from reward_kit.cli.common_options import command, file_option
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.bundles.bundle import Task, TaskBundle
    from reward_kit.agent.tools.registry import ToolRegistry


@command("tools")
@click.argument("bundle")
@click.option(
    "--rows", "--row", "row", metavar="ID", help="The row whose tools and data to take. Default: the first."
)
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
    from reward_kit.agent.evaluation.signals import run_in_loop

    with TaskBundle.load(bundle, unanswered=True) as opened:
        task = opened.select(task_ids=row)[0] if row is not None else opened.tasks[0]
        if call:
            return run_in_loop(_call(opened, task, call))
        if json_path is not None:
            schemas = json.dumps(task.registry.get_openai_tools(), indent=2, ensure_ascii=False)
            write_output([f"{schemas}\n".encode()], json_path)
        else:
            for line in _schema_lines(task.registry):
                say(line)
    return 0


def _schema_lines(registry: ToolRegistry) -> Iterator[str]:
    for tool in registry.get_openai_tools():
        about = tool["function"]
        schema = about["parameters"]
        yield f"{about['name']}: {about.get('description', '')}"
        for name, one in schema.get("properties", {}).items():
            kind = one.get("type") or "/".join(str(part.get("type")) for part in one.get("anyOf", ()))
            needed = "" if name in schema.get("required", ()) else ", optional"
            text = f": {one['description']}" if one.get("description") else ""
            yield f"  {name} ({kind or 'any'}{needed}){text}"


async def _call(bundle: TaskBundle, task: Task, calls: tuple[tuple[str, str], ...]) -> int:
    from reward_kit.agent.base.strict_json import parsed_json

    code = 0
    with closing(bundle.episode(task)) as episode:
        for name, text in calls:
            try:
                arguments = parsed_json(text)
            except ValueError as error:
                raise UsageError(f"its arguments are not JSON: {error}", place=f"--call {name}") from None
            result = await episode.call(name, arguments)
            say(f"{name}: {result.status}" if result.status != "ok" else f"{name}:")
            say(result.content)
            for line in result.changes.lines() if result.changes is not None else ():
                say(f"  {line}")
            code = code or int(result.status != "ok")
    return code
