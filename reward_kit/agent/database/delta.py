"""Forks on disk: a delta holds what differs from the base, an export is a complete SQLite file.

Delta (suffix ``.dbd``), little endian: a header (see ``_HEADER``), the base's file name, then zlib of the
page numbers (from 0, 4 bytes each) and of the pages, each XORed with the base's page.  Both kinds of file
appear whole or not at all.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from reward_kit.agent.database.base_image import BaseImage
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.page_file import PageFile
from reward_kit.agent.database.publish import publish, share_or_copy
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from io import BufferedRandom

MAGIC = b"RwkDelta"
VERSION = 1
_HEADER = struct.Struct("<8sHHIQQQ16sIII")

StrPath = str | os.PathLike[str]


class _Header(NamedTuple):
    """``size`` and ``limit`` as in ``PageFile``; ``checksum`` is the CRC-32 of all but the header."""

    magic: bytes
    version: int
    name_length: int
    page_size: int
    base_size: int
    size: int
    limit: int
    fingerprint: bytes
    page_count: int
    body_length: int
    checksum: int


def save_delta(overlay: Overlay, path: StrPath) -> Path:
    """Write the committed state of ``overlay`` to ``path``; returns it.

    ``DatabaseError`` inside a transaction or when the base was changed on disk, ``StorageError`` when the
    file cannot be written.
    """
    content = delta_of(overlay)
    with publish(path) as temporary:
        temporary.write(content)
    return Path(path)


def delta_of(overlay: Overlay) -> bytes:
    """What ``save_delta`` writes.  Errors as there."""
    overlay.settle()
    overlay.base.check_on_disk()
    file, base = overlay.file, overlay.base
    offsets = sorted(file.pages)
    numbers = struct.pack(f"<{len(offsets)}I", *(offset // base.page_size for offset in offsets))
    pages = b"".join(file.pages[offset] for offset in offsets)
    body = zlib.compress(numbers + _xor(pages, _base_pages(base, offsets)), 1)
    name = os.fsencode(base.path.name)
    header = _Header(
        magic=MAGIC,
        version=VERSION,
        name_length=len(name),
        page_size=base.page_size,
        base_size=base.size,
        size=file.size,
        limit=file.limit,
        fingerprint=base.fingerprint,
        page_count=len(offsets),
        body_length=len(body),
        checksum=zlib.crc32(name + body),
    )
    return _HEADER.pack(*header) + name + body


def load_delta(path: StrPath, base: BaseImage | None = None) -> Overlay:
    """The fork that ``save_delta`` wrote.

    Without ``base`` it is looked for beside the delta under the name it had, then among ``../.bases/*.db``.
    ``DatabaseError`` if the file is no delta, damaged, or its base cannot be found.
    """
    header, name, body = _read(Path(path))
    if base is None:
        base = _find_base(Path(path), header, name)
    elif base.fingerprint != header.fingerprint:
        raise DatabaseError(f"the delta belongs to another base than {base.path}", place=str(path))
    file = PageFile(base)
    file.size = header.size
    file.limit = header.limit
    file.pages = _unpack(path, header, body, base)
    return Overlay(base, file)


def is_delta(path: StrPath) -> bool:
    """Whether ``path`` starts as a delta does; ``DatabaseError`` if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise DatabaseError(f"cannot open the database: {error.strerror}", place=str(path)) from error


def export(overlay: Overlay, path: StrPath) -> Path:
    """Write the committed state of ``overlay`` as a complete SQLite file to ``path``; returns it.

    Shares the base's blocks where the file system can, else copies them.  Errors as for ``save_delta``.
    """
    parts = parts_of(overlay)
    with publish(path) as temporary:
        if parts is None:
            _write_over_base(overlay, temporary)
        else:
            temporary.writelines(parts)
    return Path(path)


def parts_of(overlay: Overlay) -> list[bytes | memoryview] | None:
    """The complete SQLite file that ``export`` writes, part by part; None if the base is not held in memory.

    ``DatabaseError`` inside a transaction.
    """
    overlay.settle()
    file, base = overlay.file, overlay.base.content
    if base is None:
        return None
    visible = memoryview(base)[: min(file.limit, file.size)]
    parts: list[bytes | memoryview] = []
    end = 0
    for offset in sorted(file.pages):
        parts += _between(visible, end, offset)
        page = file.pages[offset]
        parts.append(page[: file.size - offset])  # a file may end within one of the base's pages
        end = offset + len(page)
    return parts + _between(visible, end, file.size)


def _between(visible: memoryview, start: int, end: int) -> list[bytes | memoryview]:
    """The bytes of the base from ``start`` to ``end``, zeros where it is no longer visible."""
    shown = visible[start:end]
    zeros = max(end - start, 0) - len(shown)
    return [part for part in (shown, bytes(zeros)) if part]


def _write_over_base(overlay: Overlay, target: BufferedRandom) -> None:
    """Copy a base that is not held in memory, then write the pages that differ."""
    file, base = overlay.file, overlay.base
    with base.path.open("rb") as source:
        share_or_copy(source, target)
    if file.limit < base.size:
        target.truncate(file.limit)
    for offset in sorted(file.pages):
        target.seek(offset)
        target.write(file.pages[offset])
    target.truncate(file.size)
    base.check_intact()


def _read(path: Path) -> tuple[_Header, str, bytes]:
    """Header, name of the base and compressed body of a delta, checked."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatabaseError(f"cannot open the delta: {error.strerror}", place=str(path)) from error
    if content[: len(MAGIC)] != MAGIC:
        raise DatabaseError("not a delta", place=str(path))
    if len(content) < _HEADER.size:
        raise DatabaseError("the delta is truncated", place=str(path))
    header = _Header(*_HEADER.unpack_from(content))
    if header.version != VERSION:
        raise DatabaseError(
            f"the delta has format version {header.version}, this release reads version {VERSION}",
            place=str(path),
        )
    rest = content[_HEADER.size :]
    if len(rest) != header.name_length + header.body_length or zlib.crc32(rest) != header.checksum:
        raise DatabaseError("the delta is truncated or damaged", place=str(path))
    return header, os.fsdecode(rest[: header.name_length]), rest[header.name_length :]


def _unpack(path: StrPath, header: _Header, body: bytes, base: BaseImage) -> dict[int, bytes]:
    """Pages by offset.  The checksum held, so what does not fit here was never written by ``save_delta``."""
    page_size, count = header.page_size, header.page_count
    expected = count * (4 + page_size)
    decompressor = zlib.decompressobj()
    try:
        raw = decompressor.decompress(body, expected + 1)
    except zlib.error as error:
        raise DatabaseError(f"the delta is damaged: {error}", place=str(path)) from error
    if len(raw) != expected or page_size != base.page_size or header.limit > min(base.size, header.size):
        raise DatabaseError("the delta is damaged: its parts do not fit together", place=str(path))
    offsets = [number * page_size for number in struct.unpack_from(f"<{count}I", raw)]
    pages = _xor(raw[4 * count :], _base_pages(base, offsets))
    return {
        offset: pages[index * page_size : (index + 1) * page_size] for index, offset in enumerate(offsets)
    }


def _find_base(path: Path, header: _Header, name: str) -> BaseImage:
    beside = path.parent / Path(name).name
    others = sorted((path.parent.parent / ".bases").glob("*.db"))
    # a base that is hard-linked into several folders goes by the name under which it was opened first
    for candidate in [beside, path.parent / "base.db", *others]:
        if candidate.is_file() and candidate.stat().st_size == header.base_size:
            base = BaseImage.open(candidate)
            if base.fingerprint == header.fingerprint:
                return base
    present = next((file for file in (beside, path.parent / "base.db") if file.exists()), None)
    if present is not None:
        raise DatabaseError(f"the delta belongs to another state of {present}", place=str(path))
    names = " or ".join(dict.fromkeys([beside.name, "base.db"]))
    raise DatabaseError(
        f"the base of this delta, {names}, is not beside it",
        place=str(path),
        remedy="Put the two into one folder to open the delta.",
    )


def _base_pages(base: BaseImage, offsets: list[int]) -> bytes:
    """The base's pages at ``offsets``, zeros where the base has none."""
    size = base.page_size
    return b"".join(base.read(offset, size) if offset < base.size else bytes(size) for offset in offsets)


def _xor(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left, "little") ^ int.from_bytes(right, "little")).to_bytes(len(left), "little")
