SELECT rollout, position, CASE role WHEN 'user' THEN 'user' ELSE 'agent' END AS speaker, text FROM (
    SELECT rollout, message.key AS position, message.value ->> 'role' AS role,
        CASE json_type(message.value, '$.content') WHEN 'array'
        THEN (SELECT group_concat(value ->> 'text', '') FROM json_each(message.value, '$.content'))
        ELSE message.value ->> 'content' END AS text
    FROM traces AS t, json_each(t.json, '$.messages') AS message
    WHERE coalesce(json_array_length(message.value, '$.tool_calls'), 0) = 0
) WHERE role IN ('user', 'assistant') AND text != ''
