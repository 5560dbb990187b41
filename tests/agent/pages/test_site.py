"""The pages of a runs folder: complete, linked with each other, and never more than text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin

import pytest
from flight_bundle import Bundle, flight_bundle
from hypothesis import given
from hypothesis import strategies as st
from planned_agent import change_log, evaluate, rows_of

from reward_kit.agent import EvaluationResult
from reward_kit.agent.agents.gold import GoldAgent
from reward_kit.agent.completion import Usage
from reward_kit.agent.explain import Explanation, Explanations
from reward_kit.agent.pages.evaluation_page import CHOICES, UNFOLDED
from reward_kit.agent.pages.rendering import pretty
from reward_kit.agent.pages.site import Site
from reward_kit.agent.runs.evaluation_lock import EvaluationLock

PLAN = {"a": [1, 1], "b": [1, 0]}
HOSTILE = "</div><script>alert(1)</script><img src=x onerror=alert(1)><a href='javascript:alert(1)'>&amp;"


class Read(HTMLParser):
    """The tags, addresses and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.refreshes = False
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = dict(attrs)
        self.links += [value for value in (given.get("href"),) if value]
        self.refreshes |= given.get("http-equiv") == "refresh"

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.chdir(tmp_path)
    return flight_bundle(tmp_path)


@pytest.fixture
def site(bundle: Bundle) -> Site:
    return Site(Path("runs"))


def all_pages(site: Site) -> Iterator[tuple[str, Read]]:
    """All that can be reached from the first page; each must be there."""
    waiting, seen = [""], {""}
    while waiting:
        address = waiting.pop()
        page = site.page(unquote(address))
        assert page.status == 200, address
        read = Read(page.html)
        yield address, read
        for link in read.links:
            found = urljoin(f"/{address}", link).partition("#")[0].removeprefix("/")
            if found not in seen and found != "index.html":
                seen.add(found)
                waiting.append(found)


def page_of(site: Site, result: EvaluationResult, place: int = 0) -> Read:
    """The page of a rollout."""
    page = site.page(result.outcomes[place].file.replace(".json", ".html"))
    assert page.status == 200
    return Read(page.html)


def test_every_evaluation_and_rollout_has_a_page_that_links_lead_to(bundle: Bundle, site: Site) -> None:
    first = evaluate(bundle, "first", PLAN)
    second = evaluate(bundle, "second", {"c": [0]})
    rollouts = {one.file.replace(".json", ".html") for one in (*first.outcomes, *second.outcomes)}
    found = {unquote(address) for address, _ in all_pages(site)}
    assert found == {"", "evals/first.html", "evals/second.html"} | rollouts


def test_the_page_of_an_evaluation_has_its_scores_and_all_that_failed(bundle: Bundle, site: Site) -> None:
    result = evaluate(bundle, "first", PLAN)
    read = Read(site.page("evals/first.html").html)
    assert "planned_agent:Planned: 3 of 4 judged rollouts passed" in read.words
    assert "0.750" in read.words
    assert "reward, steps, time, cost: means of a row's rollouts" in read.words
    failed = next(one for one in result.outcomes if not one.success)
    assert failed.trouble in read.words
    assert not read.refreshes
    assert sum(failed.id in link for link in read.links) == 2  # in its row, and among those that failed


def test_rows_can_be_chosen_by_how_they_came_out(bundle: Bundle, site: Site) -> None:
    evaluate(bundle, "first", {"a": [1, 1], "b": [1, 0], "c": [0, 0], "d": [0, 1]})
    html = site.page("evals/first.html").html
    rows = {row: came_out for came_out, row in re.findall(r'<tr class="(\w+)"><td[^>]*>(\w)</td>', html)}
    assert rows == {"a": "always", "b": "sometimes", "c": "never", "d": "sometimes"}
    labels = dict(re.findall(r'<label><input [^>]*id="rows-(\w+)"[^>]*>(.+?)</label>', html))
    assert labels == {
        "all": "all 4",
        "always": "passed always 1",
        "sometimes": "passed sometimes 2",
        "never": "never passed 1",
    }
    assert html.count(" checked>") == 1
    assert re.search(r"\.chosen > label \{[^}]*white-space: nowrap", html)  # a button stays beside its words


