"""The pages of a runs folder: complete, linked with each other, safe."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urljoin

import pytest
from flight_bundle import REWARD, Bundle
from hypothesis import given
from hypothesis import strategies as st
from planned_agent import evaluate, rows_of

from reward_kit.agent import EvaluationResult
from reward_kit.agent.players.agents.replay import GoldAgent
from reward_kit.agent.reports.pages.rendering import SCRIPT, pretty, render, rollout_address
from reward_kit.agent.reports.pages.rollout_page import Neighbours, rollout_values
from reward_kit.agent.reports.pages.selection import KINDS
from reward_kit.agent.reports.pages.site import page_at, write_pages
from reward_kit.agent.store.layout import load_evaluation
from reward_kit.errors import StorageError

PLAN = {"a": [1, 1], "b": [1, 0]}
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


@pytest.fixture
def runs(bundle: Bundle) -> Path:
    return Path("runs")


def read(runs: Path, address: str = "evals/first.html") -> Read:
    path, _, query = address.partition("?")
    page = page_at(runs, path, dict(parse_qsl(query)))
    assert page.status == 200, page.html
    if path.endswith(".json"):
        assert page.media == "application/json"
        assert json.loads(page.html)
        return Read("")
    return Read(page.html)


def page_of(runs: Path, result: EvaluationResult, place: int = 0) -> Read:
    """The page of a rollout."""
    return read(runs, rollout_address(result.outcomes[place]))


def all_pages(runs: Path, *others: str) -> Iterator[tuple[str, Read]]:
    """All pages that the first page and ``others`` lead to; of each the first selection that was found."""
    waiting, seen = ["", *others], {"", "index.html", *others}
    while waiting:
        address = waiting.pop()
        path, _, query = address.partition("?")
        page = read(runs, f"{unquote(path)}?{query}")
        yield path, page
        for link in page.links:
            found = urljoin(f"/{address}", link).partition("#")[0].removeprefix("/")
            if (new := found.partition("?")[0]) not in seen:
                seen.add(new)
                waiting.append(found)


def test_every_evaluation_and_rollout_has_a_page_that_links_lead_to(bundle: Bundle, runs: Path) -> None:
    results = evaluate(bundle, "first", PLAN), evaluate(bundle, "second", {"a": [0, 1]})
    rollouts = {rollout_address(outcome) for result in results for outcome in result.outcomes}
    expected = {"", "evals/first.html", "evals/second.html", *rollouts, "compare/first/second"}
    expected |= {"compare/first/second/a"} | {
        address.replace(".html", ".json") for address in expected if address.endswith(".html")
    }
    assert {unquote(address) for address, _ in all_pages(runs, "compare/first/second")} == expected


def test_charts_show_scores_with_intervals_and_costs(bundle: Bundle, runs: Path) -> None:
    plan = {"a": [1, 1], "b": [1, 0], "c": [0, 0]}
    evaluate(bundle, "first", plan, usage={"calls": 1, "cost": 0.5})
    assert "<svg" not in read(runs, "").html  # of one evaluation there is nothing to compare
    evaluate(bundle, "second", plan, usage={"calls": 1, "cost": 0.25})
    curve = read(runs).html
    label = re.search(r'<svg[^>]*aria-label="([^"]*)', curve)
    assert label
    assert re.fullmatch(r"Pass.k with 95 % intervals: Pass.1 0.500 \[.*; Pass.2 0.333 \[.*\]", label[1])
    points = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="(.*?)" cy="(.*?)"', curve)]
    assert points[0][0] < points[1][0]
    assert points[0][1] == 93  # half of the axis, which ends at 10 and 176
    dots = re.findall(r'<circle cx="(.*?)" cy="93.0"', read(runs, "").html)
    assert [float(x) for x in dots] == [190, 340]  # the second costs half as much, and is listed first


def test_an_evaluation_shows_scores_failures_and_notes(bundle: Bundle, runs: Path) -> None:
    result = evaluate(bundle, "first", {**PLAN, "c": [0], "d": [1]})
    page = read(runs)
    failed = next(one for one in result.outcomes if not one.success)
    for words in (
        "planned_agent:Planned: 4 of 6 judged rollouts passed",
        "reward, steps, time, cost: means of a row's rollouts",
        "95 % interval for tasks like these",
        "Pass^2 over 2 of 4 rows: the others have fewer judged rollouts",
    ):
        assert words in page.words
    assert len(re.findall(r'<a class="(?:item )?chip fail"', page.html)) == 2
    assert "data-refresh" not in page.html.replace(SCRIPT, "")
    chosen = next(link for link in page.links if "result=partially_completed" in link)
    listed = read(runs, f"evals/first.html{chosen}")
    assert failed.trouble in listed.words
    assert "2 rollouts" in listed.words


def test_files_choose_rows_by_result_without_a_server(bundle: Bundle, runs: Path) -> None:
    evaluate(bundle, "first", {"a": [1, 1], "b": [1, 0], "c": [0, 0], "d": [0, 1]})
    list(write_pages(runs, [load_evaluation("first")], Path("out")))
    html = Path("out/evals/first.html").read_text()
    rows = [
        (row, kind) for kind, row in re.findall(r'<tr class="(\w+)"><td[^>]*><a[^>]*>(\w)</a></td>', html)
    ]
    assert rows == [("c", "never"), ("b", "sometimes"), ("d", "sometimes"), ("a", "always")]
    for kind in KINDS:
        assert f'id="rows-{kind}"' in html
        assert f".chosen:has(#rows-{kind}:checked) tr[class]:not(.{kind})" in html
    assert 'id="failed"' in html
    assert str(Path.cwd()) not in "".join(path.read_text() for path in Path("out").rglob("*.html"))
    assert not re.search(r'<form class|JSON|compare/|href="[^"]*[?]', html.replace(SCRIPT, ""))


def test_scores_by_metadata_are_shown_and_folded_if_there_are_many(bundle: Bundle, runs: Path) -> None:
    plan = {"a": [1, 1], "b": [1, 0], "c": [0, 0], "d": [0, 1]}
    domains = {"a": "air", "b": "air", "c": "<b>sea", "d": "<b>sea"}
    for name, fields in (("first", 1), ("many", 4)):
        metadata = {row: {f"domain{at}": [domains[row]] for at in range(fields)} for row in plan}
        evaluate(bundle, name, plan, rows=[{**row, "metadata": metadata[row["id"]]} for row in rows_of(plan)])
    html = read(runs).html
    section = html[html.index("<h2>By group") : html.index("<h2>Configuration")]
    assert "<details open><summary><h3>metadata.domain0</h3>" in section
    cells = [re.findall(r"<t[dh][^>]*>([^<]*)", line) for line in re.findall(r"<tr.*?</tr>", section)]
    assert [[line[0], line[1], line[2], line[3][:5], line[4], line[5]] for line in cells[1:]] == [
        ["&lt;b&gt;sea", "2", "4/4", "0.250", "0.000", "0.250"],
        ["air", "2", "4/4", "0.750", "0.500", "0.750"],
        ["all", "4", "8/8", "0.500", "0.250", "0.500"],
    ]
    assert read(runs, "evals/many.html").html.count("<details><summary><h3>metadata.domain") == 4


def test_a_rollout_shows_messages_calls_changes_judgement_and_cost(bundle: Bundle, runs: Path) -> None:
    result = evaluate(bundle, "first", PLAN, usage={"calls": 1, "input_tokens": 9, "cost": 0.5})
    passed = page_of(runs, result).words
    for words in (
        "a #1",
        "reward 1",
        "Task completed successfully",
        "Book me a flight from SFO to JFK",
        "create_booking",
        "passenger",
        "paid",
        "inserted",
        "$0.5000, 1 model call, 9 tokens in",
        "stub/one",
    ):
        assert words in passed
    failed = page_of(runs, result, 3)
    assert "failed partially_completed, reward 0" in failed.words
    ids = [one.id for one in result.outcomes]
    links = [link for link in page_of(runs, result, 1).links if "roll_" in link]
    targets = [next(id_ for id_ in ids if id_ in link) for link in links if ".json" not in link]
    assert targets == [ids[0], ids[2], ids[3], ids[0], ids[1]]  # before, next, next failed, those of the row


class Careless(GoldAgent):
    """Makes the calls of ``calls``, by row."""

    calls: ClassVar[dict[str, list[tuple[str, dict[str, Any]]]]] = {
        "nothing": [],
        "other": [("create_booking", {"flight_id": 1, "passenger": "Bob"})],
        "half": [("create_booking", {"flight_id": 1, "passenger": "Alice"})],
        "second": [("pay_booking", {"booking_id": "none"})],
    }

    async def respond(self, rollout: Any) -> str:
        for name, arguments in self.calls[rollout.row_id]:
            await rollout.call_tool(name, arguments)
        return "It is done."


def plain(html: str) -> str:
    """The text of a page's part."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def steps_of(html: str) -> list[str]:
    """The steps of a timeline as text, what is right of each after a bar."""
    steps = re.findall(r'<div class="step">(.*?)(?=<div class="step">|<h2>Details)', html, re.DOTALL)
    return [plain(step.replace('<div class="effects">', "|")) for step in steps]


