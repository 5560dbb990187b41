"""The file of an evaluation: atomic, durable, one writer, many readers."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stored_rollouts import begun, edit, outcome, played, query

from reward_kit.agent.rollout.outcome import Played, RowGold, broken_off
from reward_kit.agent.store.evaluation_file import (
    ANSWER_FAULTS,
    base_path,
    count_answer_faults,
    file_within,
    find_named,
    reading,
    rollout_at,
)
from reward_kit.agent.store.schema import FINAL, read_outcomes
from reward_kit.agent.store.writer import LARGEST_GROUP, Saver, Store, writer_of
from reward_kit.errors import StorageError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "e.db"


def stored(path: Path, where: str = "1") -> list[Any]:
    with reading(path) as connection:
        return list(read_outcomes(connection, path, where))


def test_what_is_added_is_read_back(tmp_path: Path, path: Path) -> None:
    faults: Any = {"tool_faults": {"t": {"calls": 1, "first": "x"}}, "user_faults": ["end"]}
    first = outcome(0, metrics={"a": 0.5}, error="\ud800", base="ab" * 32, **faults)
    with begun(path) as store:
        gold = RowGold("a", [{"name": "book"}], [{"table": "t"}], b"gold")
        store.add([Played(first, '{"n": 0}', b"delta", None, gold), played(1)])
        store.add_usage("broken_off", broken_off(first.usage))
        store.end_run("complete", None, 12.5)
    first.error = "\\ud800"
    assert stored(path) == [first, played(1).outcome]
    assert rollout_at(path / "r00000") == ('{"n": 0}', '{"id":"a"}', "ab" * 32, None, b"delta", b"gold", None)
    assert sorted(tmp_path.iterdir()) == [
        path,
        path.with_suffix(".lock"),
    ]  # no journal is left beside a store that was closed
    assert query(path, "SELECT status, seconds FROM evaluation") == [{"status": "complete", "seconds": 12.5}]
    (used,) = query(path, "SELECT kind, rollouts, tokens, cost FROM usage")
    assert used == {"kind": "broken_off", "rollouts": 1, "tokens": 15, "cost": 0.25}


def test_a_rollout_that_is_judged_again_takes_its_own_place(path: Path) -> None:
    with begun(path) as store:
        store.add([played(0, reward=None, error="no"), played(1)])
        store.add([played(0, reward=0.5, scored_at=2000.0)])
    assert [(one.index, one.reward) for one in stored(path)] == [(0, 0.5), (1, 1.0)]


def test_however_many_are_added_at_once_all_are_read_back(path: Path) -> None:
    number = 2 * LARGEST_GROUP + 1
    group = [played(n, reward=n / number) for n in range(number)]
    group = [replace(one, state=b"%d" % n if n % 3 else None) for n, one in enumerate(group)]
    with begun(path) as store:
        store.add([played(number - 1, reward=None, error="no")])
        store.add(group)
    assert sorted(stored(path), key=lambda one: one.index) == [one.outcome for one in group]
    for one in group:
        found = rollout_at(path / one.outcome.id)
        assert (found.trace, found.state) == (one.trace, one.state)


def test_the_last_final_attempt_counts(path: Path) -> None:
    with begun(path) as store:
        store.add([played(0, id="x", final=False), played(0, id="y"), played(0, id="z")])
    assert [one.id for one in stored(path, FINAL)] == ["z"]


def test_faults_of_answers_are_counted_without_reading_other_traces(path: Path) -> None:
    def answered(number: int, **call: str) -> Played:
        return replace(played(number), trace=json.dumps({"model_calls": [call]}, separators=(",", ":")))

    with begun(path) as store:
        store.add([answered(0, text="fault"), answered(1, fault="cut"), answered(2, fault="cut")])
        assert count_answer_faults(path) == {"cut": 2}
    plan = query(path, f"EXPLAIN QUERY PLAN {ANSWER_FAULTS}")
    assert plan[0]["detail"] == "SCAN t USING INDEX answer_faults"


def test_a_second_writer_is_refused_and_readers_are_not(path: Path) -> None:
    with begun(path) as store:
        store.add([played(0)])
        with pytest.raises(StorageError) as refused:
            Store(path)
        assert str(refused.value) == (
            f"e: process {os.getpid()} on {os.uname().nodename} is running this evaluation. "
            "Wait for it to end, or choose another --eval-id."
        )
        assert writer_of(path) == f"process {os.getpid()} on {os.uname().nodename}"
        assert len(stored(path)) == 1
        store.add([played(1)])
    assert writer_of(path) is None
    Store(path).close()


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from stored_rollouts import begun, played
store = begun(Path(sys.argv[2]))
print("ready", flush=True)
number = 0
while True:
    store.add([played(number), played(number + 1)])
    print(number + 2, flush=True)
    number += 2
"""


