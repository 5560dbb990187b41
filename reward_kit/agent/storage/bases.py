"""The seeded databases of a runs folder, each checked before an evaluation starts from it.

A base is named by the hash of its seed.  An empty file ``<key>.<fingerprint>.seeded`` beside it says which
content was seeded; it is there before the base is, so that whoever sees the base can check it.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from reward_kit.agent.base.files import as_storage_error, temporary_beside
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from pathlib import Path

    from reward_kit.agent.bundles.seed import Seed

logger = logging.getLogger(__name__)


class SeededBases:
    """Seeds what is missing or damaged in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._checked: set[str] = set()

    def path(self, key: str) -> Path:
        """Where the base of a seed is, or will be."""
        return self._folder / f"{key}.db"

    def ensure(self, seed: Seed) -> Path:
        """The base of ``seed``: whole, and what its seed gave.

        The whole file is read and hashed, once per instance (about 1 s for 1 GB).  Raises ``BundleError`` for
        a faulty seed, ``StorageError`` where nothing can be written.
        """
        path = self.path(seed.key)
        if seed.key not in self._checked:
            if not self._is_intact(seed.key):
                self._seed(seed, path)
            self._checked.add(seed.key)
        return path

    def _is_intact(self, key: str) -> bool:
        found = _fingerprint(self.path(key))
        return found is not None and self._marker(key, found).exists()

    def _marker(self, key: str, fingerprint: str) -> Path:
        return self._folder / f"{key}.{fingerprint}.seeded"

    def _seed(self, seed: Seed, path: Path) -> None:
        from reward_kit.agent.database.base import seed_base

        known = any(self._folder.glob(f"{seed.key}.*.seeded"))
        temporary = temporary_beside(path)
        try:
            with as_storage_error(path):
                seed_base(temporary, seed.sql, script=seed.script, origin=seed.origin, now=seed.now)
                fingerprint = _fingerprint(temporary)
                if fingerprint is None:
                    raise OSError("what was written cannot be read back")
                marker = self._marker(seed.key, fingerprint)
                same = marker.exists()
                marker.touch()
                try:
                    # unlike a rename this never replaces a base that others have open
                    os.link(temporary, path)
                except OSError:
                    if not self._is_intact(seed.key):  # else another process was first
                        self._replace(temporary, path, known=known, same=same)
        finally:
            temporary.unlink(missing_ok=True)

    def _replace(self, temporary: Path, path: Path, *, known: bool, same: bool) -> None:
        """Put ``temporary`` where a file is that is damaged, or (if not ``known``) of an older release."""
        if path.exists() and known:
            lost = (
                "" if same else "; deltas of earlier rollouts cannot be opened, for the seed gave other rows"
            )
            logger.warning("%s: the base was damaged and is seeded again%s", path, lost)
        former = _fingerprint(path)
        if former is not None and not known:
            # it may be whole, and deltas may belong to it: these look into every .db here
            path.replace(path.with_name(f"{path.stem}.{former}.db"))
        temporary.replace(path)


def _fingerprint(path: Path) -> str | None:
    """The hash of what is in the file now; None if it is no whole database."""
    from reward_kit.agent.database.base_image import BaseImage

    try:
        return BaseImage.open(path).measure().hex()
    except DatabaseError:
        return None
