"""Files: whole or not at all."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import run_command

from reward_kit.agent.base.files import write_output
from reward_kit.errors import StorageError


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_bytes(b"before")

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_output(broken(), path)
    assert path.read_bytes() == b"before"
    write_output([b"af", b"ter"], path)
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_is_written_and_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    write_output([b"a", b"b"], path)
    reader.join(20)
    assert read == [b"ab"]
    assert path.is_fifo()


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere/out\.json: cannot be written: No such file"):
        write_output([b"a"], tmp_path / "nowhere" / "out.json")
    with pytest.raises(StorageError, match="Is a directory"):
        write_output([b"a"], tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "a", "b", "--markdown"),
        ("plan", "a", "--json"),
        ("export", "a", "--format", "card", "--out"),
    ],
)
@pytest.mark.parametrize(
    ("name", "what"),
    [("kept.db", "is the name of a database"), ("kept.json", "has the results of evaluation kept")],
)
def test_no_command_replaces_a_database_or_results_by_its_output(
    tmp_path: Path, words: tuple[str, ...], name: str, what: str
) -> None:
    path = tmp_path / "evals" / name
    path.parent.mkdir()
    path.with_name("kept.db").touch()
    path.write_text("data")
    ran = run_command(*words, path, cwd=tmp_path)
    told = f"{words[-1]} {path} {what}, which it would replace"
    assert (ran.code, ran.out, told in ran.error) == (2, "", True), ran.err
    assert path.read_text() == "data"
