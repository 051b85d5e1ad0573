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
