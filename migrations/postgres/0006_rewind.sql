-- A rewind ends all open work in the statement that hides it: each call without an end is interrupted, and each turn without an
-- end is aborted. If the start of a turn or a call stays visible, its end stays visible too. Both therefore always have exactly
-- one end, and no agent keeps the state of a turn that is over. Agents whose creation is hidden are stopped. An agent that continues
-- gives results to calls whose results are hidden. A stopped agent never does, so its answer with these calls is hidden too. That
-- statement searches the bodies as text, because Postgres' JSON functions fail on \u0000. A body begins with its role, and every quote
-- inside of a string has a backslash.

CREATE OR REPLACE FUNCTION planck_rewind(s text, lead_epoch bigint, target bigint, rewound_by text, written_at bigint)
RETURNS TABLE (verdict text, head bigint, agent text, new_epoch bigint, unborn boolean) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE leader text; leads_on text; place bigint; first_end bigint; ends int; last_turn int; last_request int;
  written text := format('{"to":%s,"by":%s}', target, to_json(rewound_by));
BEGIN
  SELECT lead INTO leader FROM sessions WHERE id = s;
  PERFORM 1 FROM agents WHERE session_id = s ORDER BY id FOR NO KEY UPDATE;
  -- Finds out whether this rewind was already made, and its answer was lost.
  SELECT l.seq INTO place FROM log l JOIN agents a ON a.session_id = s AND a.id = leader AND a.epoch = lead_epoch + 1
    WHERE l.session_id = s AND l.agent_id = leader AND l.epoch = lead_epoch + 1 AND l.kind = 'rewound' AND l.body = written;
  IF NOT FOUND THEN
    SELECT coalesce(node_id, 'nobody') INTO leads_on FROM agents WHERE session_id = s AND id = leader AND epoch = lead_epoch;
    IF NOT FOUND THEN RETURN QUERY SELECT 'stale_epoch', 0::bigint, NULL::text, 0::bigint, false; RETURN; END IF;
    PERFORM 1 FROM log WHERE session_id = s AND seq = target AND kind = 'message' AND hidden_by IS NULL;
    IF NOT FOUND THEN RETURN QUERY SELECT 'no_message', 0::bigint, NULL::text, 0::bigint, false; RETURN; END IF;
    PERFORM 1 FROM inputs WHERE session_id = s AND (outcome IS NULL OR turn IS NOT NULL) ORDER BY id FOR NO KEY UPDATE;
    SELECT next_seq INTO first_end FROM sessions WHERE id = s FOR NO KEY UPDATE;

    WITH opened AS (
      SELECT a.id, a.epoch, a.last_seq, a.node_id, a.born, t.seq AS start, t.turn,
        (SELECT l.request FROM log l WHERE l.session_id = s AND l.seq = a.last_seq) AS request
      FROM agents a JOIN LATERAL (SELECT b.seq, b.turn, b.kind FROM log b WHERE b.session_id = s AND b.agent_id = a.id
          AND b.kind IN ('turn_start', 'turn_end', 'error') ORDER BY b.seq DESC LIMIT 1) t ON t.kind = 'turn_start'
      WHERE a.session_id = s),
    missing AS (
      SELECT o.*, c.seq AS nr, 'tool_end' AS kind, json_build_object('call_id', c.body::json ->> 'call_id',
        'id', c.body::json ->> 'id', 'name', c.body::json ->> 'name',
        'result', 'interrupted; it may or may not have taken effect', 'error', true, 'duration_ms', 0)::text AS body
      FROM opened o JOIN log c ON c.session_id = s AND c.agent_id = o.id AND c.seq > o.start AND c.kind = 'tool_start'
      WHERE NOT EXISTS (SELECT 1 FROM log d WHERE d.session_id = s AND d.agent_id = o.id AND d.seq > c.seq AND d.kind = 'tool_end'
        AND d.body::json ->> 'call_id' = c.body::json ->> 'call_id')
      UNION ALL
      SELECT o.*, first_end, 'turn_end', json_build_object('outcome', 'aborted', 'message', NULL,
        'usage', (SELECT json_build_object(
            'input_tokens', coalesce(sum((u.body::json #>> '{delta,input_tokens}')::bigint), 0),
            'output_tokens', coalesce(sum((u.body::json #>> '{delta,output_tokens}')::bigint), 0),
            'cache_read_tokens', coalesce(sum((u.body::json #>> '{delta,cache_read_tokens}')::bigint), 0),
            'cache_write_tokens', coalesce(sum((u.body::json #>> '{delta,cache_write_tokens}')::bigint), 0),
            'cost_usd', coalesce(sum((u.body::json #>> '{delta,cost_usd}')::float8), 0))
          FROM log u WHERE u.session_id = s AND u.agent_id = o.id AND u.seq > o.start AND u.kind = 'usage_delta'),
        'inputs', coalesce((SELECT json_agg(i.id ORDER BY i.accepted) FROM inputs i
          WHERE i.session_id = s AND i.agent_id = o.id AND i.turn = o.turn AND i.outcome IS NULL), '[]'::json))::text
      FROM opened o),
    numbered AS (
      SELECT m.*, first_end - 1 + row_number() OVER (ORDER BY m.born, m.nr) AS seq,
        row_number() OVER (PARTITION BY m.id ORDER BY m.nr) AS nth FROM missing m)
    INSERT INTO log (session_id, seq, agent_id, node_id, epoch, prev, kind, turn, request, at, body)
      SELECT s, n.seq, n.id, coalesce(n.node_id, leads_on), n.epoch + 1, CASE WHEN n.nth = 1 THEN n.last_seq ELSE n.seq - 1 END,
        n.kind, n.turn, n.request, written_at, n.body
      FROM numbered n;
    GET DIAGNOSTICS ends = ROW_COUNT;
    UPDATE agents a SET last_seq = e.seq FROM (
      SELECT agent_id, max(seq) AS seq FROM log WHERE session_id = s AND seq >= first_end GROUP BY agent_id) e
      WHERE a.session_id = s AND a.id = e.agent_id;
    place := first_end + ends;
    UPDATE sessions SET next_seq = place + 1, updated_at = greatest(updated_at, written_at) WHERE id = s;

    UPDATE log SET hidden_by = place WHERE session_id = s AND seq >= target AND hidden_by IS NULL;
    UPDATE log SET hidden_by = NULL WHERE session_id = s AND seq IN (
      SELECT (SELECT e.seq FROM log e WHERE e.session_id = s AND e.agent_id = a.id AND e.seq >= target AND e.hidden_by = place
          AND e.kind IN ('turn_end', 'error') ORDER BY e.seq LIMIT 1)
      FROM agents a JOIN LATERAL (SELECT b.kind FROM log b WHERE b.session_id = s AND b.agent_id = a.id AND b.hidden_by IS NULL
          AND b.kind IN ('turn_start', 'turn_end', 'error') ORDER BY b.seq DESC LIMIT 1) t ON t.kind = 'turn_start'
      WHERE a.session_id = s);
    UPDATE log e SET hidden_by = NULL
      FROM agents a JOIN LATERAL (SELECT b.kind, b.seq FROM log b WHERE b.session_id = s AND b.agent_id = a.id AND b.seq < target
          AND b.hidden_by IS NULL AND b.kind IN ('turn_start', 'turn_end', 'error') ORDER BY b.seq DESC LIMIT 1) t ON t.kind = 'turn_start'
        JOIN log c ON c.session_id = s AND c.agent_id = a.id AND c.seq > t.seq AND c.seq < target AND c.kind = 'tool_start' AND c.hidden_by IS NULL
      WHERE a.session_id = s AND e.session_id = s AND e.hidden_by = place AND e.kind = 'tool_end' AND e.agent_id = a.id
        AND e.body::json ->> 'call_id' = c.body::json ->> 'call_id';

    UPDATE inputs i SET outcome = 'rewound' WHERE i.session_id = s
      AND CASE WHEN i.turn IS NULL THEN i.outcome IS NULL AND i.sender IS NOT NULL
        ELSE EXISTS (SELECT 1 FROM log l WHERE l.session_id = s AND l.agent_id = i.agent_id AND l.turn = i.turn
          AND l.kind = 'turn_start' AND l.hidden_by = place) END;
    UPDATE inputs SET outcome = 'aborted' WHERE session_id = s AND outcome IS NULL AND turn IS NOT NULL;
    UPDATE inputs SET waiting = false WHERE session_id = s AND waiting;
    SELECT turn, request INTO last_turn, last_request FROM log WHERE session_id = s AND agent_id = leader ORDER BY seq DESC LIMIT 1;
    INSERT INTO log (session_id, seq, agent_id, node_id, epoch, prev, kind, turn, request, at, body)
      SELECT s, place, leader, leads_on, a.epoch + 1, a.last_seq, 'rewound', coalesce(last_turn, 0), coalesce(last_request, 0),
        written_at, written
      FROM agents a WHERE a.session_id = s AND a.id = leader;
    UPDATE agents SET epoch = epoch + 1, last_seq = CASE WHEN id = leader THEN place ELSE last_seq END,
      state = CASE WHEN state = 'stopped' THEN state ELSE 'idle' END WHERE session_id = s;
    UPDATE agents SET state = 'stopped', node_id = NULL WHERE session_id = s AND id IN (SELECT l.body::json ->> 'id' FROM log l
      WHERE l.session_id = s AND l.hidden_by = place AND l.kind = 'worker_spawned');
    UPDATE inputs i SET outcome = 'stopped' FROM agents a WHERE i.session_id = s AND i.outcome IS NULL
      AND a.session_id = s AND a.id = i.agent_id AND a.state = 'stopped';
    UPDATE log SET hidden_by = place WHERE session_id = s AND seq IN (
      SELECT m.seq FROM agents a JOIN LATERAL (SELECT b.seq, b.body FROM log b WHERE b.session_id = s AND b.agent_id = a.id
          AND b.kind = 'message' AND b.hidden_by IS NULL AND NOT starts_with(b.body, '{"role":"custom"')
          ORDER BY b.seq DESC LIMIT 1) m ON starts_with(m.body, '{"role":"assistant"')
      WHERE a.session_id = s AND a.state = 'stopped' AND strpos(m.body, '{"type":"tool_call",') > 0);
  END IF;
  RETURN QUERY SELECT 'rewound', place, a.id, a.epoch, EXISTS (SELECT 1 FROM log l WHERE l.session_id = s AND l.hidden_by = place
      AND l.kind = 'worker_spawned' AND l.body::json ->> 'id' = a.id)
    FROM agents a WHERE a.session_id = s ORDER BY a.born;
END $$;
