"""Queries over trajectories as they are stored: their tool calls, changed rows and spoken lines.

They are the views of an evaluation's file. The tables that rules of procedure ask have the same columns::

    SELECT name, count(*) FROM calls WHERE status != 'ok' GROUP BY name
"""

from __future__ import annotations

VIEWS = {
    # a call stands where its answer does: among the messages, from 0
    "calls": """
WITH answers AS MATERIALIZED (
    SELECT rollout, message.key AS position, message.value ->> 'tool_call_id' AS call_id
    FROM trajectories AS t, json_each(t.json, '$.messages') AS message WHERE message.value ->> 'role' = 'tool'
)
SELECT t.rollout, position, call.value ->> 'turn' AS turn, call.value ->> 'name' AS name,
    call.value -> 'arguments' AS arguments, call.value ->> 'content' AS content,
    call.value ->> 'status' AS status, call.value -> 'changes' AS changes
FROM trajectories AS t, json_each(t.json, '$.tool_calls') AS call
JOIN answers ON answers.rollout = t.rollout AND call_id = call.value ->> 'id'""",
    "changes": """
SELECT rollout, position, change.value ->> 'table' AS table_name, change.value ->> 'op' AS op,
    change.value -> 'key' AS key, change.value -> 'before' AS before, change.value -> 'after' AS after
FROM calls, json_each(changes) AS change""",
    # as History.lines: text beside a tool call is not said aloud
    "lines": """
SELECT rollout, position, CASE role WHEN 'user' THEN 'user' ELSE 'agent' END AS speaker, text FROM (
    SELECT rollout, message.key AS position, message.value ->> 'role' AS role,
        CASE json_type(message.value, '$.content') WHEN 'array'
        THEN (SELECT group_concat(value ->> 'text', '') FROM json_each(message.value, '$.content'))
        ELSE message.value ->> 'content' END AS text
    FROM trajectories AS t, json_each(t.json, '$.messages') AS message
    WHERE coalesce(json_array_length(message.value, '$.tool_calls'), 0) = 0
) WHERE role IN ('user', 'assistant') AND text != ''""",
}
"""Queries over a table ``trajectories (rollout, json)``."""
