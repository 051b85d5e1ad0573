-- A release leaves a stopped agent stopped. Before, it made such an agent idle unless it was a release for good, so that a worker
-- whose node died between its last save and its release could start again when its session was opened.

CREATE OR REPLACE FUNCTION planck_release(s text, a text, held_epoch bigint, for_good boolean)
RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE holder text; now_at bigint;
BEGIN
  SELECT node_id, epoch INTO holder, now_at FROM agents WHERE session_id = s AND id = a FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN 'not_found'; END IF;
  IF now_at = held_epoch + 1 AND holder IS NULL THEN RETURN 'released'; END IF;
  IF now_at <> held_epoch THEN RETURN 'stale_epoch'; END IF;
  UPDATE agents SET node_id = NULL, epoch = epoch + 1,
      state = CASE WHEN for_good OR state = 'stopped' THEN 'stopped' ELSE 'idle' END
    WHERE session_id = s AND id = a;
  IF for_good THEN
    UPDATE inputs SET outcome = 'stopped', waiting = false WHERE session_id = s AND agent_id = a AND outcome IS NULL;
  END IF;
  RETURN 'released';
END $$;
