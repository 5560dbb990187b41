"""Reading what a process says, as it comes: whole lines of JSON, and only its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.agent.executors.process_pipes import LONGEST_READ

if TYPE_CHECKING:
    import asyncio


class WholeLines:
    """All whole lines that have come since the last look; what a process did not end is dropped.

    So are lines that are none of its own. ``damaged`` says that one which may have been cannot be read.
    """

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._rest = b""
        self.damaged = False

    def __aiter__(self) -> WholeLines:
        return self

    async def __anext__(self) -> list[dict[str, Any]]:
        while chunk := await self._stream.read(LONGEST_READ):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            read = [plain for line in lines if (plain := self._read(line)) is not None]
            if read or self.damaged:
                return read
        raise StopAsyncIteration

    def _read(self, line: bytes) -> dict[str, Any] | None:
        if not line.startswith(b"{"):
            return None
        try:
            plain: dict[str, Any] = json.loads(line)
        except ValueError:
            self.damaged = True
            return None
        return plain
