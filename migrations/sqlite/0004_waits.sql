-- What agents need from outside before their calls continue, and the answers. The data of a wait is the body of the log row `seq`, so
-- it is stored once. The statement that writes a row of the log also changes the wait. No trigger of the table `log` does so, because
-- each append would then copy its rows to a temporary table first. The trigger of appends searches the kinds of the rows as text
-- before it reads any row of the log.

CREATE TABLE waits (
  id TEXT PRIMARY KEY,
  agent_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  seq INTEGER NOT NULL,
  opened_at INTEGER NOT NULL,
  digest TEXT NOT NULL,
  expires_at INTEGER,
  state TEXT NOT NULL,
  answer TEXT
) WITHOUT ROWID;
CREATE INDEX waits_live ON waits (agent_id) WHERE state IN ('open', 'answered');

DROP TRIGGER append_all;

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
  INSERT INTO waits (id, agent_id, kind, seq, opened_at, digest, expires_at, state)
    SELECT l.body->>'id', l.agent_id, l.body->>'kind', l.seq, l.at, l.body->>'digest',
      CAST(round(unixepoch(l.body->>'expires_at', 'subsec') * 1000) AS INTEGER), 'open'
    FROM sessions s CROSS JOIN log l ON l.seq >= s.next_seq WHERE instr(NEW.rows, 'wait_opened') AND l.kind = 'wait_opened' ORDER BY l.seq
    ON CONFLICT (id) DO UPDATE SET agent_id = excluded.agent_id, kind = excluded.kind, seq = excluded.seq,
      opened_at = excluded.opened_at, digest = excluded.digest, expires_at = excluded.expires_at, state = 'open', answer = NULL;
  UPDATE waits SET state = iif(l.body->>'decision' = 'withdrawn', 'withdrawn', 'closed')
    FROM sessions s CROSS JOIN log l ON l.seq >= s.next_seq WHERE instr(NEW.rows, 'wait_closed') AND l.kind = 'wait_closed'
      AND waits.id = l.body->>'id' AND waits.agent_id = l.agent_id AND waits.seq < l.seq AND waits.state IN ('open', 'answered');
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

-- This trigger runs beside the temporary one, also on the connections of nodes of an earlier version.
CREATE TRIGGER rewind_waits INSTEAD OF INSERT ON rewind BEGIN
  UPDATE waits SET state = 'withdrawn' WHERE state IN ('open', 'answered');
END;
