-- The tables of one session: its record, its agents with their leases, its log, its inboxes.

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

CREATE TRIGGER agent_counted AFTER INSERT ON agents BEGIN
  UPDATE sessions SET agents = agents + 1;
END;

-- The statement that stops an agent also gives its inputs their outcome, so that no input is added in between.
CREATE TRIGGER agent_stopped AFTER UPDATE OF state ON agents WHEN NEW.state = 'stopped' BEGIN
  UPDATE inputs SET outcome = 'stopped', waiting = 0 WHERE agent_id = NEW.id AND outcome IS NULL;
END;

-- A batch of log rows. The first row of a batch carries `prev` and the columns that a batch has once: marks, puts, usage, state.
-- A batch without log rows is one row without `kind`. Any refusal aborts the whole statement.
CREATE VIEW append AS SELECT
  NULL AS agent_id, NULL AS epoch, NULL AS prev, NULL AS kind, NULL AS turn, NULL AS request, NULL AS at, NULL AS node_id,
  NULL AS covers, NULL AS body, NULL AS marks, NULL AS puts, NULL AS state, NULL AS input_tokens, NULL AS output_tokens,
  NULL AS cache_read_tokens, NULL AS cache_write_tokens, NULL AS cost_usd, NULL AS last;

CREATE TRIGGER append_row INSTEAD OF INSERT ON append BEGIN
  SELECT RAISE(ABORT, 'stale_epoch') WHERE NOT EXISTS (
    SELECT 1 FROM agents WHERE id = NEW.agent_id AND epoch = NEW.epoch AND last_seq = coalesce(NEW.prev, last_seq));
  INSERT INTO log (seq, agent_id, epoch, prev, kind, turn, request, at, node_id, covers, body)
    SELECT s.next_seq, a.id, a.epoch, a.last_seq, NEW.kind, NEW.turn, NEW.request, NEW.at, NEW.node_id, NEW.covers, NEW.body
    FROM sessions s JOIN agents a ON a.id = NEW.agent_id WHERE NEW.kind IS NOT NULL;
  UPDATE agents SET last_seq = (SELECT next_seq FROM sessions) WHERE id = NEW.agent_id AND NEW.kind IS NOT NULL;
  UPDATE sessions SET next_seq = next_seq + 1, updated_at = max(updated_at, NEW.at) WHERE NEW.kind IS NOT NULL;
END;

CREATE TRIGGER append_batch INSTEAD OF INSERT ON append WHEN NEW.prev IS NOT NULL BEGIN
  SELECT RAISE(ABORT, 'input_gone') FROM json_each(NEW.marks) m LEFT JOIN inputs i
    ON i.id = m.value->>'id' AND i.agent_id = NEW.agent_id AND i.outcome IS NULL AND (m.value->>'turn' IS NULL OR i.turn IS NULL)
    WHERE i.id IS NULL;
  UPDATE inputs SET turn = coalesce(m.value->>'turn', turn), outcome = m.value->>'outcome', answer = m.value->>'answer',
      waiting = waiting AND m.value->>'outcome' IS NULL
    FROM json_each(NEW.marks) m WHERE inputs.id = m.value->>'id';
  INSERT OR IGNORE INTO inputs (id, agent_id, kind, mode, sender, sender_name, reply_to, content, fresh, head, at)
    SELECT p.value->>'id', t.id, p.value->>'kind', p.value->>'mode', p.value->>'sender', p.value->>'sender_name',
      p.value->>'reply_to', p.value->>'content', p.value->>'fresh', s.next_seq - 1, p.value->>'at'
    FROM json_each(NEW.puts) p JOIN agents t ON t.id = p.value->>'agent' AND t.state <> 'stopped', sessions s;
  UPDATE agents SET state = NEW.state, input_tokens = input_tokens + NEW.input_tokens, output_tokens = output_tokens + NEW.output_tokens,
      cache_read_tokens = cache_read_tokens + NEW.cache_read_tokens, cache_write_tokens = cache_write_tokens + NEW.cache_write_tokens,
      cost_usd = cost_usd + NEW.cost_usd
    WHERE id = NEW.agent_id;
  UPDATE sessions SET input_tokens = input_tokens + NEW.input_tokens, output_tokens = output_tokens + NEW.output_tokens,
      cache_read_tokens = cache_read_tokens + NEW.cache_read_tokens, cache_write_tokens = cache_write_tokens + NEW.cache_write_tokens,
      cost_usd = cost_usd + NEW.cost_usd
    WHERE NEW.kind IS NOT NULL;
END;

CREATE VIEW rewind AS SELECT NULL AS epoch, NULL AS first, NULL AS at, NULL AS body;

CREATE TRIGGER rewind_all INSTEAD OF INSERT ON rewind BEGIN
  SELECT RAISE(ABORT, 'stale_epoch') WHERE NOT EXISTS (
    SELECT 1 FROM sessions s JOIN agents a ON a.id = s.lead WHERE a.epoch = NEW.epoch AND a.node_id IS NOT NULL);
  SELECT RAISE(ABORT, 'no_message') WHERE NOT EXISTS (
    SELECT 1 FROM log WHERE seq = NEW.first AND kind = 'message' AND hidden_by IS NULL);
  UPDATE log SET hidden_by = (SELECT next_seq FROM sessions) WHERE seq >= NEW.first AND hidden_by IS NULL;
  UPDATE inputs SET outcome = 'rewound' WHERE (outcome IS NULL AND turn IS NULL AND sender IS NOT NULL)
    OR (agent_id, turn) IN (SELECT agent_id, turn FROM log
      WHERE seq >= NEW.first AND kind = 'turn_start' AND hidden_by = (SELECT next_seq FROM sessions));
  UPDATE inputs SET waiting = 0 WHERE waiting;
  UPDATE agents SET epoch = epoch + 1;
  INSERT INTO log (seq, agent_id, epoch, prev, kind, turn, request, at, node_id, body)
    SELECT s.next_seq, a.id, a.epoch, a.last_seq, 'rewound', coalesce(l.turn, 0), coalesce(l.request, 0), NEW.at, a.node_id, NEW.body
    FROM sessions s JOIN agents a ON a.id = s.lead LEFT JOIN log l ON l.seq = a.last_seq;
  UPDATE agents SET last_seq = (SELECT next_seq FROM sessions) WHERE id = (SELECT lead FROM sessions);
  UPDATE sessions SET next_seq = next_seq + 1, updated_at = max(updated_at, NEW.at);
END;
