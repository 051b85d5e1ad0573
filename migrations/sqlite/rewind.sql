-- A rewind ends all open work in the statement that hides it: each call without an end is interrupted, and each turn without an
-- end is aborted. If the start of a turn or a call stays visible, its end stays visible too. Both therefore always have exactly
-- one end, and no agent keeps the state of a turn that is over. Agents whose creation is hidden are stopped. An agent that continues
-- gives results to calls whose results are hidden. A stopped agent never does, so its answer with these calls is hidden too.
--
-- The trigger is temporary: a connection creates it before its first rewind. In the schema, it would more than double the time
-- that opening a file takes, because SQLite parses the whole schema.

CREATE TEMP TRIGGER IF NOT EXISTS rewind_all INSTEAD OF INSERT ON main.rewind BEGIN
  SELECT RAISE(ABORT, 'stale_epoch') WHERE NOT EXISTS (
    SELECT 1 FROM sessions s JOIN agents a ON a.id = s.lead WHERE a.epoch = NEW.epoch AND a.node_id IS NOT NULL);
  SELECT RAISE(ABORT, 'no_message') WHERE NOT EXISTS (
    SELECT 1 FROM log WHERE seq = NEW.first AND kind = 'message' AND hidden_by IS NULL);

  INSERT INTO log (seq, agent_id, epoch, prev, kind, turn, request, at, node_id, body)
    SELECT s.next_seq - 1 + e.place, e.agent_id, e.epoch + 1, iif(e.nth = 1, e.last_seq, s.next_seq - 2 + e.place),
      e.kind, e.turn, e.request, NEW.at, coalesce(e.node_id, lead.node_id), e.body
    FROM sessions s JOIN agents lead ON lead.id = s.lead, (
      SELECT *, row_number() OVER (ORDER BY n, nr) AS place, row_number() OVER (PARTITION BY n ORDER BY nr) AS nth FROM (
        SELECT a.n, a.id AS agent_id, a.epoch, a.last_seq, a.node_id, t.turn, last.request, c.seq AS nr, 'tool_end' AS kind,
          json_object('call_id', c.body->>'call_id', 'id', c.body->>'id', 'name', c.body->>'name',
            'result', 'interrupted; it may or may not have taken effect', 'error', json('true'), 'duration_ms', 0) AS body
        FROM agents a JOIN log last ON last.seq = a.last_seq
        JOIN log t ON t.seq = (SELECT b.seq FROM log b WHERE b.agent_id = a.id AND b.kind IN ('turn_start', 'turn_end', 'error')
          ORDER BY b.seq DESC LIMIT 1)
        JOIN log c ON c.agent_id = a.id AND c.seq > t.seq AND c.kind = 'tool_start'
        WHERE t.kind = 'turn_start' AND NOT EXISTS (SELECT 1 FROM log d
          WHERE d.agent_id = a.id AND d.seq > c.seq AND d.kind = 'tool_end' AND d.body->>'call_id' = c.body->>'call_id')
        UNION ALL
        SELECT a.n, a.id, a.epoch, a.last_seq, a.node_id, t.turn, last.request, s.next_seq, 'turn_end',
          json_object('outcome', 'aborted', 'message', NULL,
            'usage', (SELECT json_object('input_tokens', coalesce(sum(u.body->'delta'->>'input_tokens'), 0),
                'output_tokens', coalesce(sum(u.body->'delta'->>'output_tokens'), 0),
                'cache_read_tokens', coalesce(sum(u.body->'delta'->>'cache_read_tokens'), 0),
                'cache_write_tokens', coalesce(sum(u.body->'delta'->>'cache_write_tokens'), 0),
                'cost_usd', coalesce(sum(u.body->'delta'->>'cost_usd'), 0.0))
              FROM log u WHERE u.agent_id = a.id AND u.seq > t.seq AND u.kind = 'usage_delta'),
            'inputs', (SELECT json_group_array(id) FROM (SELECT i.id FROM inputs i
              WHERE i.agent_id = a.id AND i.turn = t.turn AND i.outcome IS NULL ORDER BY i.n)))
        FROM sessions s, agents a JOIN log last ON last.seq = a.last_seq
        JOIN log t ON t.seq = (SELECT b.seq FROM log b WHERE b.agent_id = a.id AND b.kind IN ('turn_start', 'turn_end', 'error')
          ORDER BY b.seq DESC LIMIT 1)
        WHERE t.kind = 'turn_start')) e;
  UPDATE sessions SET next_seq = (SELECT max(seq) + 1 FROM log);
  UPDATE agents SET last_seq = coalesce((SELECT max(l.seq) FROM log l WHERE l.agent_id = agents.id), 0);

  UPDATE log SET hidden_by = (SELECT next_seq FROM sessions) WHERE seq >= NEW.first AND hidden_by IS NULL;
  UPDATE log SET hidden_by = NULL WHERE seq IN (
    SELECT (SELECT e.seq FROM log e WHERE e.agent_id = a.id AND e.seq >= NEW.first
        AND e.hidden_by = (SELECT next_seq FROM sessions) AND e.kind IN ('turn_end', 'error') ORDER BY e.seq LIMIT 1)
    FROM agents a JOIN log t ON t.seq = (SELECT b.seq FROM log b WHERE b.agent_id = a.id AND b.hidden_by IS NULL
      AND b.kind IN ('turn_start', 'turn_end', 'error') ORDER BY b.seq DESC LIMIT 1)
    WHERE t.kind = 'turn_start');
  UPDATE log SET hidden_by = NULL WHERE kind = 'tool_end' AND hidden_by = (SELECT next_seq FROM sessions)
    AND (agent_id, body->>'call_id') IN (SELECT c.agent_id, c.body->>'call_id' FROM agents a
      JOIN log t ON t.seq = (SELECT b.seq FROM log b WHERE b.agent_id = a.id AND b.seq < NEW.first AND b.hidden_by IS NULL
        AND b.kind IN ('turn_start', 'turn_end', 'error') ORDER BY b.seq DESC LIMIT 1)
      JOIN log c ON c.agent_id = a.id AND c.seq > t.seq AND c.seq < NEW.first AND c.kind = 'tool_start' AND c.hidden_by IS NULL
      WHERE t.kind = 'turn_start');

  UPDATE inputs SET outcome = 'rewound' WHERE (outcome IS NULL AND turn IS NULL AND sender IS NOT NULL)
    OR (agent_id, turn) IN (SELECT agent_id, turn FROM log
      WHERE seq >= NEW.first AND kind = 'turn_start' AND hidden_by = (SELECT next_seq FROM sessions));
  UPDATE inputs SET outcome = 'aborted' WHERE outcome IS NULL AND turn IS NOT NULL;
  UPDATE inputs SET waiting = 0 WHERE waiting;
  UPDATE waits SET state = 'withdrawn' WHERE state IN ('open', 'answered');
  UPDATE agents SET epoch = epoch + 1;
  UPDATE agents SET state = 'idle' WHERE state <> 'stopped';
  UPDATE agents SET state = 'stopped', node_id = NULL WHERE id IN (SELECT body->>'id' FROM log
    WHERE seq >= NEW.first AND kind = 'worker_spawned' AND hidden_by = (SELECT next_seq FROM sessions));
  UPDATE log SET hidden_by = (SELECT next_seq FROM sessions) WHERE seq IN (
    SELECT m.seq FROM agents a JOIN log m ON m.seq = (SELECT b.seq FROM log b WHERE b.agent_id = a.id AND b.kind = 'message'
      AND b.hidden_by IS NULL AND b.body->>'role' <> 'custom' ORDER BY b.seq DESC LIMIT 1)
    WHERE a.state = 'stopped' AND m.body->>'role' = 'assistant'
      AND EXISTS (SELECT 1 FROM json_each(m.body, '$.content') p WHERE p.value->>'type' = 'tool_call'));

  INSERT INTO log (seq, agent_id, epoch, prev, kind, turn, request, at, node_id, body)
    SELECT s.next_seq, a.id, a.epoch, a.last_seq, 'rewound', coalesce(l.turn, 0), coalesce(l.request, 0), NEW.at, a.node_id, NEW.body
    FROM sessions s JOIN agents a ON a.id = s.lead LEFT JOIN log l ON l.seq = a.last_seq;
  UPDATE agents SET last_seq = (SELECT next_seq FROM sessions) WHERE id = (SELECT lead FROM sessions);
  UPDATE sessions SET next_seq = next_seq + 1, updated_at = max(updated_at, NEW.at);
END;
