SELECT rollout, position, change.value ->> 'table' AS table_name, change.value ->> 'op' AS op,
    change.value -> 'key' AS key, change.value -> 'before' AS before, change.value -> 'after' AS after, by,
    number
FROM calls, json_each(changes) AS change
