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
