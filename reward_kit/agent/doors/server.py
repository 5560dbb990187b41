"""A uvicorn server inside an event loop that is somebody else's."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    from collections.abc import Iterator

STOPPING = 2
"""Seconds that open requests have when the server stops."""

KEEP_ALIVE = 600
"""Seconds that an idle connection is kept: closing early would race with a client that reuses it."""


class QuietServer(uvicorn.Server):
    """Serves ``app`` without touching signals or logging, which belong to the evaluation."""

    def __init__(self, app: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=STOPPING,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ctrl-C is the evaluation's."""
        yield

    async def wait_until_started(self, serving: asyncio.Task[None]) -> None:
        """Return when requests are answered; raises what kept ``serving`` from that."""
        while not self.started:
            if serving.done():
                serving.result()
                raise RuntimeError("the server ended before it had started")
            await asyncio.sleep(0.001)
