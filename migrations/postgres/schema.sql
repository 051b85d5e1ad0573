-- The tables of records, leases, inboxes, the log, waits and protected files. Times are milliseconds since 1970 on the writer's clock. Specifications
-- and bodies are JSON in text columns, because jsonb refuses \u0000 and would make a whole batch fail.

CREATE TABLE store (id text NOT NULL);
INSERT INTO store (id) VALUES (replace(gen_random_uuid()::text, '-', ''));

CREATE TABLE sessions (
  id text PRIMARY KEY,
  name text NOT NULL UNIQUE,
  state text NOT NULL DEFAULT 'open',
  team_id text NOT NULL,
  lead text NOT NULL,
  spec text NOT NULL,
  metadata text NOT NULL DEFAULT '{}',
  next_seq bigint NOT NULL DEFAULT 1,
  agents int NOT NULL DEFAULT 0,
  input_tokens bigint NOT NULL DEFAULT 0,
  output_tokens bigint NOT NULL DEFAULT 0,
  cache_read_tokens bigint NOT NULL DEFAULT 0,
  cache_write_tokens bigint NOT NULL DEFAULT 0,
  cost_usd double precision NOT NULL DEFAULT 0,
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL
);
-- Every save updates the session's row. Free space on its page allows updates in place, which do not grow the index.
ALTER TABLE sessions SET (fillfactor = 70);

CREATE TABLE agents (
  session_id text NOT NULL,
  id text NOT NULL,
  name text NOT NULL,
  type text NOT NULL,
  role text NOT NULL,
  spec text NOT NULL,
  state text NOT NULL DEFAULT 'idle',
  input_tokens bigint NOT NULL DEFAULT 0,
  output_tokens bigint NOT NULL DEFAULT 0,
  cache_read_tokens bigint NOT NULL DEFAULT 0,
  cache_write_tokens bigint NOT NULL DEFAULT 0,
  cost_usd double precision NOT NULL DEFAULT 0,
  node_id text,
  epoch bigint NOT NULL DEFAULT 1,
  last_seq bigint NOT NULL DEFAULT 0,
  incarnation bigint NOT NULL DEFAULT 0,
  born bigint GENERATED ALWAYS AS IDENTITY,
  PRIMARY KEY (session_id, id),
  UNIQUE (session_id, name)
);
ALTER TABLE agents SET (fillfactor = 70);
CREATE UNIQUE INDEX agents_by_id ON agents (id);
CREATE INDEX agents_by_type ON agents (session_id, type);
CREATE INDEX agents_by_node ON agents (node_id) WHERE node_id IS NOT NULL;

CREATE TABLE log (
  session_id text NOT NULL,
  seq bigint NOT NULL,
  agent_id text NOT NULL,
  node_id text NOT NULL,
  epoch bigint NOT NULL,
  prev bigint NOT NULL,
  kind text NOT NULL,
  turn int NOT NULL,
  request int NOT NULL,
  at bigint NOT NULL,
  hidden_by bigint,
  covers bigint,
  body text NOT NULL,
  PRIMARY KEY (session_id, seq)
);
CREATE INDEX log_by_agent ON log (session_id, agent_id, seq);
CREATE INDEX log_checkpoints ON log (session_id, covers) WHERE covers IS NOT NULL;
CREATE INDEX log_turns ON log (session_id, agent_id, seq) WHERE kind IN ('turn_start', 'turn_end', 'error');

CREATE TABLE inputs (
  session_id text NOT NULL,
  id text NOT NULL,
  agent_id text NOT NULL,
  kind text NOT NULL,
  mode text NOT NULL DEFAULT 'queue',
  sender text,
  sender_name text,
  reply_to text,
  content text NOT NULL,
  fresh boolean NOT NULL DEFAULT false,
  output text,
  head bigint NOT NULL,
  at bigint NOT NULL,
  turn int,
  outcome text,
  answer text,
  waiting boolean NOT NULL DEFAULT false,
  accepted bigint GENERATED ALWAYS AS IDENTITY,
  PRIMARY KEY (session_id, id)
);
CREATE INDEX inputs_open ON inputs (session_id, agent_id) WHERE outcome IS NULL;
CREATE INDEX inputs_waits ON inputs (session_id, sender) WHERE waiting;
CREATE INDEX inputs_tasks ON inputs (session_id, agent_id) WHERE kind = 'task';
CREATE INDEX inputs_replies ON inputs (session_id, reply_to) WHERE reply_to IS NOT NULL;

