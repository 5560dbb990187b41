-- The procedure that policy.md asks for, as queries over a conversation; docs/rules.md describes the tables.
-- A replay of tool calls without a user, as of the gold actions, keeps every rule.

-- rule: identity_first  The customer is found by email, or by name and zip code, before a profile or an order is read or changed.
SELECT position, name, arguments FROM calls
WHERE status = 'ok'
  AND (name IN ('get_user_details', 'get_order_details', 'return_delivered_order_items')
       OR name GLOB 'modify_*' OR name GLOB 'cancel_*' OR name GLOB 'exchange_*')
  AND EXISTS (SELECT 1 FROM lines WHERE speaker = 'user')
  AND NOT EXISTS (
      SELECT 1 FROM calls AS found
      WHERE found.name GLOB 'find_user_id_by_*' AND found.status = 'ok' AND found.position < calls.position)

-- rule: confirmed  The customer has said yes to the agent's last line before each call that changes data.
-- A heuristic: a line counts as a yes if it has one of these words and does not begin with a no. One yes may
-- confirm several calls. The rule cannot see if the agent had listed the details.
SELECT position, name, arguments,
       (SELECT text FROM lines WHERE speaker = 'user' AND lines.position < calls.position
        ORDER BY lines.position DESC LIMIT 1) AS last_said
FROM calls
WHERE changes != '[]'
  AND EXISTS (SELECT 1 FROM lines WHERE speaker = 'user')
  AND NOT EXISTS (
      SELECT 1 FROM lines
      WHERE speaker = 'user' AND lines.position < calls.position
        AND lines.position > (
            SELECT max(said.position) FROM lines AS said
            WHERE said.speaker = 'agent' AND said.position < calls.position)
        AND lower(text) REGEXP '\b(yes|yeah|yep|yup|sure|ok|okay|correct|right|confirm|confirmed|agree|agreed|proceed|go ahead|go for it|do it|please do|of course|absolutely|definitely|certainly|perfect|great|fine|sounds good|works for me)\b'
        AND NOT lower(text) REGEXP '^\W*(no|nope|not|wait|stop|do not|don''t)\b')

-- rule: one_customer  No second user is looked up, shown or changed. Reading an order tells whose it is, and is allowed.
WITH concerned AS (
    SELECT position, name,
           CASE WHEN name GLOB 'find_user_id_by_*' THEN content
                WHEN name IN ('get_user_details', 'modify_user_address') THEN arguments ->> 'user_id'
                WHEN name NOT IN ('get_order_details', 'calculate') AND json_valid(content)
                THEN content ->> 'user_id' END AS user_id
    FROM calls WHERE status = 'ok')
SELECT position, name, user_id FROM concerned
WHERE user_id != (SELECT user_id FROM concerned WHERE user_id IS NOT NULL ORDER BY position LIMIT 1)
  AND EXISTS (SELECT 1 FROM lines WHERE speaker = 'user')

-- rule: items_once  Items of an order are changed or exchanged by one call; a second call is refused.
SELECT again.position, again.name, again.arguments FROM calls AS first
JOIN calls AS again ON again.arguments ->> 'order_id' = first.arguments ->> 'order_id'
                   AND again.position > first.position
WHERE first.name IN ('modify_pending_order_items', 'exchange_delivered_order_items') AND first.status = 'ok'
  AND again.name IN ('modify_pending_order_items', 'exchange_delivered_order_items')