def test_a_failure_is_told_once_and_where_it_happened(bundle: Bundle, runs: Path) -> None:
    rows = rows_of({row: [0] for row in Careless.calls}, system_prompt="Be kind.")
    result = evaluate(bundle, "first", {}, rows=rows, agent=f"{__name__}:Careless")
    pages = {one.row_id: page_of(runs, result, at).html for at, one in enumerate(result.outcomes)}
    verdicts = {row: plain(re.findall(r"<dl>(.*?)</dl>", html, re.DOTALL)[0]) for row, html in pages.items()}
    assert verdicts == {
        "nothing": "wanted create_booking(flight_id=1, passenger=&#34;Alice&#34;), and 1 more call"
        " happened it was never called",
        "other": "wanted create_booking(…, passenger=&#34;Alice&#34;), and 1 more call"
        " happened create_booking(…, passenger=&#34;Bob&#34;)",
        "half": verdicts["half"],
        "second": verdicts["second"],
    }
    assert re.fullmatch(r"wanted pay_booking\(booking_id=.*\) happened it was never called", verdicts["half"])
    missing = steps_of(pages["nothing"])
    assert missing[0].startswith("system system prompt, 8 characters")
    assert missing[1].startswith("user Book me")
    assert missing[2].startswith("missing here create_booking flight_id 1 passenger Alice | bookings #")
    assert missing[2].endswith("missing flight_id 1 passenger Alice status paid")
    assert missing[3].startswith("missing here pay_booking")
    assert missing[4].startswith("assistant, step 1 It is done.")
    other = next(step for step in steps_of(pages["other"]) if "wanted instead" in step)
    assert re.fullmatch(
        r"create_booking ok, .*, the first that was wrong flight_id 1 passenger Bob .*"
        r"\| wanted instead create_booking flight_id 1 passenger Alice bookings #\w+ inserted"
        r" flight_id 1 passenger Bob wanted Alice status reserved wanted paid",
        other,
    )
    half = steps_of(pages["half"])[2:]
    assert half[0].endswith("status reserved wanted paid")
    assert half[1].startswith("missing here pay_booking")
    second = steps_of(pages["second"])[2:]
    assert second[0].startswith("missing here create_booking")
    assert re.match("pay_booking ok, .* wanted instead pay_booking", second[1])


