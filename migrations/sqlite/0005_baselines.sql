-- The protected files of a workspace as they were before a call. A row is written before the call starts its processes. It is removed
-- when the call ended and changed none of them, or when a person has kept the change.

CREATE TABLE baselines (
  call_id TEXT PRIMARY KEY,
  agent_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  roots TEXT NOT NULL,
  changed INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
