"""Secrets that a bundle handles are in no text, and other values of its environment stay as they are."""

import html
import json
import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from command import Finished, run_command
from flight_bundle import Bundle

SECRETS = {
    "SHOP_API_KEY": 'qX7v/Lm29+tZ"4w=Yp8kR3\\a',
    "DB_PASS": "hG6tR2wQ9zXc4VbN7mK",
    "SIGNING_PASSPHRASE": "correct-3921-horse-battery",
    "GITHUB_PAT": "ghp_abcdefGHIJKL0123456789",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3.dozjgNryP4J3jVmNHl0w5N",
    "BASIC_AUTH": "alice:Sup3rS3cretPassw0rd",
    "CHAT_WEBHOOK": "https://hooks.example/services/T000AAAA/B000BBBB/abcdefghijklmnop123456",
    "SHOP_DSN": "Server=db;User ID=sa;Password=Zx81Qw72Er63Ty54;Encrypt=yes",
    "SHOP_URL": "postgres://shop:Mn19Bv28Cx37Zl46@db.example/shop",
}
HEADER = "canary-header-4714-option"
VALUES = [
    *(SECRETS[name] for name in ("SHOP_API_KEY", "DB_PASS", "SIGNING_PASSPHRASE", "GITHUB_PAT", "JWT")),
    *("Sup3rS3cretPassw0rd", "services/T000AAAA/B000BBBB/abcdefghijklmnop123456", "Zx81Qw72Er63Ty54"),
    "Mn19Bv28Cx37Zl46",
]
HARMLESS = {
    "COOKIE_DOMAIN": "shop.example.com", "PASSWORD_POLICY": "strict-mode", "AUTHOR": "Alice Smith",
    "AUTHORITY": "Port Authority of New York", "KEY_COLUMN": "customer_identifier", "PRIMARY_KEY": "order_id",
    "SORT_KEY": "created_at", "TOKEN_LIMIT": "20000000", "MONKEY_NAME": "Caesar of the apes",
    "HOCKEY_TEAM": "Toronto Maple Leafs", "TURKEY_AIRPORT": "Istanbul Sabiha Gokcen",
    "WHISKEY_BRAND": "Lagavulin sixteen", "AUTH_MODE": "disabled", "SIGNATURE_ALGORITHM": "RS256-with-SHA512",
    "CREDENTIALS_FILE": "task.jsonl", "STOP_TOKEN": "###STOP###", "TOKENIZER_PATH": "/models/q2048/tok.json",
    "SECRET_NAME": "the", "SESSION_COOKIE": "chocolate-chip-cookie", "PARTITION_KEY": "2024-01-01T00:00:00Z",
    "SERVER_KEY": "inference01.example.com:8080", "ROW_TOKEN": "https://example.com/rows/4711-4712-4713",
}  # fmt: skip
TOOLS = """
import json, os
from reward_kit.agent import ToolRegistry

R = ToolRegistry("leaky")

@R.tool(description="Look up", parameters={"what": str})
async def look(what, db):
    return {"found": [os.environ[name] for name in NAMES], what: 1, "raw": "\\\\/".join(what.split("/"))}
"""
AGENT = """
import json, os
from urllib.parse import quote

class Leaky:
    async def respond(self, rollout):
        for value in VALUES:
            await rollout.call_tool("look", {"what": value, value: 1})
            await rollout.call_tool(value, {"nothing": quote(value, safe="")})
            await rollout.call_tool("look", json.dumps({"what": json.dumps([value])}).replace("/", "\\\\/"))
        said = " ".join([*VALUES, *map(quote, VALUES)])
        rollout.record({"role": "assistant", "content": said})
        rollout.stop("agent_done", said)
        return said
"""
REWARD = """
import os

def evaluate(messages, *, db, **kwargs):
    print("judged", *VALUES)
    metrics = {value: {"score": 1.0, "reason": value} for value in VALUES}
    return {"score": 1.0, "reason": "paid with " + " ".join(VALUES), "metrics": metrics}
"""


def run(bundle: Bundle, *arguments: str | Path, **variables: str) -> Finished:
    environment = {name: one for name, one in os.environ.items() if not name.startswith(("OPENAI", "MODEL"))}
    done = run_command(*arguments, cwd=bundle.folder, env={**environment, **variables})
    assert "Traceback" not in done.err
    return done


def stored(bundle: Bundle, name: str) -> list[str]:
    with sqlite3.connect(bundle.folder / f"runs/evals/{name}.db") as connection:
        return [text for (text,) in connection.execute("SELECT json FROM traces ORDER BY rowid")]


def forms(value: str) -> set[str]:
    once = json.dumps(value)[1:-1]
    twice = json.dumps(once)[1:-1]
    escaped = {one.replace("/", slash) for one in (value, once) for slash in ("\\/", "\\\\/", "\\\\\\/")}
    return {value, once, twice, quote(value), quote(value, safe=""), html.escape(value), *escaped}