def test_every_way_to_come_out_has_its_rule(bundle: Bundle, site: Site) -> None:
    """A page runs no script: style alone hides the other rows."""
    evaluate(bundle, "first", PLAN)
    html = site.page("evals/first.html").html
    for kind in CHOICES:
        assert f".chosen:has(#rows-{kind}:checked) tr[class]:not(.{kind})" in html


def test_the_page_tells_of_rows_that_a_k_leaves_out(bundle: Bundle, site: Site) -> None:
    evaluate(bundle, "first", {"a": [1, 1], "b": [1]})
    words = Read(site.page("evals/first.html").html).words
    assert "in brackets: 95 % interval" in words
    assert "k=2: 1 row with fewer judged rollouts left out" in words


def test_where_all_rows_came_out_alike_there_is_no_choice(bundle: Bundle, site: Site) -> None:
    evaluate(bundle, "first", {"a": [1], "b": [1]})
    assert "<input" not in site.page("evals/first.html").html


def test_classes_of_many_failures_are_folded(bundle: Bundle, site: Site) -> None:
    evaluate(bundle, "few", {"a": [0] * UNFOLDED})
    evaluate(bundle, "many", {"a": [0] * (UNFOLDED + 1)})
    assert "<details open>" in site.page("evals/few.html").html
    assert "<details open>" not in site.page("evals/many.html").html


def test_the_page_of_a_rollout_tells_what_was_said_done_changed_and_judged(
    bundle: Bundle, site: Site
) -> None:
    result = evaluate(bundle, "first", PLAN, usage={"calls": 1, "input_tokens": 9, "cost": 0.5})
    passed = page_of(site, result).words
    for told in (
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
        assert told in passed
    failed = page_of(site, result, 3).words
    assert "reward 0" in failed
    assert "partially_completed" in failed
    assert "expected" in failed


def test_the_page_of_a_rollout_tells_how_long_its_model_calls_waited(bundle: Bundle, site: Site) -> None:
    result = evaluate(bundle, "first", {"a": [1]}, usage={"calls": 1})
    path = Path("runs", result.outcomes[0].file)
    plain = json.loads(path.read_text())
    assert "waited" not in page_of(site, result).words
    plain["model_calls"][0]["waited"], plain["seconds"] = 83.1, 95.0
    path.write_text(json.dumps(plain))
    read = page_of(site, result).words
    assert "1:35, of which its model calls waited 1:23 for limits" in read
    del plain["model_calls"][0]["waited"]  # as earlier versions wrote it
    path.write_text(json.dumps(plain))
    assert "waited" not in page_of(site, result).words


def test_a_rollout_leads_to_its_neighbours_and_to_the_next_that_failed(bundle: Bundle, site: Site) -> None:
    result = evaluate(bundle, "first", PLAN)
    links = page_of(site, result, 1).links
    ids = [one.id for one in result.outcomes]
    assert [next(id_ for id_ in ids if id_ in link) for link in links if "roll_" in link] == [
        ids[0], ids[2], ids[3], ids[0], ids[1],
    ]  # fmt: skip


class Rude(GoldAgent):
    """Says what would be markup."""

    async def respond(self, rollout: object) -> str:
        return HOSTILE


def test_text_of_models_and_rows_is_never_markup(bundle: Bundle, site: Site) -> None:
    messages = [{"role": "user", "content": HOSTILE}]
    rows = rows_of({"a": [0]}, initial_messages=messages, sim_user_prompt=HOSTILE)
    result = evaluate(bundle, "rude", {"a": [0]}, rows=rows, agent=f"{__name__}:Rude")
    for _, read in all_pages(site):
        assert not read.tags & {"script", "img", "iframe", "object", "form", "link", "base"}
        assert not any(link.startswith("javascript") for link in read.links)
    assert page_of(site, result).words.count(HOSTILE) >= 2


@pytest.mark.parametrize(
    "address",
    [
        "../secret.html",
        "./secret.html",
        "evals/../../secret.html",
        "evals/..\\secret.html",
        "/secret.html",
        "evals/nothing.html",
        "a/nothing.html",
        "secret.json",
        "evals/first.jsonl",
        "a/\0.html",
        f"evals/{'x' * 300}.html",
        f"{'x' * 5000}/y.html",
    ],
)
def test_other_addresses_have_no_page(bundle: Bundle, site: Site, address: str) -> None:
    evaluate(bundle, "first", {"a": [1]})
    Path("secret.json").write_text(json.dumps({"secret": "canary"}))
    page = site.page(address)
    assert page.status in (404, 500)
    assert "canary" not in page.html
    assert "Traceback" not in page.html


def test_what_is_not_there_is_told_in_words(bundle: Bundle, site: Site) -> None:
    evaluate(bundle, "first", {"a": [1]})
    rollout, evaluation = site.page("a/roll_nothing.html"), site.page("evals/nothing.html")
    assert (rollout.status, evaluation.status) == (404, 404)
    assert "there is no rollout 'roll_nothing' of a row 'a'" in Read(rollout.html).words
    assert "there is no evaluation 'nothing'" in Read(evaluation.html).words


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "reward-kit.rollout/1"}', "\udcff", None])
def test_a_damaged_rollout_has_a_page_that_says_so(bundle: Bundle, site: Site, content: str | None) -> None:
    result = evaluate(bundle, "first", PLAN)
    path = Path("runs", result.outcomes[0].file)
    if content is None:
        path.unlink()
    else:
        path.write_text(content, errors="surrogateescape")
    page = site.page(result.outcomes[0].file.replace(".json", ".html"))
    assert page.status == (404 if content is None else 500)
    assert path.stem in page.html
    assert list(site.write([], Path("out"))) == ["index.html"]


