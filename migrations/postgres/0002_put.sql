-- Adds an input, unless its agent is stopped or an inbox is full. Inputs for one session wait for each other at the session's
-- row lock, and each statement of a function sees what was committed before it began. Concurrent inputs are therefore counted
-- correctly.
CREATE FUNCTION planck_put(s text, i text, a text, i_kind text, i_mode text, i_sender text, i_sender_name text, i_reply_to text,
  i_content text, i_fresh boolean, i_at bigint, most_bytes bigint, most_inputs bigint, most_session_bytes bigint)
RETURNS TABLE (verdict text, head bigint, node_id text, epoch bigint, agent_bytes bigint, agent_inputs bigint, session_bytes bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE holder text; held bigint; before bigint; of_agent bigint; inputs_of_agent bigint; of_session bigint;
  size bigint := octet_length(i_content);
BEGIN
  SELECT node_id, epoch INTO holder, held FROM agents WHERE session_id = s AND id = a AND state <> 'stopped' FOR SHARE;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'gone', NULL::bigint, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint; RETURN; END IF;
  SELECT next_seq - 1 INTO before FROM sessions WHERE id = s FOR NO KEY UPDATE;
  SELECT coalesce(sum(octet_length(content)) FILTER (WHERE agent_id = a), 0), count(*) FILTER (WHERE agent_id = a),
      coalesce(sum(octet_length(content)), 0)
    INTO of_agent, inputs_of_agent, of_session FROM inputs WHERE session_id = s AND outcome IS NULL AND turn IS NULL;
  IF of_agent + size > most_bytes OR inputs_of_agent >= most_inputs OR of_session + size > most_session_bytes THEN
    RETURN QUERY SELECT 'full', NULL::bigint, NULL::text, NULL::bigint, of_agent, inputs_of_agent, of_session; RETURN; END IF;
  INSERT INTO inputs (session_id, id, agent_id, kind, mode, sender, sender_name, reply_to, content, fresh, head, at)
    VALUES (s, i, a, i_kind, i_mode, i_sender, i_sender_name, i_reply_to, i_content, i_fresh, before, i_at) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'known', NULL::bigint, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint; RETURN; END IF;
  RETURN QUERY SELECT 'put', before, holder, held, NULL::bigint, NULL::bigint, NULL::bigint;
END $$;
