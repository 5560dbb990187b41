"""The rows of a query, as far as they fit into memory."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from reward_kit.errors import TooManyRowsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.database.guards import Limits

_Values = tuple[Any, ...]

_FIRST_ROWS = 8
_CHUNK_ROWS = 1024
_CHUNK_BYTES = 16 << 20


def fetch_rows(rows: Iterator[_Values], limits: Limits) -> list[_Values]:
    """All of ``rows``; ``TooManyRowsError`` if there are more than ``limits`` allow, or more bytes in them.

    The bytes are estimated from one row in a thousand, or in fewer where rows are large.
    """
    fetched = list(islice(rows, _FIRST_ROWS))
    amount, wanted = len(fetched), _FIRST_ROWS
    size = 0
    while len(fetched) <= limits.max_rows:
        if amount < wanted:
            return fetched
        width = sum([len(value) for value in fetched[-1] if isinstance(value, (str, bytes))])
        size += width * amount
        if size > limits.max_result_bytes:
            raise TooManyRowsError(
                f"the query returns more than {limits.max_result_bytes >> 20} MiB", remedy="Ask for less."
            )
        wanted = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // (width or 1)))
        chunk = list(islice(rows, wanted))
        fetched += chunk
        amount = len(chunk)
    raise TooManyRowsError(
        f"the query returns more than {limits.max_rows} rows",
        remedy="Add a LIMIT, or let SQL count or sum them up.",
    )
