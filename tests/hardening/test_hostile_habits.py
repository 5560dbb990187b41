"""What authors of bundles do without meaning harm: it costs their call, or is told in words that mend it."""

import json

import pytest
from flight_bundle import GOLD, ROW, Bundle
from hostile import GOLD_RUN, Command, Writer, row_calling, tool, trajectories

from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.errors import BundleError

IMPORTS = "import asyncio, os, threading, time\nKEPT = []"
SLOW_TEXT = "class Slow:\n  def __str__(self): time.sleep(1.5)\nreturn Slow()"

# name: (what it is, what it does, the status of its call, what the model reads)
TOOLS = {
    "closes": ("async def", "await db.close()", "failed", "cannot close its rollout's database. Leave that"),
    "slow_text": ("def", SLOW_TEXT, "failed", "did not finish within 0.5 s"),
    "generates": ("def", "async def g(): yield 1\nreturn g()", "failed", "g: return a list"),
    "opens": ("async def", "await db.transaction().__aenter__()\nreturn 'fine'", "ok", "fine"),
    "leaves_task": ("async def", "async def f(): 1 / 0\nasyncio.ensure_future(f())", "ok", "null"),
}


def test_habits_of_tools_cost_their_call(agent_eval: Command, bundle: Bundle, tools: Writer) -> None:
    written = [tool(name, body, kind) for name, (kind, body, _, _) in TOOLS.items()]
    tools(before=IMPORTS, after="R.tool_timeout = 0.5\n" + "\n".join(written))
    late = json.loads(json.dumps(GOLD).replace("[0, ", "[1, "))
    rows = [row_calling(name) for name in TOOLS]
    for row in rows:
        row["actions"] += late
    bundle.rows(*rows, {"id": "sound", "actions": GOLD, "n_rollouts": 2})
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["finished"]) == (0, len(TOOLS) + 2), ran.err
    for name, (_, _, status, part) in TOOLS.items():
        (record,) = trajectories(bundle, name)
        call = record["tool_calls"][0]
        assert (call["status"], record["reward"]) == (status, 1.0), (name, record)
        assert part in call["content"], (name, call["content"])
    assert "warning: exception in a background task: tools.py" in ran.err


def test_a_database_of_another_rollout_is_refused(agent_eval: Command, bundle: Bundle, tools: Writer) -> None:
    body = "KEPT.append(db)\nKEPT[0].execute('DELETE FROM bookings')"
    tools(before="KEPT = []", after=tool("remembers", body, "def"))
    call = {"name": "remembers", "arguments": {}}
    bundle.rows({"actions": [*GOLD, call, call], "n_rollouts": 3, "outputs": []})
    ran = agent_eval(*GOLD_RUN, "--max-concurrency", "1")
    ran.tidy()
    calls = [call for record in trajectories(bundle, ROW["id"]) for call in record["tool_calls"][2:]]
    assert len(calls) == 6
    for call in calls:
        assert call["content"].startswith("Error: this database is another rollout's. Use the `db`"), call


FORM = "a row is one JSON object on its own line, in UTF-8, with double quotes (a comment begins with #)"


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b'{"id": "a"}{"id": "b"}', f":1:12: not valid JSON: trailing characters; {FORM}"),
        (b'{"id": "a"},\n{"id": "b"}', f":1:12: not valid JSON: trailing characters; {FORM}"),
        (b"{'id': 'a'}", f":1:2: not valid JSON: key must be a string; {FORM}"),
        (b"// rows\n{}", f":1:1: not valid JSON: expected value; {FORM}"),
        (b'[{"id": "a"}]', "(a list); write each row on a line of its own, without [ and ]"),
        ("{}".encode("utf-16-le"), f":1:2: not valid JSON: key must be a string; {FORM}"),
        (b"\x1f\x8b\x08\0\0\n\xff", f":1:1: not valid JSON: expected value; {FORM}"),
    ],
    ids=["two", "comma", "quotes", "comment", "list", "UTF-16", "gzip"],
)
def test_what_people_write_for_json_lines_is_reported(bundle: Bundle, data: bytes, part: str) -> None:
    bundle.dataset.write_bytes(data)
    with pytest.raises(BundleError) as caught:
        TaskBundle.load(bundle.dataset)
    assert part in f"{caught.value}\n"
    assert str(caught.value).startswith("task.jsonl:1")


def test_a_module_imported_by_its_own_name_alone_is_refused(bundle: Bundle, tools: Writer) -> None:
    bundle.write("prices_of_seats.py", "PRICE = 1\n")
    tools(before="import prices_of_seats")
    with pytest.raises(BundleError, match=r'"from flight_task import prices_of_seats"\.$'):
        TaskBundle.load(bundle.dataset)