def test_what_was_acknowledged_survives_a_kill_and_a_copy_taken_mid_write(tmp_path: Path, path: Path) -> None:
    line = [sys.executable, "-c", WRITER, str(Path(__file__).parent.parent), str(path)]
    writer = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    copies = []
    for number in range(5):
        known = [writer.stdout.readline() for _ in range(10)][-1]
        folder = tmp_path / f"power{number}"
        folder.mkdir()
        for suffix in ("", "-wal"):  # as a disk has them after a power cut: the log may be torn
            shutil.copy(f"{path}{suffix}", folder)
        torn = folder / "e.db-wal"
        os.truncate(torn, torn.stat().st_size - 100 * number)
        copies.append((folder / "e.db", int(known)))
    writer.send_signal(signal.SIGKILL)
    rest = writer.stdout.read().split()
    writer.wait()
    with Store(path) as again:
        assert again is not None
    numbers = [one.index for one in stored(path)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) % 2 == 0
    assert len(numbers) >= int(rest[-1] if rest else 0)
    for copy, known_then in copies:
        found = stored(copy)
        assert [one.index for one in found] == list(range(len(found)))
        assert len(found) % 2 == 0
        assert copy.parent.name != "power0" or len(found) >= known_then


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_file_that_is_deleted_or_cut_ends_the_run(path: Path, harm: Callable[[Path], object]) -> None:
    with begun(path) as store:
        harm(path)
        for _ in range(2):
            with pytest.raises(StorageError, match="was deleted, replaced or cut while the evaluation runs"):
                store.add([played(0)])


def test_a_log_without_its_file_is_refused_with_the_remedy(path: Path) -> None:
    path.with_name("e.db-wal").write_bytes(b"left")
    for attempt in (lambda: Store(path), lambda: find_named("e", path.parent)):
        with pytest.raises(
            StorageError, match=r"only its log e\.db-wal is left\. Restore e\.db, or remove e"
        ):
            attempt()


def test_changed_bytes_are_found(path: Path) -> None:
    with begun(path) as store:
        store.add([replace(played(0), state=b"delta", gold_state=b"gold")])
    address = path / played(0).outcome.id
    for table, column in (("traces", "json"), ("states", "delta")):
        edit(path, f"UPDATE {table} SET {column} = {column} || ' '")
        with pytest.raises(StorageError, match=r"rollout \S+#1 is damaged: its checksum differs"):
            rollout_at(address)
        edit(path, f"UPDATE {table} SET {column} = rtrim({column})")


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"no database" * 100, "is damaged, or not the file of"), (b"", "is not the file of")],
)
def test_other_files_are_refused(path: Path, content: bytes, said: str) -> None:
    path.write_bytes(content)
    with pytest.raises(StorageError, match=said):
        stored(path)


def test_another_version_and_other_databases_are_refused(tmp_path: Path, path: Path) -> None:
    begun(path).close()
    edit(path, "PRAGMA user_version = 9")
    for attempt in (stored, Store):
        with pytest.raises(StorageError, match=r"another version of reward-kit .format 9, this one reads 4"):
            attempt(path)
    edit(tmp_path / "other.db", "CREATE TABLE t (x)")
    with pytest.raises(StorageError, match="is not the file of an evaluation"):
        Store(tmp_path / "other.db")


def test_a_link_is_never_written_through(tmp_path: Path) -> None:
    (tmp_path / "e.db").symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(StorageError, match="is a link, so that another file would be written to"):
        Store(tmp_path / "e.db")


def test_hostile_ids_and_paths_are_refused(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / "a").mkdir(parents=True)
    (tmp_path / "secret.db").write_text("s")
    (runs / "link").symlink_to(tmp_path)
    (runs / "a" / "roll_x.db").symlink_to(tmp_path / "secret.db")
    absolute = str(tmp_path / "secret.db")
    for name in ("../secret.db", absolute, "link/secret.db", "a/roll_x.db", "a/../../secret.db"):
        with pytest.raises(StorageError, match="leads out of the runs folder"):
            file_within(runs, name)
    with pytest.raises(StorageError, match="is not the key of a seed"):
        base_path(runs, "../../secret")
    path = runs / "e.db"
    with begun(path) as store:
        store.add([played(0), played(1)])
    for change in ("id = '../../x'", "row_id = '..'", "usage = 'no'"):
        shutil.copy(path, tmp_path / "e.db")
        edit(tmp_path / "e.db", f"UPDATE rollouts SET {change} WHERE idx = 0")
        with pytest.raises(StorageError, match="is damaged"):
            stored(tmp_path / "e.db")


def test_a_rollout_is_stored_though_nobody_waits_for_it(path: Path) -> None:
    async def saved(store: Store) -> None:
        saver = Saver(store)
        saver.save(played(0))
        await saver.close()

    with begun(path) as store:
        asyncio.run(saved(store))
    assert len(stored(path)) == 1


def test_no_secret_of_the_environment_is_stored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = 'hush-"é"-1234-5678'
    monkeypatch.setenv("MY_API_KEY", secret)
    monkeypatch.setenv("DB_PASSWORD", "17000000")
    text = json.dumps({"started": 17000000.5, "messages": [{"content": f"the key is {secret}!"}]})
    faults: Any = {"look": {"calls": 1, "first": f"KeyError: {secret}"}}
    with begun(path) as store:
        failed = outcome(0, error=f"raised {secret}", tool_faults=faults)
        store.add([Played(failed, text, "ab" * 32), Played(outcome(1), text, "ab" * 32)])
        store.add_note("explanation", {"sentence": secret})
        store.end_run("stopped", f"refused {secret}", 1.0)
    hidden = {"started": 17000000.5, "messages": [{"content": "the key is [hidden]!"}]}
    assert json.loads(rollout_at(path / "r00000").trace) == hidden
    first, second = stored(path)
    assert (first.error, first.tool_faults["look"]["first"]) == ("raised [hidden]", "KeyError: [hidden]")
    assert second.id == "r00001"
    assert b"hush" not in path.read_bytes()
