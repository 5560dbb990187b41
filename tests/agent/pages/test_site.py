"""The pages of a runs folder: complete, linked with each other, safe."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin

import pytest
from flight_bundle import Bundle
from hypothesis import given
from hypothesis import strategies as st
from planned_agent import evaluate, rows_of

from reward_kit.agent import EvaluationResult
from reward_kit.agent.agents.gold import GoldAgent
from reward_kit.agent.pages.evaluation_page import CHOICES
from reward_kit.agent.pages.rendering import pretty, render, rollout_address
from reward_kit.agent.pages.rollout_page import Neighbours, rollout_values
from reward_kit.agent.pages.site import page_at, write_pages
from reward_kit.agent.storage.stored_evaluation import load_evaluation
from reward_kit.errors import StorageError

PLAN = {"a": [1, 1], "b": [1, 0]}
RUNS = Path("runs")
HOSTILE = "</div><script>alert(1)</script><img src=x onerror=alert(1)><a href='javascript:alert(1)'>&amp;"


class Read(HTMLParser):
    """The tags, links and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name == "href" and value]

    def handle_data(self, data: str) -> None:
        self.words += data


def read(address: str = "evals/first.html") -> Read:
    page = page_at(RUNS, address)
    assert page.status == 200, page.html
    return Read(page.html)


def page_of(result: EvaluationResult, place: int = 0) -> Read:
    """The page of a rollout."""
    return read(rollout_address(result.outcomes[place]))


def all_pages() -> Iterator[tuple[str, Read]]:
    """All pages that the first page leads to."""
    waiting, seen = [""], {"", "index.html"}
    while waiting:
        address = waiting.pop()
        page = read(unquote(address))
        yield address, page
        found = {urljoin(f"/{address}", link).partition("#")[0].removeprefix("/") for link in page.links}
        waiting += found - seen
        seen |= found


def test_every_evaluation_and_rollout_has_a_page_that_links_lead_to(bundle: Bundle) -> None:
    outcomes = [*evaluate(bundle, "first", PLAN).outcomes, *evaluate(bundle, "second", {"c": [0]}).outcomes]
    expected = {"", "evals/first.html", "evals/second.html", *map(rollout_address, outcomes)}
    assert {unquote(address) for address, _ in all_pages()} == expected


def test_an_evaluation_shows_scores_failures_and_notes(bundle: Bundle) -> None:
    result = evaluate(bundle, "first", {**PLAN, "c": [0], "d": [1]})
    page = read()
    failed = next(one for one in result.outcomes if not one.success)
    for words in (
        "planned_agent:Planned: 4 of 6 judged rollouts passed",
        "reward, steps, time, cost: means of a row's rollouts",
        "[95 % interval for tasks like these]",
        "on these tasks alone: Pass^1 [",
        "k=2: 2 rows with fewer judged rollouts left out",
        failed.trouble,
    ):
        assert words in page.words
    assert sum(failed.id in link for link in page.links) == 2  # in its row, and among the failures
    assert page.html.index('href="#failed"') < page.html.index("<h2>Rows") < page.html.index('id="failed"')
    assert page.html.count('<a class="chip fail"') == 2
    assert 'http-equiv="refresh"' not in page.html


def test_rows_can_be_chosen_by_result_without_a_script(bundle: Bundle) -> None:
    evaluate(bundle, "first", {"a": [1, 1], "b": [1, 0], "c": [0, 0], "d": [0, 1]})
    html = read().html
    rows = {row: kind for kind, row in re.findall(r'<tr class="(\w+)"><td[^>]*>(\w)</td>', html)}
    assert rows == {"a": "always", "b": "sometimes", "c": "never", "d": "sometimes"}
    labels = dict(re.findall(r'<label><input [^>]*id="rows-(\w+)"[^>]*>(.+?)</label>', html))
    passed = {"always": "passed always 1", "sometimes": "passed sometimes 2", "never": "never passed 1"}
    assert labels == {"all": "all 4", **passed}
    for kind in CHOICES:
        assert f".chosen:has(#rows-{kind}:checked) tr[class]:not(.{kind})" in html
    evaluate(bundle, "alike", {"a": [1], "b": [1]})
    assert "<input" not in read("evals/alike.html").html


def test_scores_by_metadata_are_shown_and_folded_if_there_are_many(bundle: Bundle) -> None:
    plan = {"a": [1, 1], "b": [1, 0], "c": [0, 0], "d": [0, 1]}
    domains = {"a": "air", "b": "air", "c": "<b>sea", "d": "<b>sea"}
    for name, fields in (("first", 1), ("many", 4)):
        metadata = {row: {f"domain{at}": [domains[row]] for at in range(fields)} for row in plan}
        evaluate(bundle, name, plan, rows=[{**row, "metadata": metadata[row["id"]]} for row in rows_of(plan)])
    html = read().html
    section = html[html.index("<h2>By group") : html.index("<h2>Rows")]
    assert "<details open><summary><h3>metadata.domain0</h3>" in section
    cells = [re.findall(r"<t[dh][^>]*>([^<]*)", line) for line in re.findall(r"<tr.*?</tr>", section)]
    assert [[line[0], line[1], line[2], line[3][:5], line[4], line[5]] for line in cells[1:]] == [
        ["&lt;b&gt;sea", "2", "4/4", "0.250", "0.000", "0.250"],
        ["air", "2", "4/4", "0.750", "0.500", "0.750"],
        ["all", "4", "8/8", "0.500", "0.250", "0.500"],
    ]
    assert read("evals/many.html").html.count("<details><summary><h3>metadata.domain") == 4


