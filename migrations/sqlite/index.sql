-- An index that leads from names, agents and nodes to session files. The files are authoritative.

CREATE TABLE store (
  only INTEGER PRIMARY KEY CHECK (only = 1),
  id TEXT NOT NULL
);

-- `state` follows the state in the file with a short delay. It is `new` until the file holds the session.
CREATE TABLE sessions (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  state TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  changed_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX sessions_by_age ON sessions (created_at, id);

CREATE TABLE agents (
  id TEXT PRIMARY KEY,
  session_id TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX agents_of_session ON agents (session_id);

-- A row is written before a lease is taken, and removed by a sweep that finds no lease.
CREATE TABLE leases (
  node_id TEXT NOT NULL,
  session_id TEXT NOT NULL,
  PRIMARY KEY (node_id, session_id)
) WITHOUT ROWID;

-- A row is written before an input, and removed after the input was consumed or by a sweep that finds it gone.
CREATE TABLE pending (
  session_id TEXT NOT NULL,
  input_id TEXT NOT NULL,
  agent_id TEXT NOT NULL,
  at INTEGER NOT NULL,
  PRIMARY KEY (session_id, input_id)
) WITHOUT ROWID;

-- A row is written before the append that opens the wait. `due` is when a sweep has to look at the wait in the session's file: 0 after
-- an answer, and null once the wait has ended. `at` is the time of the latest announcement of a change of the file. Each announcement
-- raises `at`, so that a sweep which looked before the change does not put `due` off.
CREATE TABLE waits (
  session_id TEXT NOT NULL,
  id TEXT NOT NULL,
  opened_at INTEGER NOT NULL,
  at INTEGER NOT NULL,
  due INTEGER,
  PRIMARY KEY (session_id, id)
) WITHOUT ROWID;
CREATE INDEX waits_by_age ON waits (opened_at, id);
CREATE INDEX waits_live ON waits (opened_at, id, due) WHERE due IS NOT NULL;
