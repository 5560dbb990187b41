"""Adapts the documentation for the site: the front page, fences, and links to files that are no pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
_FENCE_NOTE = re.compile(r"^(```\w+) (?:fails|server)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the README as front page, and a list of the decisions."""
    text = README.read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    records = sorted((DOCS / "decisions").glob("0*.md"))
    titles = [path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for path in records]
    lines = [f"- [{title}]({path.name})" for title, path in zip(titles, records, strict=True)]
    listed = "\n".join(["# Decisions", "", "Larger choices and their reasons.", "", *lines, ""])
    files.append(File.generated(config, "decisions/index.md", content=listed))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Drop the notes for the tests from fences, and links to files that are no pages."""
    folder = DOCS / Path(page.file.src_uri).parent

    def link(found: re.Match[str]) -> str:
        text, path, anchor = found[1], found[2], found[3] or ""
        target = (folder / path).resolve()
        if target == README:
            return f"[{text}](index.md{anchor})"
        if target == DOCS / "decisions":
            return f"[{text}](decisions/index.md)"
        return found[0] if target.is_relative_to(DOCS) else text

    return _LINK.sub(link, _FENCE_NOTE.sub(r"\1", markdown))
