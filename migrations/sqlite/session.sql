-- The tables of one session: its record, its agents with their leases, its log, its inboxes, what its
-- agents wait for, and the protected files before its calls.

CREATE TABLE sessions (
  only INTEGER PRIMARY KEY CHECK (only = 1),
  id TEXT NOT NULL,
  store_id TEXT NOT NULL,
  name TEXT NOT NULL,
  state TEXT NOT NULL,
  spec TEXT NOT NULL,
  lead TEXT NOT NULL,
  metadata TEXT NOT NULL,
  next_seq INTEGER NOT NULL DEFAULT 1,
  agents INTEGER NOT NULL DEFAULT 0,
  max_agents INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL DEFAULT 0,
  output_tokens INTEGER NOT NULL DEFAULT 0,
  cache_read_tokens INTEGER NOT NULL DEFAULT 0,
  cache_write_tokens INTEGER NOT NULL DEFAULT 0,
  cost_usd REAL NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
);

CREATE TABLE agents (
  n INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL UNIQUE,
  type TEXT NOT NULL,
  role TEXT NOT NULL,
  spec TEXT NOT NULL,
  state TEXT NOT NULL DEFAULT 'idle',
  node_id TEXT,
  epoch INTEGER NOT NULL DEFAULT 1,
  last_seq INTEGER NOT NULL DEFAULT 0,
  incarnation INTEGER NOT NULL DEFAULT 0,
  input_tokens INTEGER NOT NULL DEFAULT 0,
  output_tokens INTEGER NOT NULL DEFAULT 0,
  cache_read_tokens INTEGER NOT NULL DEFAULT 0,
  cache_write_tokens INTEGER NOT NULL DEFAULT 0,
  cost_usd REAL NOT NULL DEFAULT 0
);

CREATE INDEX agents_of_type ON agents (type);

CREATE TABLE log (
  seq INTEGER PRIMARY KEY,
  agent_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  prev INTEGER NOT NULL,
  kind TEXT NOT NULL,
  turn INTEGER NOT NULL,
  request INTEGER NOT NULL,
  at INTEGER NOT NULL,
  node_id TEXT NOT NULL,
  covers INTEGER,
  hidden_by INTEGER,
  body TEXT NOT NULL
);
CREATE INDEX log_of_agent ON log (agent_id, seq);
CREATE INDEX log_checkpoints ON log (covers, agent_id) WHERE covers IS NOT NULL;

CREATE TABLE inputs (
  n INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  agent_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  mode TEXT NOT NULL,
  sender TEXT,
  sender_name TEXT,
  reply_to TEXT,
  content TEXT NOT NULL,
  fresh INTEGER NOT NULL,
  output TEXT,
  head INTEGER NOT NULL,
  at INTEGER NOT NULL,
  turn INTEGER,
  outcome TEXT,
  answer TEXT,
  waiting INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX inputs_open ON inputs (agent_id) WHERE outcome IS NULL;
CREATE INDEX inputs_waiting ON inputs (sender) WHERE waiting;
CREATE INDEX inputs_tasks ON inputs (agent_id) WHERE kind = 'task';
CREATE INDEX inputs_replies ON inputs (reply_to) WHERE reply_to IS NOT NULL;

-- What agents need from outside before their calls continue, and the answers. The data of a wait is the body of the log row `seq`, so
-- it is stored once. The statement that writes a row of the log also changes the wait. No trigger of the table `log` does so, because
-- each append would then copy its rows to a temporary table first.
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

-- The protected files of a workspace as they were before a call. A row is written before the call starts its processes. It is removed
-- when the call ended and changed none of them, or when a person has kept the change.

CREATE TABLE baselines (
  call_id TEXT PRIMARY KEY,
  agent_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  roots TEXT NOT NULL,
  changed INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TRIGGER agent_counted AFTER INSERT ON agents BEGIN
  UPDATE sessions SET agents = agents + 1;
END;

-- The statement that stops an agent also gives its inputs their outcome, so that no input is added in between.
CREATE TRIGGER agent_stopped AFTER UPDATE OF state ON agents WHEN NEW.state = 'stopped' BEGIN
  UPDATE inputs SET outcome = 'stopped', waiting = 0 WHERE agent_id = NEW.id AND outcome IS NULL;
END;

-- One statement appends any number of batches, so that SQLite compiles it once for each open file. `batches`, `rows`, `marks` and
-- `puts` are JSON arrays, and `bodies` holds the bodies of all rows one after the other. The agents and the session are updated
-- once for each statement instead of once for each row. Any refusal aborts the whole statement.
--   batch: agent, epoch, prev, index of its last row or null, state, input, output, cache read and cache write tokens, cost
--   row: agent, whether it is the first of its batch, kind, turn, request, at, covers, offset (from 1) and length of its body
--
-- The trigger searches the kinds of the rows as text before it reads any row of the log.

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
  INSERT INTO waits (id, agent_id, kind, seq, opened_at, digest, expires_at, state)
    SELECT l.body->>'id', l.agent_id, l.body->>'kind', l.seq, l.at, l.body->>'digest',
      CAST(round(unixepoch(l.body->>'expires_at', 'subsec') * 1000) AS INTEGER), 'open'
    FROM sessions s CROSS JOIN log l ON l.seq >= s.next_seq WHERE instr(NEW.rows, 'wait_opened') AND l.kind = 'wait_opened' ORDER BY l.seq
    ON CONFLICT (id) DO UPDATE SET agent_id = excluded.agent_id, kind = excluded.kind, seq = excluded.seq,
      opened_at = excluded.opened_at, digest = excluded.digest, expires_at = excluded.expires_at, state = 'open', answer = NULL;
  UPDATE waits SET state = iif(l.body->>'decision' = 'withdrawn', 'withdrawn', 'closed')
    FROM sessions s CROSS JOIN log l ON l.seq >= s.next_seq WHERE instr(NEW.rows, 'wait_closed') AND l.kind = 'wait_closed'
      AND waits.id = l.body->>'id' AND waits.agent_id = l.agent_id AND waits.seq < l.seq AND waits.state IN ('open', 'answered');
  INSERT OR IGNORE INTO inputs (id, agent_id, kind, mode, sender, sender_name, reply_to, content, fresh, output, head, at)
    SELECT p.value->>'id', t.id, p.value->>'kind', p.value->>'mode', p.value->>'sender', p.value->>'sender_name',
      p.value->>'reply_to', p.value->>'content', p.value->>'fresh', p.value->>'output',
      s.next_seq + NEW.count - 1, p.value->>'at'
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

-- `rewind.sql` has the trigger of this view.
CREATE VIEW rewind AS SELECT NULL AS epoch, NULL AS first, NULL AS at, NULL AS body;
