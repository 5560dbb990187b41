"""Adapts the documentation for the site: front page, titles of links, help of the commands, fences."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mkdocs.structure.files import File, Files

from reward_kit.cli import GROUPS, cli
from reward_kit.cli.options import HELP_ALL

if TYPE_CHECKING:
    from collections.abc import Iterable

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
_FENCE_NOTE = re.compile(r"^(```\w+) (?:fails|server)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\[\]]*)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")
_MARKUP = re.compile(r"([*_<>\[\]`])")


def on_config(config: Any) -> Any:
    """Show the version in the header."""
    config.site_name = f"{config.site_name} {version('reward-kit')}"
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the README as front page, and a list of the decisions."""
    text = README.read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    records = sorted((DOCS / "decisions").glob("0*.md"))
    lines = [f"- [{title(path)}]({path.name})" for path in records]
    listed = "\n".join(["# Decisions", "", "Larger choices and their reasons.", "", *lines, ""])
    files.append(File.generated(config, "decisions/index.md", content=listed))
    return files


def title(page: Path) -> str:
    """The first heading of a page."""
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Title links by their page, drop those to files that are no pages, and notes for the tests."""
    folder = DOCS / Path(page.file.src_uri).parent
    if page.file.src_uri == "reference/commands.md":
        markdown += "".join(_help())

    def link(found: re.Match[str]) -> str:
        text, path, anchor = found[1], found[2], found[3] or ""
        target = (folder / path).resolve()
        if target == README:
            return f"[{text}](index.md{anchor})"
        if target == DOCS / "decisions":
            return f"[{text}](decisions/index.md)"
        if not (target.is_relative_to(DOCS) and target.is_file()):
            return text
        return f"[{title(target) if text.endswith('.md') else text}]({path}{anchor})"

    return _LINK.sub(link, _FENCE_NOTE.sub(r"\1", markdown))


class _MarkdownHelp(click.HelpFormatter):
    """Writes the help of a command as Markdown."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:  # noqa: ARG002 - click's
        self.write(f"```text\n{prog} {args}\n```\n")

    def write_text(self, text: str) -> None:
        for paragraph in text.split("\n\n"):
            plain = paragraph.startswith("\b")
            self.write(f"```text\n{paragraph[2:]}\n```\n\n" if plain else f"{_escaped(paragraph)}\n\n")

    def write_heading(self, heading: str) -> None:
        self.write(f"**{heading}**\n\n")

    def write_dl(self, rows: Any, **_: Any) -> None:
        for names, text in rows:
            self.write(f"`{names}`\n:   {_escaped(text)}\n\n")


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\1", text)


def _help() -> Iterable[str]:
    """The help of every command, in the order of ``reward-kit --help``."""
    with click.Context(cli, info_name="reward-kit") as root:
        for group, names in GROUPS.items():
            yield f"\n## {group}\n\n"
            for name in names:
                command = cli.get_command(root, name)
                assert command is not None
                yield from _help_of(command, root, "###")


def _help_of(command: click.Command, parent: click.Context, level: str) -> Iterable[str]:
    with click.Context(command, parent, info_name=command.name) as context:
        context.meta[HELP_ALL] = True
        formatter = _MarkdownHelp()
        command.format_help(context, formatter)
        yield f"{level} {context.command_path}\n\n{formatter.getvalue()}\n"
        for name in command.list_commands(context) if isinstance(command, click.Group) else ():
            found = command.get_command(context, name)  # type: ignore[attr-defined]
            if found is not None and not found.hidden:
                yield from _help_of(found, context, level + "#")