def test_columns_that_the_reward_ignores_are_not_wanted(bundle: Bundle, runs: Path) -> None:
    bundle.write("reward.py", f"NOT_COMPARED = 'bookings.passenger'\n{REWARD}")
    result = evaluate(bundle, "first", {}, rows=rows_of({"nothing": [0]}), agent=f"{__name__}:Careless")
    html = page_of(runs, result).html
    assert "wanted create_booking(…, flight_id=1), and 1 more call" in plain(html)
    assert "passenger not compared | bookings" in plain(html.replace('<div class="effects">', "|"))
    assert "Alice" not in html[html.index("<main>") : html.index("<h2>Details")]


def test_two_evaluations_are_compared_by_row_and_by_conversation(bundle: Bundle, runs: Path) -> None:
    evaluate(bundle, "first", {"a": [1, 1], "b": [1, 0], "c": [0, 0]})
    evaluate(bundle, "second", {"a": [0, 1], "b": [1, 0], "c": [0, 1]})
    page = read(runs, "compare/first/second")
    assert "no difference" in page.words
    item = re.compile(r'class="item"[^>]*>(\w)<')
    assert item.findall(page.html) == ["a", "c", "b"]  # worse, better, equal
    assert item.findall(read(runs, "compare/first/second?change=better").html) == ["c"]
    beside = read(runs, "compare/first/second/a")  # the second failed, and shows its failure
    assert "The first difference" in beside.words
    assert {"Sorry.", "create_booking"} <= set(re.findall(r"[\w.]+", beside.words))
    alike = read(runs, "compare/first/second/b?a=2&b=2")
    assert "The first difference" not in alike.words
    for path, query in (("nothing", {}), ("second/z", {}), ("second/a", {"a": "3"})):
        fault = page_at(runs, f"compare/first/{path}", query)
        assert fault.status in (404, 500)
        assert "damaged" not in fault.html


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

    async def respond(self, rollout: Any) -> str:
        await rollout.call_tool("create_booking", {"flight_id": 1, "passenger": HOSTILE})
        return HOSTILE


