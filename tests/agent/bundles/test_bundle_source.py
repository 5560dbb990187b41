"""What can be named as a dataset, and packed bundles that mean harm."""

import io
import stat
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from reward_kit.agent.bundles.source import BundleSource, find_bundle, unpack
from reward_kit.errors import BundleError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "my_task"
    made.mkdir()
    (made / "task.jsonl").write_text("{}\n")
    (made / "tools.py").write_text("")
    return made


def put(target: Path, files: dict[str, bytes]) -> Path:
    """An archive of these files."""
    if target.suffix == ".zip":
        with zipfile.ZipFile(target, "w") as archive:
            for name, data in files.items():
                member = zipfile.ZipInfo("x")
                member.filename = name  # as it is, also where ZipInfo would have mended it
                archive.writestr(member, data)
    else:
        with tarfile.open(target, "w:gz" if target.name.endswith("gz") else "w") as archive:
            for name, data in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return target


def test_a_folder_stands_for_its_task_jsonl(folder: Path) -> None:
    assert find_bundle(str(folder)) == BundleSource(folder / "task.jsonl", folder)


def test_a_folder_without_task_jsonl_names_its_other_datasets(folder: Path) -> None:
    (folder / "task.jsonl").rename(folder / "dev.jsonl")
    with pytest.raises(BundleError, match=r"has no task\.jsonl\. Name one of its datasets: dev\.jsonl"):
        find_bundle(folder)


def test_an_installed_bundle_is_found_by_import_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "dev.jsonl").write_text("{}\n")
    (folder / "__init__.py").write_text("raise RuntimeError('finding a bundle must not run it')\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.chdir("/")
    assert find_bundle("my_task") == BundleSource(folder / "task.jsonl", folder)
    assert find_bundle("my_task/dev.jsonl") == BundleSource(folder / "dev.jsonl", folder)
    assert "my_task" not in sys.modules


@pytest.mark.parametrize("name", ["nowhere.jsonl", "no_such_bundle", "json", "", "a b", "sys"])
def test_what_is_not_there_is_told_with_the_working_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BundleError) as caught:
        find_bundle(name)
    assert str(tmp_path) in str(caught.value) or name == "json"


def test_rows_from_elsewhere_use_the_task_dir_as_their_bundle(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "subset.jsonl").write_text("{}\n")
    assert find_bundle(tmp_path / "subset.jsonl", folder) == BundleSource(tmp_path / "subset.jsonl", folder)
    assert find_bundle(None, folder) == BundleSource(folder / "task.jsonl", folder)
    assert find_bundle("task.jsonl", folder) == BundleSource(folder / "task.jsonl", folder)
    with pytest.raises(BundleError, match="there is no such folder"):
        find_bundle(None, tmp_path / "missing")


@pytest.mark.parametrize("name", ["my_task.zip", "my_task.tar.gz", "my_task.tgz", "my_task.tar"])
@pytest.mark.parametrize("prefix", ["", "my_task/"])
def test_a_packed_bundle_is_unpacked_under_its_name_and_removed_again(
    folder: Path, tmp_path: Path, name: str, prefix: str
) -> None:
    found = find_bundle(put(tmp_path / name, {prefix + p.name: p.read_bytes() for p in folder.iterdir()}))
    assert found.folder.name == "my_task"
    assert found.dataset.read_text() == "{}\n"
    assert (found.folder / "tools.py").is_file()
    found.discard()
    assert not found.folder.exists()
    found.discard()


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "a/../../evil.py", "..\\evil.py", "C:evil.py"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_nothing_is_written_outside_of_the_folder(tmp_path: Path, name: str, kind: str) -> None:
    target = tmp_path / f"x.{kind}"
    put(target, {name: b"evil"})
    with pytest.raises(BundleError, match="outside of its folder"):
        unpack(target)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        info = tarfile.TarInfo("link")
        info.type = kind
        info.linkname = "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(BundleError, match="something other than files"):
        unpack(tmp_path / "x.tar")


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(BundleError, match="something other than files"):
        unpack(tmp_path / "x.zip")


def test_the_unpacked_size_and_number_of_files_are_bounded(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"\0" * 1_000_000)
        archive.writestr("b", b"")
    with pytest.raises(BundleError, match="larger than 999999 bytes"):
        unpack(tmp_path / "x.zip", max_bytes=999_999)
    with pytest.raises(BundleError, match="more than 1 files"):
        unpack(tmp_path / "x.zip", max_files=1)


def test_a_broken_sparse_archive_is_refused_in_one_line(tmp_path: Path) -> None:
    info = tarfile.TarInfo("tools.py")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "tools.py"}
    info.size = 512
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(b"no number\n" + bytes(502)))
    with pytest.raises(BundleError, match=r"x\.tar: cannot be unpacked: invalid literal for int"):
        unpack(tmp_path / "x.tar")


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz"])
def test_a_damaged_archive_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(BundleError, match="cannot be unpacked: it is not an archive") as caught:
        unpack(tmp_path / name)
    assert "\n" not in str(caught.value)
