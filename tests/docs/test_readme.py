"""The README's example works, and what the pages point at is there."""

import re
from pathlib import Path

import pytest
from pages import ROOT, blocks, run, write_files

README = ROOT / "README.md"
PAGES = sorted([README, *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names that links give the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_bundle_in_one_screen_passes_its_commands(tmp_path: Path, environment: dict[str, str]) -> None:
    write_files(README, tmp_path)
    page = blocks(README)
    last_file = max(place for place, block in enumerate(page) if block.title)
    output = run(page[last_file + 1], tmp_path, environment)
    assert "successfully validated; gold earns the reward in 1 of 1 row, doing nothing in none" in output
    assert "gold: 4 of 4 judged rollouts passed" in output


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in LINK.findall(without_code(text)):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_paths_and_make_targets_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)`|^make ([a-z]+) ", text, re.MULTILINE)) <= {
        pair for target in targets for pair in ((target, ""), ("", target))
    }
    roots = ("reward_kit", "tests", "benchmarks", "docs", "examples", ".ci")
    for path in re.findall(rf"[`( ]((?:{'|'.join(map(re.escape, roots))})/[\w./-]*\w)`", text):
        assert (ROOT / path).exists(), path


def test_the_modules_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name in re.findall(r"`([\w/]+\.py)`", text):
        homes = [ROOT, ROOT / "reward_kit", ROOT / "reward_kit" / "agent"]
        assert any((home / name).exists() for home in homes), name


def test_every_page_is_in_the_readmes_table() -> None:
    listed = set(LINK.findall(README.read_text(encoding="utf-8")))
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= listed