def test_text_of_models_and_rows_is_never_markup(bundle: Bundle, runs: Path) -> None:
    messages = [{"role": "user", "content": HOSTILE}]
    rows = rows_of({"a": [0]}, initial_messages=messages, sim_user_prompt=HOSTILE)
    result = evaluate(bundle, "rude", {"a": [0]}, rows=rows, agent=f"{__name__}:Rude")
    for _, page in all_pages(runs):
        assert not page.tags & {"img", "iframe", "object", "link", "base"}
        assert page.html.count("<script") == page.html.count(f"<script>{SCRIPT}</script>")
        assert not any(link.startswith("javascript") for link in page.links)
    assert page_of(runs, result).words.count(HOSTILE) >= 4


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"by": "-rows"}, "by=&#39;-rows&#39; is unknown. There are: rows, rollouts."),
        ({"kind": "-open"}, "kind=&#39;-open&#39; is unknown. There are: always, "),
        ({"sort": "--cost"}, "sort=&#39;-cost&#39; is unknown. There are: row, "),
    ],
)
def test_a_mistyped_parameter_is_told(bundle: Bundle, runs: Path, query: dict[str, str], told: str) -> None:
    evaluate(bundle, "first", {"a": [1]})
    page = page_at(runs, "evals/first.html", query)
    assert (page.status, told in page.html) == (404, True), page.html[-2000:]


@pytest.mark.parametrize(
    "address",
    [
        "../secret.html",
        "evals/../../secret.html",
        "evals/nothing.html",
        "a/\0.html",
        f"{'x' * 5000}/y.html",
        "linked/secret.html",
    ],
)
def test_other_addresses_have_no_page(bundle: Bundle, runs: Path, address: str, tmp_path: Path) -> None:
    result = evaluate(bundle, "first", {"a": [1]})
    record = result.record(result.outcomes[0])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in (Path("secret.json"), elsewhere / "secret.json", elsewhere / "roll_secret.json"):
        path.write_text(json.dumps({**record.to_json(), "stop_detail": "canary"}))
    Path("runs/linked").symlink_to(elsewhere)
    page = page_at(runs, address)
    assert page.status in (404, 500)
    assert "canary" not in page.html
    assert "Traceback" not in page.html


@pytest.mark.parametrize(
    "names", [{"row_id": "../../elsewhere"}, {"id": "x/../../../../elsewhere/y"}, {"row_id": "linked"}]
)
def test_stored_names_write_nothing_outside_of_the_folder(
    bundle: Bundle, runs: Path, names: dict[str, str], tmp_path: Path
) -> None:
    result = evaluate(bundle, "first", {"a": [1]})
    (tmp_path / "elsewhere").mkdir()
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    (out / "linked").symlink_to(tmp_path / "elsewhere")
    outcome = replace(result.outcomes[0], file="../../elsewhere/z.json", **names)
    stored = load_evaluation("first")
    stored = replace(stored, rows=(replace(stored.rows[0], outcomes=(outcome,)),))
    with pytest.raises(StorageError, match="outside of the folder"):
        list(write_pages(runs, [stored], out))
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
