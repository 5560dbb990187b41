"""Queries over trajectories as they are stored: their tool calls, changed rows and spoken lines.

They are the views of an evaluation's file, and fill the tables that rules of procedure query::

    SELECT name, count(*) FROM calls WHERE status != 'ok' GROUP BY name
"""

from __future__ import annotations

VIEWS = {
    # a call stands where its answer does, among the messages, from 0; the user's at the line that follows it,
    # all of a turn at the same: ``number`` orders them
    "calls": """
WITH answers AS MATERIALIZED (
    SELECT rollout, message.key AS position, message.value ->> 'tool_call_id' AS call_id, 'agent' AS by
    FROM traces AS t, json_each(t.json, '$.messages') AS message WHERE message.value ->> 'role' = 'tool'
    UNION ALL
    SELECT rollout, CAST(turn.key AS INTEGER), message.value ->> 'tool_call_id', 'user'
    FROM traces AS t, json_each(t.json, '$.user_messages') AS turn, json_each(turn.value) AS message
    WHERE message.value ->> 'role' = 'tool'
), made AS MATERIALIZED (
    SELECT rollout, call.value ->> 'id' AS call_id, coalesce(call.value ->> 'by', 'agent') AS by,
        call.value AS call
    FROM traces AS t, json_each(t.json, '$.tool_calls') AS call
)
SELECT rollout, position, call ->> 'turn' AS turn, call ->> 'name' AS name, call -> 'arguments' AS arguments,
    call ->> 'content' AS content, call ->> 'status' AS status, call -> 'changes' AS changes, by,
    call ->> 'index' AS number
FROM made JOIN answers USING (rollout, call_id, by)""",
    "changes": """
SELECT rollout, position, change.value ->> 'table' AS table_name, change.value ->> 'op' AS op,
    change.value -> 'key' AS key, change.value -> 'before' AS before, change.value -> 'after' AS after, by,
    number
FROM calls, json_each(changes) AS change""",
    # as History.lines: text beside a tool call is not said aloud
    "lines": """
SELECT rollout, position, CASE role WHEN 'user' THEN 'user' ELSE 'agent' END AS speaker, text FROM (
    SELECT rollout, message.key AS position, message.value ->> 'role' AS role,
        CASE json_type(message.value, '$.content') WHEN 'array'
        THEN (SELECT group_concat(value ->> 'text', '') FROM json_each(message.value, '$.content'))
        ELSE message.value ->> 'content' END AS text
    FROM traces AS t, json_each(t.json, '$.messages') AS message
    WHERE coalesce(json_array_length(message.value, '$.tool_calls'), 0) = 0
) WHERE role IN ('user', 'assistant') AND text != ''""",
}
"""Queries over a table ``traces (rollout, json)``."""
