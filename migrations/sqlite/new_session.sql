-- Adds a new session to `index.db` with one statement: the session in the state `new`, its agents, the lease of their node, and its
-- first prompt. `agents` is a JSON array of ids, and `inputs` one of pairs: input, agent. Nothing is added if the session or its name
-- is known.
--
-- The view and its trigger are temporary: each connection to the index creates them. They are therefore no part of the file's schema.

CREATE TEMP VIEW new_session AS SELECT NULL AS id, NULL AS name, NULL AS created_at, NULL AS agents, NULL AS node_id, NULL AS inputs,
  NULL AS at;

CREATE TEMP TRIGGER new_session_added INSTEAD OF INSERT ON new_session BEGIN
  SELECT RAISE(ABORT, 'known') FROM sessions WHERE id = NEW.id OR name = NEW.name;
  INSERT INTO sessions (id, name, state, created_at, changed_at) VALUES (NEW.id, NEW.name, 'new', NEW.created_at, NEW.created_at);
  INSERT OR IGNORE INTO agents (id, session_id) SELECT value, NEW.id FROM json_each(NEW.agents);
  INSERT OR IGNORE INTO leases (node_id, session_id) SELECT NEW.node_id, NEW.id WHERE NEW.node_id IS NOT NULL;
  INSERT OR IGNORE INTO pending (session_id, input_id, agent_id, at)
    SELECT NEW.id, value->>0, value->>1, NEW.at FROM json_each(NEW.inputs);
END;
