"""Queries over trajectories as they are stored: their tool calls, changed rows and spoken lines.

They are the views of an evaluation's file, and fill the tables that rules of procedure query::

    SELECT name, count(*) FROM calls WHERE status != 'ok' GROUP BY name

A call stands where its answer does, among the messages, from 0; the user's at the line that follows it, all
of a turn at the same: ``number`` orders them. As in ``History.lines``, text beside a call is not said aloud.
"""

from pathlib import Path

VIEWS = {
    name: f"\n{Path(__file__).with_name(f'{name}.sql').read_text(encoding='utf-8').rstrip()}"
    for name in ("calls", "changes", "lines")
}
"""Queries over a table ``traces (rollout, json)``."""
