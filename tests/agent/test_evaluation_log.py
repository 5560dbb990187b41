"""The log of an evaluation and its lock: what survives a crash, and who may write."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from reward_kit.agent.completion import Usage
from reward_kit.agent.outcome import RolloutOutcome
from reward_kit.agent.runs.evaluation_lock import EvaluationLock
from reward_kit.agent.runs.evaluation_log import FORMAT, EvaluationLog, read_log
from reward_kit.agent.runs.stored_evaluation import load_evaluation
from reward_kit.errors import StorageError

HEADER = {"kind": "evaluation", "format": FORMAT, "configuration": {}, "rows": {}, "code": {}}


def outcome(index: int = 0, **more: object) -> RolloutOutcome:
    plain: dict[str, object] = {
        "id": f"id{index}",
        "row_id": "row",
        "index": index,
        "attempt": 0,
        "final": True,
        "seed": 1,
        "reward": 1.0,
        "stop_reason": "agent_done",
        "stop_detail": None,
        "error": None,
        "failure": None,
        "failure_detail": None,
        "steps": 3,
        "turns": 1,
        "turn_of_success": 1,
        "started": 0.0,
        "seconds": 0.5,
        "model_seconds": 0.25,
        "file": f"row/roll_id{index}.json",
        "usage": {"agent": {"calls": 2, "cost": 0.5}},
        **more,
    }
    return RolloutOutcome.from_json(plain)


def line(index: int) -> dict[str, object]:
    return {"kind": "rollout", **outcome(index).to_json()}


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    log = EvaluationLog(path)
    log.append(HEADER)
    log.append(line(0))
    log.close()
    logged = read_log(path)
    assert logged.headers == [HEADER]
    assert logged.outcomes == [outcome(0)]
    assert logged.outcomes[0].usage == {"agent": Usage(calls=2, cost=0.5)}
    assert logged.whole == path.stat().st_size


def test_a_line_that_stands_there_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    log = EvaluationLog(path)
    for one in (HEADER, line(0), line(1), line(0), line(0)):
        log.append(one)
    log.close()
    logged = read_log(path)
    assert logged.outcomes == [outcome(0), outcome(1)]
    assert logged.whole == path.stat().st_size


@pytest.mark.parametrize(
    "torn", [b'{"kind": "roll', b"\x00\x00\x00", b'{"kind": "rollout"}', b"}\n", "ä".encode()[:1]]
)
def test_a_torn_last_line_is_dropped_and_cut_off_before_the_next(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "e.jsonl"
    whole = json.dumps(HEADER).encode() + b"\n" + json.dumps(line(0)).encode() + b"\n"
    path.write_bytes(whole + torn)
    logged = read_log(path)
    assert [one.index for one in logged.outcomes] == [0]
    assert logged.whole == len(whole)
    log = EvaluationLog(path, keep=logged.whole)
    log.append(line(1))
    log.close()
    assert [one.index for one in read_log(path).outcomes] == [0, 1]


def test_a_log_cut_anywhere_gives_the_lines_before_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    log = EvaluationLog(path)
    log.append(HEADER)
    ends = [path.stat().st_size]
    for index in range(3):
        log.append(line(index))
        ends.append(path.stat().st_size)
    log.close()
    data = path.read_bytes()
    for cut in range(ends[0], len(data) + 1, 7):
        path.write_bytes(data[:cut])
        logged = read_log(path)
        assert len(logged.outcomes) == sum(end <= cut for end in ends[1:])
        assert logged.whole == max(end for end in ends if end <= cut)


def test_damage_in_the_middle_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps(HEADER) + "\n???\n" + json.dumps(line(0)) + "\n")
    with pytest.raises(StorageError, match=r"e\.jsonl:2: .*damaged\. Restore it or remove this line"):
        read_log(path)


def test_a_log_of_another_format_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps({**HEADER, "format": "reward-kit.log/9"}) + "\n" + json.dumps(line(0)) + "\n")
    with pytest.raises(StorageError, match=r"reward-kit\.log/9"):
        read_log(path)


def test_many_threads_append_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    log = EvaluationLog(path)
    log.append(HEADER)

    def write(first: int) -> None:
        for index in range(first, first + 25):
            log.append(line(index))

    threads = [threading.Thread(target=write, args=(first,)) for first in range(0, 200, 25)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert sorted(one.index for one in read_log(path).outcomes) == list(range(200))


def test_a_log_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        EvaluationLog(tmp_path / "missing" / "e.jsonl")


HOLD = """
import sys, time
from pathlib import Path
from reward_kit.agent.runs.evaluation_lock import EvaluationLock
lock = EvaluationLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_log_of_another_version_is_told_as_that(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(
        json.dumps({**HEADER, "format": "reward-kit.log/99"}) + "\n"
    )  # also where it is the last line
    with pytest.raises(StorageError, match=r"e\.jsonl:1: was written by another version.*reward-kit\.log/99"):
        read_log(path)


@pytest.mark.parametrize(
    ("number", "changed"),
    [
        (0, {"rows": []}),
        (0, {"rows": {"row": {}}}),
        (0, {"configuration": {"model_args": "x"}}),
        (1, {"row_id": ["row"]}),
        (1, {"file": 5}),
        (1, {"seconds": []}),
        (1, {"reward": "1"}),
        (1, {"usage": 1.0}),
        (1, {"user_faults": 5}),
        (1, {"user_faults": [[]]}),
        (0, {"configuration": {"task_dir": [1]}}),
        (0, {"created": 1e15}),
        (1, {"index": -1}),
        (1, {"turn_of_success": 2**63}),
        (1, {"steps": 2**63}),
        (1, {"reward": math.nan}),
        (1, {"started": math.inf}),
        (1, {"usage": {"agent": {"input_tokens": 10**400}}}),
        (1, {"metrics": {"told": 10**400}}),
        (1, {"tool_faults": {"book": 1}}),
        (1, {"tool_faults": {"book": {"calls": "1", "first": ""}}}),
    ],
)
def test_a_line_whose_fields_are_of_other_kinds_is_told_with_its_line(
    tmp_path: Path, number: int, changed: dict[str, object]
) -> None:
    path = tmp_path / "e.jsonl"
    lines = [HEADER, line(0), line(1)]
    lines[number] = {**lines[number], **changed}
    path.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    with pytest.raises(StorageError, match=rf"e\.jsonl:{number + 1}: is no line of an evaluation's log"):
        read_log(path)


def hold(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_told_who_has_the_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "mine.lock"
    process = hold(path)
    try:
        with pytest.raises(StorageError, match=rf"mine: another process \({process.pid} on .*\) is running"):
            EvaluationLock(path)
    finally:
        process.kill()
        process.wait()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "mine.lock"
    process = hold(path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert path.exists()
    EvaluationLock(path).release()


def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(StorageError, match=r"has no locks: .*Choose another --output-dir"):
        EvaluationLock(tmp_path / "mine.lock")


def test_only_a_lock_that_is_held_shows_that_another_machine_writes(tmp_path: Path) -> None:
    evals = tmp_path / "runs" / "evals"
    evals.mkdir(parents=True)
    header = {**HEADER, "rows": {"row": {"n_rollouts": 2, "row": "", "seed": "", "tools": ""}}}
    header |= {"created": 0.0, "versions": {}}
    path = evals / "mine.jsonl"
    path.write_text(f"{json.dumps(header)}\n{json.dumps(line(0))}\n")
    lock = path.with_suffix(".lock")
    elsewhere = json.dumps({"pid": os.getpid(), "host": "elsewhere"})
    lock.write_text(elsewhere)
    assert load_evaluation(path).status == "interrupted"
    process = hold(lock)
    try:
        lock.write_text(elsewhere)
        stored = load_evaluation(path)
        assert (stored.status, stored.reason) == ("running", f"by process {os.getpid()} on elsewhere")
    finally:
        process.kill()
        process.wait()


def test_a_released_lock_leaves_no_file_and_may_be_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.lock"
    lock = EvaluationLock(path)
    with pytest.raises(StorageError, match=str(os.getpid())):
        EvaluationLock(path)
    lock.release()
    lock.release()
    assert not path.exists()
    EvaluationLock(path).release()


def test_a_lock_that_is_a_link_leaves_the_file_behind_it_alone(tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("mine")
    path = tmp_path / "mine.lock"
    path.symlink_to(other)
    with pytest.raises(StorageError, match=r"mine\.lock: is a link, .*Remove it"):
        EvaluationLock(path)
    assert other.read_text() == "mine"
    assert path.is_symlink()


def test_a_lock_whose_file_was_removed_is_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.lock"
    lock = EvaluationLock(path)
    log = EvaluationLog(tmp_path / "mine.jsonl", lock=lock)
    path.unlink()
    log.append(HEADER)
    with pytest.raises(StorageError, match=str(os.getpid())):
        EvaluationLock(path)
    lock.release()
    assert not path.exists()


def test_a_lock_that_another_process_has_by_now_ends_the_writing(tmp_path: Path) -> None:
    path = tmp_path / "mine.lock"
    lock = EvaluationLock(path)
    log = EvaluationLog(tmp_path / "mine.jsonl", lock=lock)
    path.unlink()
    process = hold(path)
    try:
        with pytest.raises(StorageError, match=rf"another process \({process.pid} on .*\) is running"):
            log.append(HEADER)
        lock.release()
        assert path.exists(), "it is the other's"
    finally:
        process.kill()
        process.wait()


def test_a_lock_closes_no_file_of_others_where_a_tool_has_closed_its_own(tmp_path: Path) -> None:
    lock = EvaluationLock(tmp_path / "mine.lock")
    held = next(
        int(entry.name)
        for entry in Path("/proc/self/fd").iterdir()
        if entry.resolve() == tmp_path.resolve() / "mine.lock"
    )
    other = os.open(tmp_path, os.O_RDONLY)
    os.dup2(other, held)
    os.close(other)
    lock.release()
    os.close(held)  # still open


def test_a_log_that_was_cut_short_ends_the_writing(tmp_path: Path) -> None:
    log = EvaluationLog(tmp_path / "mine.jsonl")
    log.append(HEADER)
    log.append(line(0))
    os.truncate(log.path, 10)
    with pytest.raises(StorageError, match=r"mine\.jsonl: was cut short while the evaluation runs"):
        log.append(line(1))


def test_lines_that_find_no_room_are_told_and_those_before_them_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EvaluationLog(tmp_path / "e.jsonl")
    log.append(HEADER)
    two = 2 * (len(json.dumps(line(0), ensure_ascii=False)) + 1)
    real, room = os.write, [two + 100]

    def write(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(descriptor, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)
    faults = log.append_each([line(index) for index in range(4)])
    monkeypatch.undo()
    assert faults[:2] == [None, None]
    assert all("the disk is full" in str(fault) for fault in faults[2:])
    log.append(line(7))
    log.close()
    assert [one.index for one in read_log(log.path).outcomes] == [0, 1, 7]