def test_a_message_of_an_unknown_shape_is_no_fault_of_the_server(bundle: Bundle, site: Site) -> None:
    result = evaluate(bundle, "first", PLAN)
    path = Path("runs", result.outcomes[0].file)
    plain = json.loads(path.read_text())
    plain["messages"] = [{"content": 5}]
    path.write_text(json.dumps(plain))
    assert site.page(result.outcomes[0].file.replace(".json", ".html")).status == 500


def test_a_rollout_without_its_evaluation_is_shown(bundle: Bundle, site: Site) -> None:
    result = evaluate(bundle, "first", PLAN)
    result.log_path.unlink()
    result.results_path.unlink()
    assert "Task completed successfully" in page_of(site, result).words


def test_a_running_evaluation_is_looked_at_again(bundle: Bundle, site: Site) -> None:
    result = evaluate(bundle, "first", PLAN)
    lines = result.log_path.read_text().splitlines()
    result.log_path.write_text("\n".join(lines[:-1]) + "\n")
    lock = EvaluationLock(result.log_path.with_suffix(".lock"))
    before = Read(site.page("evals/first.html").html)
    assert before.refreshes
    assert "still running" in before.words
    assert Read(site.page("").html).refreshes
    result.log_path.write_text("\n".join(lines) + "\n")
    lock.release()
    after = Read(site.page("evals/first.html").html)
    assert not after.refreshes
    assert "3 of 4" in after.words


def test_what_a_model_made_of_a_failure_stands_on_its_page(bundle: Bundle, site: Site) -> None:
    result = evaluate(bundle, "first", PLAN)
    failed = result.outcomes[3]
    judged = Explanation(
        failed.id,
        "b",
        1,
        "judge/one",
        "1",
        "user",
        "wrong_tool",
        "It was the moon.",
        None,
        Usage(calls=1),
        1.0,
    )
    path = result.log_path.with_name("first.explanations.jsonl")
    path.write_text(json.dumps(judged.to_json()) + "\n")
    plain = json.loads(result.results_path.read_text())
    plain["explanations"] = Explanations("judge/one", [judged], 0, None, path).to_json()
    result.results_path.write_text(json.dumps(plain))
    assert "It was the moon." in page_of(site, result, 3).words
    assert "It was the moon." not in page_of(site, result, 0).words


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=40,
)


@given(value=JSON, ascii_only=st.booleans())
def test_pretty_json_is_the_same_json(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert json.loads(pretty(text)) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"price": 1.10,  ' + " " * 100 + '"n": 1}',
        '{"a": 1, "a": 2' + " " * 90 + "}",
        "[" * 100_000,
        "x" * 200,
    ],
)
def test_what_would_not_be_the_same_stays_as_it_is(text: str) -> None:
    assert pretty(text) == text