def test_no_secret_is_in_any_text_and_what_is_stored_says_so(bundle: Bundle) -> None:
    names = f"NAMES = {[*SECRETS]}\nVALUES = {VALUES}\n"
    for name, text in (("tools.py", TOOLS), ("leaky.py", AGENT), ("reward.py", REWARD)):
        bundle.write(name, names + text)
    bundle.rows({"actions": [{"name": "look", "arguments": {"what": "all"}}], "n_rollouts": 2})
    said: list[Finished] = []

    def also(*arguments: str | Path) -> Finished:
        said.append(run(bundle, *arguments, **SECRETS))
        return said[-1]

    headers = f"extra_headers={json.dumps({'X-Api': HEADER})}"
    played = ("-d", "task.jsonl", "--no-sim-user", "--debug", "--eval-id")
    first = also(
        "agent-eval", "--agent", "leaky:Leaky", "--json", "all.json", "--model-arg", headers, *played, "e"
    )
    assert first.code == 0, first.err
    for name in SECRETS:
        assert first.err.count(f"the value of {name} (") == 1, name
    assert "the value of DB_PASS (19 characters) is hidden in stored texts" in first.err
    assert "redacted" in also("show", "e flight.booking.001#1").out
    for warned in (
        also("rescore", "e", "--json", "rescored.json"),
        also("export", "e", "--out", "training.jsonl"),
        also("agent-eval", "--agent", "replay:runs/evals/e.db", *played, "again"),
    ):
        assert "flight.booking.001 #1, flight.booking.001 #2: stored with [hidden]" in warned.err
    for others in (
        ("export", "e", "files", "--format", "rollouts"),
        ("view", "e", "--out", "pages"),
        ("card", "e", "--out", "e.card.json"),
    ):
        assert also(*others).code == 0
    assert "judged [hidden]" in also("validate", "task.jsonl", "--json", "validated.json").out

    assert len(stored(bundle, "e")) == 2
    assert all(json.loads(text)["redacted"] for text in stored(bundle, "e"))
    files = [
        path for path in bundle.folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    assert {"e.db", "e.json", "e.log", "all.json", "training.jsonl", "e.card.json"} <= {
        path.name for path in files
    }
    texts = {str(path): path.read_bytes() for path in files}
    texts |= {f"command {number}": (one.out + one.err).encode() for number, one in enumerate(said)}
    for value in (*VALUES, HEADER):
        for form in forms(value):
            assert [name for name, text in texts.items() if form.encode() in text] == [], form


def test_values_that_are_no_secrets_change_nothing(bundle: Bundle) -> None:
    values = list(HARMLESS.values())
    agent = f"class Says:\n    async def respond(self, rollout):\n        return {' | '.join(values)!r}\n"
    bundle.write("says.py", agent)
    bundle.write(
        "reward.py",
        f"VALUES = {values}\ndef evaluate(messages, **kwargs):\n"
        "    found = [value for value in VALUES if value in messages[-1]['content']]\n"
        "    return {'score': len(found) / len(VALUES), 'reason': ' '.join(found)}\n",
    )
    bundle.rows({"n_rollouts": 1})
    played = ("-d", "task.jsonl", "--agent", "says:Says", "--no-sim-user", "--eval-id")
    plain = run(bundle, "agent-eval", *played, "plain")
    same = run(bundle, "agent-eval", *played, "same", **HARMLESS)
    assert (plain.code, same.code) == (0, 0)
    assert "hidden" not in same.out + same.err
    (before,), (after,) = ([json.loads(text) for text in stored(bundle, name)] for name in ("plain", "same"))
    assert before["messages"] == after["messages"]
    assert before["result"] == after["result"]
    assert (after["reward"], after["redacted"]) == (1.0, False)
    again = run(bundle, "rescore", "same", **HARMLESS)
    assert "0 rewards changed" in again.out
    assert "warning" not in again.err


def test_a_resumed_evaluation_says_what_it_judges_again(bundle: Bundle) -> None:
    bundle.write(
        "leaky.py", f"class Leaky:\n    async def respond(self, rollout):\n        return {VALUES[1]!r}\n"
    )
    reward = (
        "import os\ndef evaluate(messages, **kwargs):\n    return {'score': float(os.environ['SCORE'])}\n"
    )
    bundle.write("reward.py", reward)
    bundle.rows({"n_rollouts": 1})
    played = ("-d", "task.jsonl", "--agent", "leaky:Leaky", "--no-sim-user", "--eval-id", "e")
    assert run(bundle, "agent-eval", *played, **SECRETS).code == 1
    again = run(bundle, "agent-eval", "--resume", "e", SCORE="1.0", **SECRETS)
    assert again.code == 0
    assert "judged again: flight.booking.001 #1: stored with [hidden]" in again.err
    assert [json.loads(text)["redacted"] for text in stored(bundle, "e")] == [True]
