"""The files that a rollout leaves behind, and bringing those of several rollouts to the disk together."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reward_kit.agent.runs.atomic_file import Draft, as_storage_error, link_or_copy, sync_folder
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from reward_kit.agent.runs.atomic_file import Part


@dataclass(slots=True, frozen=True)
class NewFile:
    """A file that is to appear at ``path``; one that is ``durable`` is on the disk before it is told of."""

    path: Path
    parts: Sequence[Part]
    durable: bool = True


@dataclass(slots=True, frozen=True)
class RowFolder:
    """The folder of a row, with a link to ``base`` in it."""

    path: Path
    base: Path

    def make(self) -> None:
        """Make what is not there yet; raises ``StorageError``."""
        link = self.path / "base.db"
        with as_storage_error(self.path):
            self.path.mkdir(exist_ok=True)
            try:
                os.link(self.base, link)
            except OSError:  # it is there already, or the file system has no links
                if not (link.exists() and link.samefile(self.base)):
                    link_or_copy(self.base, link)


@dataclass(slots=True, frozen=True)
class Parcel:
    """The files of one rollout; ``folder`` is to be made first, if it is given."""

    files: Sequence[NewFile] = ()
    folder: RowFolder | None = None


def save_parcels(parcels: Sequence[Parcel]) -> list[StorageError | None]:
    """Write all files and wait until they and their names are on the disk.

    Returns for each parcel why it could not be saved, or None; files of one that could not are removed as far
    as nobody has seen them.
    """
    saving = [_Saving(parcel) for parcel in parcels]
    _further(saving, _Saving.write)
    _further(saving, _Saving.publish)
    _sync_names([one for one in saving if one.fault is None])
    return [one.fault for one in saving]


class _Saving:
    """A parcel on its way to the disk; ``fault`` says why it does not get there."""

    def __init__(self, parcel: Parcel) -> None:
        self.parcel = parcel
        self.fault: StorageError | None = None
        self._drafts: list[tuple[Draft, bool]] = []

    def write(self) -> None:
        """Write under temporary names, and have the system begin to bring it to the disk."""
        if self.parcel.folder is not None:
            self.parcel.folder.make()
        for file in self.parcel.files:
            draft = Draft(file.path, file.parts)
            self._drafts.append((draft, file.durable))
            if file.durable:
                draft.start_sync()

    def publish(self) -> None:
        """Let the files appear, each once it is on the disk."""
        for draft, durable in self._drafts:
            if durable:
                draft.sync()
            draft.publish()

    def attempt(self, step: Callable[[_Saving], None]) -> None:
        """Take one of these steps, or fail."""
        try:
            step(self)
        except StorageError as error:
            self.fail(error)

    def fail(self, fault: StorageError) -> None:
        """Give up: what has not appeared by now never will."""
        self.fault = fault
        for draft, _ in self._drafts:
            draft.discard()


def _further(saving: Iterable[_Saving], step: Callable[[_Saving], None]) -> None:
    """Take all that have not failed a step further."""
    for one in saving:
        if one.fault is None:
            one.attempt(step)


def _sync_names(saved: Sequence[_Saving]) -> None:
    """Wait until the names of files, and of folders that were made, are on the disk."""
    folders: dict[Path, list[_Saving]] = {}
    for one in saved:
        if one.parcel.folder is not None:
            folders.setdefault(one.parcel.folder.path.parent, []).append(one)
        for file in one.parcel.files[-1:]:  # all of a rollout's files lie in one folder
            folders.setdefault(file.path.parent, []).append(one)
    for folder, concerned in folders.items():
        fault = _sync_folder(folder)
        if fault is not None:
            for one in concerned:
                one.fail(fault)


def _sync_folder(folder: Path) -> StorageError | None:
    try:
        with as_storage_error(folder):
            sync_folder(folder)
    except StorageError as error:
        return error
    return None
