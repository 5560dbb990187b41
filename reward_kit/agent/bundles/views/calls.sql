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
FROM made JOIN answers USING (rollout, call_id, by)