def test_a_trajectory_leads_to_no_file_outside_of_the_folder(
    bundle: Bundle, site: Site, tmp_path: Path
) -> None:
    result = evaluate(bundle, "first", {"a": [1, 1]})
    assert [link for link in page_of(site, result).links if result.outcomes[1].id in link]
    (tmp_path / "elsewhere").mkdir()
    for ending in ("jsonl", "json"):
        Path("runs", "evals", f"first.{ending}").rename(tmp_path / "elsewhere" / f"first.{ending}")
    path = Path("runs", result.outcomes[0].file)
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({**plain, "eval_id": "../../elsewhere/first"}))
    assert not [link for link in page_of(site, result).links if result.outcomes[1].id in link]


def test_metrics_without_a_reason_have_a_page_however_many_they_are(bundle: Bundle, site: Site) -> None:
    reward = "def evaluate(messages, **_):\n    return {'score': 0.5, 'reason': 'ok', 'metrics': METRICS}\n"
    metrics = {f"part {number}": {"score": number / 60, "reason": ""} for number in range(60)}
    bundle.write("reward.py", f"METRICS = {metrics!r}\n\n\n{reward}")
    result = evaluate(bundle, "first", {"a": [1]})
    words = page_of(site, result).words
    html = site.page(result.outcomes[0].file.replace(".json", ".html")).html
    assert '<td class="long">part 59</td>' in html
    assert "ok" in words


def test_long_names_wrap_instead_of_pushing_the_other_columns_out_of_sight(
    bundle: Bundle, site: Site
) -> None:
    name = "n" * 120
    evaluate(bundle, "first", {name: [0]})
    html = site.page("evals/first.html").html
    assert f'<td class="long">{name}</td>' in html
    assert html.count('<td class="long">') == 3  # the row, and what did not pass with its trouble
    assert re.search(r"\.long \{[^}]*overflow-wrap: anywhere", html)
    assert re.search(r"body \{[^}]*overflow-wrap: break-word", html)


def test_rollouts_stand_right_behind_how_many_passed(bundle: Bundle, site: Site) -> None:
    """Where a window is narrow, the other columns are out of sight first."""
    evaluate(bundle, "first", PLAN)
    headings = re.findall(r"<th[^>]*>([^<]+)</th>", site.page("evals/first.html").html)
    assert headings[-8:-5] == ["row", "passed", "rollouts"]


def test_long_values_of_a_change_are_folded(bundle: Bundle, site: Site) -> None:
    result = evaluate(bundle, "first", {"a": [1]})
    path = Path("runs", result.outcomes[0].file)
    plain = json.loads(path.read_text())
    change = plain["tool_calls"][0]["changes"][0]
    unfolded = site.page(result.outcomes[0].file.replace(".json", ".html")).html
    change["after"] = {"passenger": "x" * 3000}
    path.write_text(json.dumps(plain))
    html = site.page(result.outcomes[0].file.replace(".json", ".html")).html
    assert "x" * 3000 in html
    assert "3,017 characters" in html
    assert html.count("<details>") == unfolded.count("<details>") + 1


def test_text_that_runs_from_right_to_left_turns_only_itself(bundle: Bundle, site: Site) -> None:
    result = evaluate(bundle, "first", {"a": [0]})
    html = site.page(result.outcomes[0].file.replace(".json", ".html")).html
    assert re.search(r'<div class="text">[^<]', html)
    assert ".text, pre { unicode-bidi: plaintext; }" in html
    assert re.search(r'<span class="said">[^<]+</span>\s+<span class="dim">\(step', html)
    assert ".said, code { unicode-bidi: isolate; }" in html


def test_failures_are_told_by_more_than_a_colour(bundle: Bundle, site: Site) -> None:
    evaluate(bundle, "first", PLAN)
    html = site.page("evals/first.html").html
    assert html.count('<a class="chip fail"') == 1
    assert re.search(r"\.chip\.fail \{[^}]*box-shadow: inset", html)
    assert not re.search(r"\.chip\.pass \{[^}]*box-shadow", html)


def test_a_rollout_that_asked_no_model_tells_no_cost(bundle: Bundle, site: Site) -> None:
    assert "model call" not in page_of(site, evaluate(bundle, "first", {"a": [1]})).words


def test_a_tool_that_raised_leads_to_the_first_rollout_in_which_it_did(bundle: Bundle, site: Site) -> None:
    result = evaluate(bundle, "first", PLAN)
    change_log(result, "b", tool_faults={"look": {"calls": 2, "first": "tools.py:14: KeyError: 'x'"}})
    read = Read(site.page("evals/first.html").html)
    told = "tools with faults: look (4 calls in 2 rollouts), first tools.py:14: KeyError: 'x' in b #1"
    assert told in read.words
    assert sum(result.outcomes[2].id in link for link in read.links) == 2  # in its row, and there


