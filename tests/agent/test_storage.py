"""What lies in the runs folder, and reading a rollout back from it."""

from __future__ import annotations

import functools
import json
import math
import operator
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, SEED, Bundle, flight_bundle

from reward_kit.agent import agent_eval, load_rollout
from reward_kit.agent.bundle import TaskBundle
from reward_kit.agent.calls import ModelCall
from reward_kit.agent.completion import Usage
from reward_kit.agent.evaluation import EvaluationResult
from reward_kit.agent.runs.atomic_file import compact_json, json_bytes, link_or_copy, write_file
from reward_kit.agent.runs.parcels import NewFile, Parcel, save_parcels
from reward_kit.agent.storage import RunsFolder
from reward_kit.errors import StorageError, UsageError


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    made = flight_bundle(tmp_path)
    made.rows({"actions": GOLD, "n_rollouts": 2, "now": "2025-05-19T08:00:00Z", "level": "easy"})
    return made


def run(bundle: Bundle, **options: Any) -> EvaluationResult:
    return agent_eval(bundle.dataset, agent="gold", output_dir=str(bundle.folder.parent / "runs"), **options)


@pytest.mark.parametrize("name", ["runs", "runs/evals", "runs/.bases", "runs/flight.booking.001"])
@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_what_lies_in_the_place_of_a_folder_is_named(
    bundle: Bundle, name: str, make: Callable[[Path], None]
) -> None:
    place = bundle.folder.parent / name
    place.parent.mkdir(exist_ok=True)
    make(place)
    with pytest.raises(StorageError, match=r"lies where a folder must be\. Remove it, or choose") as caught:
        run(bundle)
    assert str(caught.value).startswith(f"{place}")


def record_path(result: EvaluationResult, number: int = 0) -> Path:
    return result.folder / result.outcomes[number].file


def test_every_file_of_the_layout_is_there(bundle: Bundle) -> None:
    result = run(bundle, eval_id="first")
    names = sorted(
        path.relative_to(result.folder).as_posix() for path in result.folder.rglob("*") if path.is_file()
    )
    ids = sorted(outcome.id for outcome in result.outcomes)
    row = "flight.booking.001"
    for rollout in ids:
        assert f"{row}/roll_{rollout}.db" in names
        assert f"{row}/roll_{rollout}.json" in names
    assert {f"{row}/base.db", f"{row}/gold.json", "evals/first.json", "evals/first.jsonl"} <= set(names)
    assert not [name for name in names if name.endswith((".tmp", ".lock"))]


def test_whichever_rollout_of_a_row_is_saved_first_makes_its_folder(bundle: Bundle, tmp_path: Path) -> None:
    with TaskBundle.load(str(bundle.dataset)) as loaded:
        (task,) = loaded.tasks
    folder = RunsFolder(tmp_path / "runs")
    folder.ensure_base(task.seed)
    path = folder.root / task.row.id
    parcels = [
        Parcel([NewFile(path / name, (b"{}",))], folder.new_row_folder(task))
        for name in ("one", "two", "three")
    ]
    assert save_parcels(parcels[1:2]) == [None]
    folder.row_folder_made(task)
    assert save_parcels([parcels[2], parcels[0]]) == [None, None]
    assert {file.name for file in path.iterdir()} == {"base.db", "one", "two", "three"}
    assert folder.new_row_folder(task) is None


def test_rows_with_one_seed_share_one_read_only_file(bundle: Bundle) -> None:
    bundle.rows(
        {"actions": GOLD},
        {"id": "second", "actions": GOLD},
        {"id": "third", "seed_sql": SEED, "actions": GOLD},
    )
    folder = run(bundle, n_rollouts=1).folder
    first, second = folder / "flight.booking.001" / "base.db", folder / "second" / "base.db"
    assert first.samefile(second)
    assert stat.S_IMODE(first.stat().st_mode) == 0o444
    (base,) = [path for path in (folder / ".bases").iterdir() if path.samefile(first)]
    assert base.suffix == ".db"
    with sqlite3.connect(first) as connection:
        assert connection.execute("SELECT count(*) FROM flights").fetchone() == (1,)