-- What agents need from outside before their calls continue, and the answers. The data of a wait is the body of the log row `seq`, so
-- it is stored once. The statement that writes a row of the log also changes the wait.

CREATE TABLE waits (
  session_id text NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  id text NOT NULL,
  agent_id text NOT NULL,
  kind text NOT NULL,
  seq bigint NOT NULL,
  opened_at bigint NOT NULL,
  digest text NOT NULL,
  expires_at bigint,
  state text NOT NULL,
  answer text,
  PRIMARY KEY (session_id, id)
);
CREATE INDEX waits_by_state ON waits (state, opened_at, id);
CREATE INDEX waits_live ON waits (session_id, agent_id) WHERE state IN ('open', 'answered');

-- The protected files of a workspace as they were before a call. A row is written before the call starts its processes. It is removed
-- when the call ended and changed none of them, or when a person has kept the change.
CREATE TABLE baselines (
  session_id text NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  call_id text NOT NULL,
  agent_id text NOT NULL,
  epoch bigint NOT NULL,
  roots text NOT NULL,
  changed boolean NOT NULL DEFAULT false,
  PRIMARY KEY (session_id, call_id)
);

-- Every statement of a function has its own snapshot. A read after a lock therefore sees the writes of the lock's last holder.

-- Creates a member under the orchestrator's incarnation, unless the session is closed or being closed. If the team already has
-- the name, a number is added to it. The number is found by doubling and halving, so that the thousandth agent with one name does
-- not try all numbers before it.
CREATE FUNCTION planck_birth(s text, a text, wanted text, agent_type text, agent_role text, agent_spec text,
  under text, under_incarnation bigint, node text, default_max int)