def test_what_did_not_pass_can_be_reached_without_reading_all_rows(bundle: Bundle, site: Site) -> None:
    evaluate(bundle, "failing", {"a": [0]})
    html = site.page("evals/failing.html").html
    assert html.index('href="#failed"') < html.index("<h2>Rows") < html.index('id="failed"')
    evaluate(bundle, "passing", {"a": [1]})
    assert "#failed" not in site.page("evals/passing.html").html


def grouped(bundle: Bundle, fields: int = 1) -> EvaluationResult:
    """Two rows of one group, and two of another that looks like markup, in each of so many fields."""
    plan = {"a": [1, 1], "b": [1, 0], "c": [0, 0], "d": [0, 1]}
    domains = {"a": "air", "b": "air", "c": "<b>sea", "d": "<b>sea"}
    rows = [
        {**row, "metadata": {f"domain{at}": [domains[row["id"]]] for at in range(fields)}}
        for row in rows_of(plan)
    ]
    return evaluate(bundle, "first", plan, rows=rows)


def test_the_page_of_an_evaluation_has_its_scores_by_group(bundle: Bundle, site: Site) -> None:
    grouped(bundle)
    html = site.page("evals/first.html").html
    section = html[html.index("<h2>By group") : html.index("<h2>Rows")]
    assert "<details open><summary><h3>metadata.domain0</h3>" in section
    cells = [re.findall(r"<t[dh][^>]*>([^<]*)", line) for line in re.findall(r"<tr.*?</tr>", section)]
    assert cells[0] == ["", "rows", "judged", "Pass^1", "Pass^2", "reward"]
    assert [[line[0], line[1], line[2], line[3][:5], line[4], line[5]] for line in cells[1:]] == [
        ["&lt;b&gt;sea", "2", "4/4", "0.250", "0.000", "0.250"],
        ["air", "2", "4/4", "0.750", "0.500", "0.750"],
        ["all", "4", "8/8", "0.500", "0.250", "0.500"],
    ]


def test_many_groups_are_folded_so_that_the_rows_are_in_sight(bundle: Bundle, site: Site) -> None:
    grouped(bundle, fields=4)
    html = site.page("evals/first.html").html
    assert html.count("<details><summary><h3>metadata.domain") == 4


def test_without_groups_without_trajectories_and_while_it_runs_there_are_no_scores_by_group(
    bundle: Bundle, site: Site
) -> None:
    evaluate(bundle, "plain", PLAN)
    assert "By group" not in site.page("evals/plain.html").html
    result = grouped(bundle)
    lock = EvaluationLock(result.log_path.with_suffix(".lock"))
    results = result.results_path.read_bytes()
    result.results_path.unlink()
    assert "By group" not in site.page("evals/first.html").html
    lock.release()
    result.results_path.write_bytes(results)
    assert "By group" in site.page("evals/first.html").html
    for outcome in result.rows[0].outcomes:
        Path("runs", outcome.file).unlink()
    page = site.page("evals/first.html")
    assert page.status == 200
    assert "By group" not in page.html


def test_calls_that_the_row_begins_with_are_not_called_failures(bundle: Bundle, site: Site) -> None:
    call = {"id": "old", "type": "function", "function": {"name": "search_flights", "arguments": "{}"}}
    begun = [
        {"role": "user", "content": "What is there?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "old", "content": "one flight"},
        {"role": "user", "content": "Book it."},
    ]
    result = evaluate(bundle, "first", {"a": [1]}, rows=rows_of({"a": [1]}, initial_messages=begun))
    html = site.page(result.outcomes[0].file.replace(".json", ".html")).html
    assert re.search(r'<strong>search_flights</strong>\s+<span class="dim">given by the row</span>', html)
    assert "not run" not in html


def test_where_nothing_was_judged_there_is_no_empty_table_of_scores(bundle: Bundle, site: Site) -> None:
    bundle.write("reward.py", "def evaluate(messages, **_):\n    raise ValueError('no')\n")
    evaluate(bundle, "first", {"a": [1]})
    read = Read(site.page("evals/first.html").html)
    assert "Pass^k" not in read.words.replace("left out of Pass^k", "")
    assert "reward_error 1" in read.words