def test_a_rollout_shows_messages_calls_changes_judgement_and_cost(bundle: Bundle) -> None:
    result = evaluate(bundle, "first", PLAN, usage={"calls": 1, "input_tokens": 9, "cost": 0.5})
    passed = page_of(result).words
    for words in (
        "a #1",
        "reward 1",
        "Task completed successfully",
        "Book me a flight from SFO to JFK",
        "create_booking",
        '{"flight_id": 1, "passenger": "Alice"}',
        '"status": "paid"',
        "insert",
        "$0.5000, 1 model call, 9 tokens in",
        "stub/one",
    ):
        assert words in passed
    failed = page_of(result, 3)
    assert "reward 0" in failed.words
    assert "partially_completed" in failed.words
    ids = [one.id for one in result.outcomes]
    links = [link for link in page_of(result, 1).links if "roll_" in link]
    targets = [next(id_ for id_ in ids if id_ in link) for link in links]
    assert targets == [ids[0], ids[2], ids[3], ids[0], ids[1]]  # before, next, next failed, those of the row


def rollout_page(record: Any, judged: Any = None) -> str:
    return render("rollout.html", **rollout_values(record, Neighbours(), judged))


def record_of(bundle: Bundle, **fields: Any) -> Any:
    result = evaluate(bundle, "first", {"a": [1]}, rows=rows_of({"a": [1]}, **fields), usage={"calls": 1})
    return result.record(result.outcomes[0])


def test_calls_and_images_of_the_row_are_shown_as_such(bundle: Bundle) -> None:
    call = {"id": "old", "type": "function", "function": {"name": "search_flights", "arguments": "{}"}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    begun = [
        {"role": "user", "content": [{"type": "text", "text": "What is there?"}, image]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "old", "content": "one flight"},
        {"role": "user", "content": "Book it."},
    ]
    html = rollout_page(record_of(bundle, initial_messages=begun))
    assert re.search(r'<strong>search_flights</strong>\s+<span class="dim">given by the row</span>', html)
    assert "not run" not in html
    assert "[image_url: image/png, 12 characters]" in html


class Rude(GoldAgent):
    """Says text that looks like markup."""

    async def respond(self, rollout: object) -> str:
        return HOSTILE


def test_text_of_models_and_rows_is_never_markup(bundle: Bundle) -> None:
    messages = [{"role": "user", "content": HOSTILE}]
    rows = rows_of({"a": [0]}, initial_messages=messages, sim_user_prompt=HOSTILE)
    result = evaluate(bundle, "rude", {"a": [0]}, rows=rows, agent=f"{__name__}:Rude")
    for _, page in all_pages():
        assert not page.tags & {"script", "img", "iframe", "object", "form", "link", "base"}
        assert not any(link.startswith("javascript") for link in page.links)
    assert page_of(result).words.count(HOSTILE) >= 2


ADDRESSES = ["../secret.html", "evals/../../secret.html", "evals/nothing.html", "linked/secret.html"]


@pytest.mark.parametrize("address", [*ADDRESSES, "a/\0.html", f"{'x' * 5000}/y.html"])
def test_other_addresses_have_no_page(bundle: Bundle, address: str, tmp_path: Path) -> None:
    result = evaluate(bundle, "first", {"a": [1]})
    record = result.record(result.outcomes[0])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in (Path("secret.json"), elsewhere / "secret.json", elsewhere / "roll_secret.json"):
        path.write_text(json.dumps({**record.to_json(), "stop_detail": "canary"}))
    Path("runs/linked").symlink_to(elsewhere)
    page = page_at(RUNS, address)
    assert page.status in (404, 500)
    assert "canary" not in page.html
    assert "Traceback" not in page.html


@pytest.mark.parametrize(
    "names", [{"row_id": "../../elsewhere"}, {"id": "x/../../../../elsewhere/y"}, {"row_id": "linked"}]
)
def test_stored_names_write_nothing_outside(bundle: Bundle, names: dict[str, str], tmp_path: Path) -> None:
    result = evaluate(bundle, "first", {"a": [1]})
    (tmp_path / "elsewhere").mkdir()
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    (out / "linked").symlink_to(tmp_path / "elsewhere")
    outcome = replace(result.outcomes[0], file="../../elsewhere/z.json", **names)
    stored = load_evaluation("first")
    stored = replace(stored, rows=(replace(stored.rows[0], outcomes=(outcome,)),))
    with pytest.raises(StorageError, match="outside of the folder"):
        list(write_pages(RUNS, [stored], out))
    written = {path for path in tmp_path.rglob("*.html") if not path.is_relative_to(out)}
    assert not written
    assert not list((tmp_path / "elsewhere").iterdir())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=40,
)


@given(value=JSON, ascii_only=st.booleans())
def test_pretty_json_is_the_same_json(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert json.loads(pretty(text)) == value