def test_a_changed_seed_gets_a_base_of_its_own_and_old_rollouts_stay_readable(bundle: Bundle) -> None:
    before = run(bundle, keep_db="delta")
    bundle.write(
        "seed.sql", SEED + "INSERT INTO flights SELECT 2, origin, dest, depart, arrive, 9 FROM flights;"
    )
    run(bundle, keep_db="delta")
    with load_rollout(record_path(before)) as record:
        db = record.reward_arguments()["db"]
        assert db.execute("SELECT count(*) FROM flights").scalar_one() == 1
        assert db.execute("SELECT status FROM bookings").scalar_one() == "paid"
    assert len(list((before.folder / ".bases").glob("*.db"))) == 2


@pytest.mark.parametrize("harm", ["flipped", "truncated", "emptied"])
def test_a_damaged_base_is_seeded_again_and_old_deltas_stay_readable(
    bundle: Bundle, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = run(bundle, keep_db="delta")
    (base,) = (before.folder / ".bases").glob("*.db")
    whole = base.read_bytes()
    damaged = {
        "flipped": whole[:-1] + bytes([whole[-1] ^ 1]),
        "truncated": whole[: len(whole) // 2],
        "emptied": b"",
    }[harm]
    base.chmod(0o644)
    base.write_bytes(damaged)
    after = run(bundle, keep_db="delta")
    assert base.read_bytes() == whole
    assert [record.getMessage() for record in caplog.records if "seeded again" in record.getMessage()] == [
        f"{base}: the base was damaged and is seeded again"
    ]
    for result in (before, after):
        with load_rollout(record_path(result)) as record:
            db = record.reward_arguments()["db"]
            assert db.execute("SELECT status FROM bookings").scalar_one() == "paid"


def test_a_base_without_a_hash_is_seeded_again_and_kept_where_the_seed_gives_other_rows(
    bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    bundle.write("seed.sql", SEED + "CREATE TABLE clock AS SELECT julianday('now') AS moment;")
    bundle.rows({"actions": GOLD})
    before = run(bundle, keep_db="delta")
    bases = before.folder / ".bases"
    for marker in bases.glob("*.seeded"):
        marker.unlink()
    run(bundle, keep_db="delta")
    assert len(list(bases.glob("*.db"))) == 2
    assert "seeded again" not in caplog.text
    with load_rollout(record_path(before)) as record:
        db = record.reward_arguments()["db"]
        assert db.execute("SELECT status FROM bookings").scalar_one() == "paid"


@pytest.mark.parametrize(("keep", "suffix"), [("full", ".db"), ("delta", ".dbd")])
def test_the_reward_can_be_called_by_hand(bundle: Bundle, keep: str, suffix: str) -> None:
    result = run(bundle, keep_db=keep)
    path = record_path(result)
    assert path.with_suffix(suffix).is_file()
    with load_rollout(path) as record:
        arguments = record.reward_arguments()
        assert arguments["level"] == "easy"
        assert arguments["messages"][0]["role"] == "user"
        assert arguments["rollout"].gold[0].name == "create_booking"
        assert arguments["db"].equals(arguments["gold_db"])

        namespace: dict[str, Any] = {}
        exec((bundle.folder / "reward.py").read_text(), namespace)
        again = namespace["evaluate"](**arguments)
    assert (again.score, again.reason) == (record.reward, "Task completed successfully")
    assert record.result is not None
    assert record.result["metrics"]["task_complete"]["score"] == 1.0


async def test_an_async_reward_gets_async_databases(bundle: Bundle) -> None:
    path = bundle.folder.parent / "runs"
    result = agent_eval(bundle.dataset, agent="gold", output_dir=str(path))
    with load_rollout(record_path(result)) as record:
        arguments = record.reward_arguments(is_async=True)
        assert await arguments["db"].fetch_val("SELECT status FROM bookings") == "paid"


def test_nothing_is_kept_of_the_database_if_so_asked(bundle: Bundle) -> None:
    result = run(bundle, keep_db="none")
    with (
        load_rollout(record_path(result)) as record,
        pytest.raises(StorageError, match="--keep-db full or delta"),
    ):
        record.reward_arguments()
    assert not list(result.folder.glob("flight.booking.001/roll_*.db*"))


def test_a_big_base_is_kept_as_deltas_unless_asked_otherwise(bundle: Bundle) -> None:
    bundle.write("seed.sql", SEED + "CREATE TABLE pad(x); INSERT INTO pad VALUES (randomblob(5000000));")
    result = run(bundle)
    delta = record_path(result).with_suffix(".dbd")
    assert delta.stat().st_size < 100_000
    with load_rollout(record_path(result)) as record:
        assert record.reward_arguments()["db"].execute("SELECT status FROM bookings").scalar_one() == "paid"
    assert record_path(run(bundle, keep_db="full")).with_suffix(".db").stat().st_size > 5_000_000


def test_a_record_read_back_equals_what_was_written(bundle: Bundle) -> None:
    path = record_path(run(bundle))
    record = load_rollout(path)
    assert record.to_json() == json.loads(path.read_text())
    assert (record.row.id, record.outputs, record.steps) == ("flight.booking.001", [], 3)
    assert [call.status for call in record.tool_calls] == ["ok", "ok"]


def test_a_record_of_an_earlier_version_is_read_as_well(bundle: Bundle) -> None:
    path = record_path(run(bundle))
    plain = json.loads(path.read_text())
    del plain["user_faults"]
    plain["failure"] = {"kind": "other", "detail": "short"}
    path.write_text(json.dumps(plain))
    record = load_rollout(path)
    assert (record.user_faults, record.failure) == (None, {"kind": "other", "detail": "short"})


def test_gold_json_tells_what_is_expected(bundle: Bundle) -> None:
    folder = run(bundle).folder / "flight.booking.001"
    gold = json.loads((folder / "gold.json").read_text())
    assert [(action["name"], len(action["changes"])) for action in gold["actions"]] == [
        ("create_booking", 1),
        ("pay_booking", 1),
    ]
    assert [change["after"]["status"] for change in gold["changes"]] == ["paid"]


def test_gold_without_random_numbers_is_replayed_once_for_all_rollouts(bundle: Bundle) -> None:
    bundle.rows({"actions": [], "n_rollouts": 3, "end_goal_sql": "SELECT count(*) = 0 FROM bookings"})
    folder = run(bundle).folder / "flight.booking.001"
    assert (folder / "gold.dbd").is_file()
    assert not list(folder.glob("roll_*.gold.dbd"))


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"format": "reward-kit.rollout/1"}', "\udcff"])
def test_a_file_that_is_no_record_is_told_so(tmp_path: Path, content: str) -> None:
    path = tmp_path / "roll_x.json"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(StorageError, match=r"roll_x\.json"):
        load_rollout(path)
    with pytest.raises(UsageError, match=r"not from 5\. Give the path of its roll_ID\.json"):
        load_rollout(5)  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="no such rollout"):
        load_rollout(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("where", "number"),
    [
        (("reward",), 10**400),
        (("started",), math.inf),
        (("seconds",), -1),
        (("tool_calls", 0, "seconds"), math.nan),
        (("tool_calls", 0, "started"), 1e300),
    ],
)
def test_a_record_with_numbers_that_none_has_is_told_so(bundle: Bundle, where: Any, number: float) -> None:
    path = record_path(run(bundle))
    plain = json.loads(path.read_text())
    functools.reduce(operator.getitem, where[:-1], plain)[where[-1]] = number
    path.write_text(json.dumps(plain))
    with pytest.raises(StorageError, match=f"incomplete record of a rollout: TypeError.*{where[-1]}"):
        load_rollout(path)


def test_a_missing_database_is_told_so(bundle: Bundle) -> None:
    path = record_path(run(bundle))
    path.with_suffix(".db").unlink()
    with load_rollout(path) as record, pytest.raises(StorageError, match="missing"):
        record.reward_arguments()


@pytest.mark.parametrize("encode", [json_bytes, compact_json])
@pytest.mark.parametrize(
    "value",
    [
        {"content": "half \ud83d of a pair"},
        {"deep": functools.reduce(lambda inner, _: [inner], range(400), 1)},
        {"number": 2**70, "small": 1e-300, "big": 1e300, "text": "\u2028\0é😀", "none": None, "yes": True},
        {"infinite": math.inf},
        {"row": [1, {"a": []}], "empty": {}},
    ],
)
def test_whatever_json_can_hold_comes_back(encode: Callable[[Any], bytes], value: dict[str, Any]) -> None:
    assert json.loads(encode(value)) == value


@pytest.mark.parametrize("encode", [json_bytes, compact_json])
def test_what_json_does_not_know_becomes_its_text(encode: Callable[[Any], bytes]) -> None:
    assert json.loads(encode({"path": Path("a/b"), "of_row": {3: "c"}})) == {
        "path": "a/b",
        "of_row": {"3": "c"},
    }


def test_a_record_is_encoded_as_its_plain_values_are(bundle: Bundle) -> None:
    with load_rollout(record_path(run(bundle))) as record:
        assert record.tool_calls
        assert record.model_calls == []
        record.model_calls.append(ModelCall("agent", 1, 1, "m", "stop", Usage(calls=1, cost=0.5), 0.0, 1.0))
        assert json.loads(record.encoded()) == record.to_json()
        record.tool_calls[0].content = "half \ud83d of a pair"  # only Python's own encoder takes it
        assert json.loads(record.encoded()) == record.to_json()


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"before")
    with pytest.raises(StorageError):
        write_file(tmp_path / "missing" / "file", b"x")
    with pytest.raises(TypeError):
        write_file(path, "no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_processes_with_one_number_write_under_different_names(tmp_path: Path) -> None:
    """As two containers do that share a folder."""
    code = (
        "import os; os.getpid = lambda: 1\n"
        "from reward_kit.agent.runs.atomic_file import temporary_beside\n"
        f"from pathlib import Path; print(temporary_beside(Path({str(tmp_path)!r}, 'x')))"
    )
    names = {subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(2)}
    assert len(names) == 2


def test_a_draft_whose_name_is_taken_leaves_the_other_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / ".x.tmp"
    other.write_bytes(b"theirs")
    monkeypatch.setattr("reward_kit.agent.runs.atomic_file.temporary_name", lambda _: other.name)
    with pytest.raises(StorageError):
        write_file(tmp_path / "x", b"ours")
    assert other.read_bytes() == b"theirs"


def test_a_link_is_replaced_and_leaves_nothing_beside(tmp_path: Path) -> None:
    first, second, link = tmp_path / "first", tmp_path / "second", tmp_path / "link"
    first.write_text("1")
    second.write_text("2")
    for source in (first, first, second):
        link_or_copy(source, link)
        assert link.samefile(source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "link", "second"]


SEED_ONE = """
import sys
from pathlib import Path
from reward_kit.agent.bundles.seed import Seed
from reward_kit.agent.storage import RunsFolder
seed = Seed("k" * 64, "CREATE TABLE t(x); INSERT INTO t VALUES (random());")
print(RunsFolder(sys.argv[1]).ensure_base(seed))
"""


def test_processes_that_seed_at_once_end_up_with_one_base(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SEED_ONE, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    paths = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * 4
    assert paths == {str(tmp_path / ".bases" / f"{'k' * 64}.db")}
    assert len(list((tmp_path / ".bases").glob("*.db"))) == 1
