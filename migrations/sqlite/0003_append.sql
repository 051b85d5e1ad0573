-- One statement appends any number of batches, so that SQLite compiles it once for each open file. `batches`, `rows`, `marks` and
-- `puts` are JSON arrays, and `bodies` holds the bodies of all rows one after the other. The agents and the session are updated
-- once for each statement instead of once for each row. Any refusal aborts the whole statement.
--   batch: agent, epoch, prev, index of its last row or null, state, input, output, cache read and cache write tokens, cost
--   row: agent, whether it is the first of its batch, kind, turn, request, at, covers, offset (from 1) and length of its body

-- The trigger of a rewind is in `rewind.sql` now, so that opening a file does not parse it.

DROP TRIGGER rewind_all;
DROP VIEW append;

CREATE VIEW append AS SELECT
  NULL AS batches, NULL AS rows, NULL AS bodies, NULL AS marks, NULL AS puts, NULL AS node_id, NULL AS count, NULL AS at,
  NULL AS input_tokens, NULL AS output_tokens, NULL AS cache_read_tokens, NULL AS cache_write_tokens, NULL AS cost_usd;

CREATE TRIGGER append_all INSTEAD OF INSERT ON append BEGIN
  SELECT RAISE(ABORT, 'stale_epoch') FROM json_each(NEW.batches) b WHERE NOT EXISTS (
    SELECT 1 FROM agents WHERE id = b.value->>0 AND epoch = b.value->>1 AND last_seq = b.value->>2);
  SELECT RAISE(ABORT, 'input_gone') FROM json_each(NEW.marks) m LEFT JOIN inputs i
    ON i.id = m.value->>'id' AND i.agent_id = m.value->>'agent' AND i.outcome IS NULL AND (m.value->>'turn' IS NULL OR i.turn IS NULL)
    WHERE i.id IS NULL;
  UPDATE inputs SET turn = coalesce(m.value->>'turn', turn), outcome = m.value->>'outcome', answer = m.value->>'answer',
      waiting = waiting AND m.value->>'outcome' IS NULL
    FROM json_each(NEW.marks) m WHERE inputs.id = m.value->>'id';
  INSERT INTO log (seq, agent_id, epoch, prev, kind, turn, request, at, node_id, covers, body)
    SELECT s.next_seq + r.key, a.id, a.epoch, iif(r.value->>1, a.last_seq, s.next_seq + r.key - 1),
      r.value->>2, r.value->>3, r.value->>4, r.value->>5, NEW.node_id, r.value->>6,
      CAST(substr(NEW.bodies, r.value->>7, r.value->>8) AS TEXT)
    FROM json_each(NEW.rows) r CROSS JOIN sessions s CROSS JOIN agents a ON a.id = r.value->>0;
  INSERT OR IGNORE INTO inputs (id, agent_id, kind, mode, sender, sender_name, reply_to, content, fresh, head, at)
    SELECT p.value->>'id', t.id, p.value->>'kind', p.value->>'mode', p.value->>'sender', p.value->>'sender_name',
      p.value->>'reply_to', p.value->>'content', p.value->>'fresh', s.next_seq + NEW.count - 1, p.value->>'at'
    FROM json_each(NEW.puts) p JOIN agents t ON t.id = p.value->>'agent' AND t.state <> 'stopped', sessions s;
  UPDATE agents SET last_seq = coalesce(s.next_seq + (b.value->>3), last_seq), state = b.value->>4,
      input_tokens = agents.input_tokens + (b.value->>5), output_tokens = agents.output_tokens + (b.value->>6),
      cache_read_tokens = agents.cache_read_tokens + (b.value->>7), cache_write_tokens = agents.cache_write_tokens + (b.value->>8),
      cost_usd = agents.cost_usd + (b.value->>9)
    FROM json_each(NEW.batches) b, sessions s WHERE agents.id = b.value->>0;
  UPDATE sessions SET next_seq = next_seq + NEW.count, updated_at = max(updated_at, NEW.at),
      input_tokens = input_tokens + NEW.input_tokens, output_tokens = output_tokens + NEW.output_tokens,
      cache_read_tokens = cache_read_tokens + NEW.cache_read_tokens, cache_write_tokens = cache_write_tokens + NEW.cache_write_tokens,
      cost_usd = cost_usd + NEW.cost_usd
    WHERE NEW.count > 0;
END;
