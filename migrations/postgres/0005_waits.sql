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

-- A release leaves a waiting agent waiting, so that a node of an earlier version does not take the agent and run calls that nobody
-- allowed.
CREATE OR REPLACE FUNCTION planck_release(s text, a text, held_epoch bigint, for_good boolean)
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