RETURNS TABLE (verdict text, detail text, most int) LANGUAGE plpgsql VOLATILE AS $$
DECLARE taken int := 1; free int := 2; n int; label text := wanted; allowed int;
BEGIN
  IF EXISTS (SELECT 1 FROM agents WHERE session_id = s AND id = a) THEN
    RETURN QUERY SELECT 'known', NULL::text, 0; RETURN; END IF;
  PERFORM 1 FROM agents WHERE session_id = s AND id = under AND incarnation = under_incarnation FOR SHARE;
  IF NOT FOUND THEN RETURN QUERY SELECT 'team_dead', NULL::text, 0; RETURN; END IF;
  SELECT coalesce((spec::json #>> '{limits,max_agents}')::int, default_max) INTO allowed
    FROM sessions WHERE id = s AND state = 'open' FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN QUERY SELECT 'team_dead', NULL::text, 0; RETURN; END IF;
  IF EXISTS (SELECT 1 FROM agents WHERE session_id = s AND id = a) THEN
    RETURN QUERY SELECT 'known', NULL::text, 0; RETURN; END IF;
  UPDATE sessions SET agents = agents + 1 WHERE id = s AND agents < allowed;
  IF NOT FOUND THEN RETURN QUERY SELECT 'full', NULL::text, allowed; RETURN; END IF;
  IF EXISTS (SELECT 1 FROM agents WHERE session_id = s AND name = wanted) THEN
    WHILE EXISTS (SELECT 1 FROM agents WHERE session_id = s AND name = left(wanted, 63 - length(free::text)) || '-' || free) LOOP
      taken := free; free := 2 * free;
    END LOOP;
    WHILE free - taken > 1 LOOP
      n := (taken + free) / 2;
      IF EXISTS (SELECT 1 FROM agents WHERE session_id = s AND name = left(wanted, 63 - length(n::text)) || '-' || n)
        THEN taken := n; ELSE free := n; END IF;
    END LOOP;
    label := left(wanted, 63 - length(free::text)) || '-' || free;
  END IF;
  INSERT INTO agents (session_id, id, name, type, role, spec, node_id) VALUES (s, a, label, agent_type, agent_role, agent_spec, node);
  RETURN QUERY SELECT 'born', label, 0;
END $$;

-- Creates several agents: in one statement if none of them exists, every name is free and the session has room, otherwise one
-- after the other.
CREATE FUNCTION planck_births(s text, ids text[], names text[], types text[], roles text[], specs text[],
  under text, under_incarnation bigint, node text, default_max int)
RETURNS TABLE (n bigint, verdict text, detail text, most int) LANGUAGE plpgsql VOLATILE AS $$
DECLARE coming int := cardinality(ids); allowed int;
BEGIN
  PERFORM 1 FROM agents WHERE session_id = s AND id = under AND incarnation = under_incarnation FOR SHARE;
  IF FOUND THEN
    SELECT coalesce((spec::json #>> '{limits,max_agents}')::int, default_max) INTO allowed
      FROM sessions WHERE id = s AND state = 'open' FOR NO KEY UPDATE;
  END IF;
  IF allowed IS NOT NULL AND coming = (SELECT count(DISTINCT w) FROM unnest(names) w)
    AND NOT EXISTS (SELECT 1 FROM unnest(names) w JOIN agents a ON a.session_id = s AND a.name = w)
    AND NOT EXISTS (SELECT 1 FROM unnest(ids) w JOIN agents a ON a.session_id = s AND a.id = w) THEN
    UPDATE sessions SET agents = agents + coming WHERE id = s AND agents + coming <= allowed;
    IF FOUND THEN
      INSERT INTO agents (session_id, id, name, type, role, spec, node_id)
        SELECT s, u.*, node FROM unnest(ids, names, types, roles, specs) u;
      RETURN QUERY SELECT w.n, 'born', w.name, 0 FROM unnest(names) WITH ORDINALITY w(name, n);
      RETURN;
    END IF;
  END IF;
  RETURN QUERY SELECT u.n, b.verdict, b.detail, b.most
    FROM unnest(ids, names, types, roles, specs) WITH ORDINALITY u(id, name, type, role, spec, n),
    LATERAL planck_birth(s, u.id, u.name, u.type, u.role, u.spec, under, under_incarnation, node, default_max) b;
END $$;

-- Adds a question whose asker waits, unless a chain of waiting questions leads from the target back to the asker. A question
-- that was asked before is waited for again, which may also close a cycle.
CREATE FUNCTION planck_ask(s text, qid text, asker text, asker_epoch bigint, target text, asker_name text, q_mode text,
  q_content text, q_fresh boolean, q_output text, q_at bigint, max_depth int)
RETURNS TABLE (verdict text, detail text, path text[], node text, depth int) LANGUAGE plpgsql VOLATILE AS $$
DECLARE cycle text[]; deep int; before bigint;
BEGIN
  PERFORM 1 FROM agents WHERE session_id = s AND id IN (asker, target) ORDER BY id FOR SHARE;
  IF NOT EXISTS (SELECT 1 FROM agents WHERE session_id = s AND id = asker AND epoch = asker_epoch) THEN
    RETURN QUERY SELECT 'stale_epoch', NULL::text, NULL::text[], NULL::text, 0; RETURN; END IF;
  RETURN QUERY SELECT CASE WHEN i.agent_id = target AND i.sender = asker THEN 'known' ELSE 'taken' END, i.outcome, NULL::text[], NULL::text, 0
    FROM inputs i WHERE i.session_id = s AND i.id = qid AND (i.agent_id <> target OR i.sender IS DISTINCT FROM asker OR i.waiting OR i.outcome IS NOT NULL);
  IF FOUND THEN RETURN; END IF;
  IF NOT EXISTS (SELECT 1 FROM agents WHERE session_id = s AND id = target AND state <> 'stopped') THEN
    RETURN QUERY SELECT 'not_found', NULL::text, NULL::text[], NULL::text, 0; RETURN; END IF;
  SELECT next_seq - 1 INTO before FROM sessions WHERE id = s FOR NO KEY UPDATE;
  WITH RECURSIVE p(a, through) AS (
    SELECT target, ARRAY[target] UNION ALL
    SELECT i.agent_id, p.through || i.agent_id FROM p JOIN inputs i ON i.session_id = s AND i.sender = p.a AND i.waiting
    WHERE i.agent_id <> ALL (p.through))
  SELECT asker || p.through INTO cycle FROM p WHERE p.a = asker LIMIT 1;
  IF cycle IS NOT NULL THEN RETURN QUERY SELECT 'cycle', NULL::text, cycle, NULL::text, 0; RETURN; END IF;
  WITH RECURSIVE u(a, n) AS (
    SELECT asker, 1 UNION
    SELECT i.sender, u.n + 1 FROM u JOIN inputs i ON i.session_id = s AND i.agent_id = u.a AND i.waiting AND u.n <= max_depth)
  SELECT max(n) INTO deep FROM u;
  IF deep > max_depth THEN RETURN QUERY SELECT 'too_deep', NULL::text, NULL::text[], NULL::text, deep; RETURN; END IF;
  INSERT INTO inputs (session_id, id, agent_id, kind, mode, sender, sender_name, content, fresh, output, head, at, waiting)
  VALUES (s, qid, target, 'question', q_mode, asker, asker_name, q_content, q_fresh, q_output, before, q_at, true)
    ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    UPDATE inputs SET waiting = true WHERE session_id = s AND id = qid AND outcome IS NULL;
    RETURN QUERY SELECT 'known', i.outcome, NULL::text[], NULL::text, 0 FROM inputs i WHERE i.session_id = s AND i.id = qid;
    RETURN;
  END IF;
  RETURN QUERY SELECT 'asked', NULL::text, NULL::text[], a.node_id, 0 FROM agents a WHERE a.session_id = s AND a.id = target;
END $$;

-- Adds an input, unless its agent is stopped or an inbox is full. Inputs for one session wait for each other at the session's
-- row lock, and each statement of a function sees what was committed before it began. Concurrent inputs are therefore counted
-- correctly.
CREATE FUNCTION planck_put(s text, i text, a text, i_kind text, i_mode text, i_sender text, i_sender_name text, i_reply_to text,
  i_content text, i_fresh boolean, i_output text, i_at bigint, most_bytes bigint, most_inputs bigint, most_session_bytes bigint)
RETURNS TABLE (verdict text, head bigint, node_id text, epoch bigint, agent_bytes bigint, agent_inputs bigint, session_bytes bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE holder text; held bigint; before bigint; of_agent bigint; inputs_of_agent bigint; of_session bigint;
  size bigint := octet_length(i_content) + coalesce(octet_length(i_output), 0);
BEGIN
  SELECT node_id, epoch INTO holder, held FROM agents WHERE session_id = s AND id = a AND state <> 'stopped' FOR SHARE;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'gone', NULL::bigint, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint; RETURN; END IF;
  SELECT next_seq - 1 INTO before FROM sessions WHERE id = s FOR NO KEY UPDATE;
  SELECT coalesce(sum(u.size) FILTER (WHERE agent_id = a), 0), count(*) FILTER (WHERE agent_id = a), coalesce(sum(u.size), 0)
    INTO of_agent, inputs_of_agent, of_session
    FROM (SELECT agent_id, octet_length(content) + coalesce(octet_length(output), 0) AS size FROM inputs
      WHERE session_id = s AND outcome IS NULL AND turn IS NULL) u;
  IF of_agent + size > most_bytes OR inputs_of_agent >= most_inputs OR of_session + size > most_session_bytes THEN
    RETURN QUERY SELECT 'full', NULL::bigint, NULL::text, NULL::bigint, of_agent, inputs_of_agent, of_session; RETURN; END IF;
  INSERT INTO inputs (session_id, id, agent_id, kind, mode, sender, sender_name, reply_to, content, fresh, output, head, at)
    VALUES (s, i, a, i_kind, i_mode, i_sender, i_sender_name, i_reply_to, i_content, i_fresh, i_output, before, i_at) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'known', NULL::bigint, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint; RETURN; END IF;
  RETURN QUERY SELECT 'put', before, holder, held, NULL::bigint, NULL::bigint, NULL::bigint;
END $$;

-- A rewind ends all open work in the statement that hides it: each call without an end is interrupted, and each turn without an
-- end is aborted. If the start of a turn or a call stays visible, its end stays visible too. Both therefore always have exactly
-- one end, and no agent keeps the state of a turn that is over. Agents whose creation is hidden are stopped. An agent that continues
-- gives results to calls whose results are hidden. A stopped agent never does, so its answer with these calls is hidden too. That
-- statement searches the bodies as text, because Postgres' JSON functions fail on \u0000. A body begins with its role, and every quote
-- inside of a string has a backslash.
CREATE FUNCTION planck_rewind(s text, lead_epoch bigint, target bigint, rewound_by text, written_at bigint)
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

-- Gives a lease up. A stop for good also ends the inputs that arrived before the lock was taken, so that no asker waits for a
-- stopped agent. Otherwise a stopped agent stays stopped, and a waiting one waits on.
CREATE FUNCTION planck_release(s text, a text, held_epoch bigint, for_good boolean)
RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE holder text; now_at bigint;
BEGIN
  SELECT node_id, epoch INTO holder, now_at FROM agents WHERE session_id = s AND id = a FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN 'not_found'; END IF;
  IF now_at = held_epoch + 1 AND holder IS NULL THEN RETURN 'released'; END IF;
  IF now_at <> held_epoch THEN RETURN 'stale_epoch'; END IF;
  UPDATE agents SET node_id = NULL, epoch = epoch + 1,
      state = CASE WHEN for_good THEN 'stopped' WHEN state IN ('stopped', 'waiting') THEN state ELSE 'idle' END
    WHERE session_id = s AND id = a;
  IF for_good THEN
    UPDATE inputs SET outcome = 'stopped', waiting = false WHERE session_id = s AND agent_id = a AND outcome IS NULL;
  END IF;
  RETURN 'released';
END $$;

CREATE FUNCTION planck_delete(s text, OUT verdict text, OUT agents_gone bigint, OUT rows_gone bigint, OUT inputs_gone bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE stands text;
BEGIN
  PERFORM 1 FROM agents WHERE session_id = s ORDER BY id FOR UPDATE;
  SELECT state INTO stands FROM sessions WHERE id = s FOR UPDATE;
  IF NOT FOUND THEN verdict := 'not_found'; RETURN; END IF;
  IF stands <> 'closed' THEN verdict := 'open'; RETURN; END IF;
  DELETE FROM inputs WHERE session_id = s; GET DIAGNOSTICS inputs_gone = ROW_COUNT;
  DELETE FROM log WHERE session_id = s; GET DIAGNOSTICS rows_gone = ROW_COUNT;
  DELETE FROM agents WHERE session_id = s; GET DIAGNOSTICS agents_gone = ROW_COUNT;
  DELETE FROM sessions WHERE id = s;
  verdict := 'deleted';
END $$;

-- The trigger drops every \u escape of the body, because Postgres' JSON functions fail on \u0000. The fields that it reads are ASCII.
CREATE FUNCTION planck_wait() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE written json;
BEGIN
  IF NEW.kind = 'rewound' THEN
    UPDATE waits SET state = 'withdrawn' WHERE session_id = NEW.session_id AND state IN ('open', 'answered');
    RETURN NULL;
  END IF;
  written := regexp_replace(NEW.body, '(\\[^u])|\\u[0-9A-Fa-f]{4}', '\1', 'g');
  IF NEW.kind = 'wait_opened' THEN
    INSERT INTO waits (session_id, id, agent_id, kind, seq, opened_at, digest, expires_at, state)
      VALUES (NEW.session_id, written ->> 'id', NEW.agent_id, written ->> 'kind', NEW.seq, NEW.at, written ->> 'digest',
        extract(epoch FROM (written ->> 'expires_at')::timestamptz) * 1000, 'open')
      ON CONFLICT (session_id, id) DO UPDATE SET agent_id = excluded.agent_id, kind = excluded.kind, seq = excluded.seq,
        opened_at = excluded.opened_at, digest = excluded.digest, expires_at = excluded.expires_at, state = 'open', answer = NULL;
  ELSE
    UPDATE waits SET state = CASE WHEN written ->> 'decision' = 'withdrawn' THEN 'withdrawn' ELSE 'closed' END
      WHERE session_id = NEW.session_id AND id = written ->> 'id' AND agent_id = NEW.agent_id AND state IN ('open', 'answered');
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER log_waits AFTER INSERT ON log FOR EACH ROW WHEN (NEW.kind IN ('wait_opened', 'wait_closed', 'rewound'))
  EXECUTE FUNCTION planck_wait();
