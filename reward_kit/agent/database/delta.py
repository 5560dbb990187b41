"""Forks to keep: a delta is the bytes that differ from the base, an export a complete SQLite file.

A delta is little endian: a header (see ``_HEADER``), then zlib of the page numbers (from 0, 4 bytes each) and
of the pages, each XORed with the base's page.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from reward_kit.agent.base.files import publish, share_or_copy
from reward_kit.agent.database.base_image import BaseImage
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.page_file import PageFile
from reward_kit.errors import DatabaseError

MAGIC = b"RwkDelta"
VERSION = 2
_HEADER = struct.Struct("<8sHIQQQ16sIII")

StrPath = str | os.PathLike[str]


class _Header(NamedTuple):
    """``size`` and ``limit`` as in ``PageFile``; ``checksum`` is the CRC-32 of all but the header."""

    magic: bytes
    version: int
    page_size: int
    base_size: int
    size: int
    limit: int
    fingerprint: bytes
    page_count: int
    body_length: int
    checksum: int


def delta_of(overlay: Overlay) -> bytes:
    """The committed state of ``overlay``.

    ``DatabaseError`` inside a transaction or when the base was changed on disk.
    """
    overlay.settle()
    overlay.base.check_on_disk()
    file, base = overlay.file, overlay.base
    offsets = sorted(file.pages)
    numbers = struct.pack(f"<{len(offsets)}I", *(offset // base.page_size for offset in offsets))
    pages = b"".join(file.pages[offset] for offset in offsets)
    body = zlib.compress(numbers + _xor(pages, _base_pages(base, offsets)), 1)
    header = _Header(
        magic=MAGIC,
        version=VERSION,
        page_size=base.page_size,
        base_size=base.size,
        size=file.size,
        limit=file.limit,
        fingerprint=base.fingerprint,
        page_count=len(offsets),
        body_length=len(body),
        checksum=zlib.crc32(body),
    )
    return _HEADER.pack(*header) + body


def delta_of_file(path: StrPath, base: BaseImage) -> bytes:
    """The delta that leads from ``base`` to the complete file at ``path``."""
    after = BaseImage.open(path)
    if after.page_size != base.page_size:
        raise DatabaseError("the page size was changed, so that there is no delta", place=str(path))
    overlay = Overlay(base)
    for offset in range(0, after.size, after.page_size):
        overlay.file.xWrite(after.read(offset, after.page_size), offset)
    overlay.file.xTruncate(after.size)
    return delta_of(overlay)


def unpack_delta(content: bytes, base: BaseImage, place: StrPath = "delta") -> Overlay:
    """The fork of ``base`` that ``delta_of`` packed; ``place`` names it in errors.

    ``DatabaseError`` if the content is no delta, damaged, or belongs to another base.
    """
    if content[: len(MAGIC)] != MAGIC:
        raise DatabaseError("not a delta", place=str(place))
    if len(content) < _HEADER.size:
        raise DatabaseError("the delta is truncated", place=str(place))
    header = _Header(*_HEADER.unpack_from(content))
    if header.version != VERSION:
        raise DatabaseError(
            f"the delta has format version {header.version}, this release reads version {VERSION}",
            place=str(place),
        )
    body = content[_HEADER.size :]
    if len(body) != header.body_length or zlib.crc32(body) != header.checksum:
        raise DatabaseError("the delta is truncated or damaged", place=str(place))
    if base.fingerprint != header.fingerprint:
        raise DatabaseError(f"the delta belongs to another base than {base.path}", place=str(place))
    file = PageFile(base)
    file.size = header.size
    file.limit = header.limit
    file.pages = _unpack(place, header, body, base)
    return Overlay(base, file)


def export(overlay: Overlay, path: StrPath) -> Path:
    """Write the committed state of ``overlay`` as a complete SQLite file to ``path``; returns it.

    Shares the base's blocks where the file system can, else copies them.  ``DatabaseError`` as for
    ``delta_of``, ``StorageError`` when the file cannot be written.
    """
    overlay.settle()
    file, base = overlay.file, overlay.base
    with publish(path) as target:
        if base.content is None:
            with base.path.open("rb") as source:
                share_or_copy(source, target)
        else:
            target.write(base.content)
        target.truncate(min(file.limit, base.size))
        for offset in sorted(file.pages):
            target.seek(offset)
            target.write(file.pages[offset])
        target.truncate(file.size)
        base.check_intact()
    return Path(path)


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


def _base_pages(base: BaseImage, offsets: list[int]) -> bytes:
    """The base's pages at ``offsets``, zeros where the base has none."""
    size = base.page_size
    return b"".join(base.read(offset, size) if offset < base.size else bytes(size) for offset in offsets)


def _xor(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left, "little") ^ int.from_bytes(right, "little")).to_bytes(len(left), "little")
