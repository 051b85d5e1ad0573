//! How much may wait in inboxes: what nobody reads must not fill the store, nor the memory of the node that reads it at last.

use super::StoreError;

/// Unread bytes of one agent.
const AGENT_BYTES: i64 = 64 << 20;
/// Unread inputs of one agent.
const AGENT_INPUTS: i64 = 10_000;
/// Unread bytes of all agents of a session.
const SESSION_BYTES: i64 = 256 << 20;

/// What waits before an input is put. Inputs that are put at the same moment do not see each other, so the bounds may be
/// exceeded by what a node takes in at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unread {
    pub agent_bytes: i64,
    pub agent_inputs: i64,
    pub session_bytes: i64,
}

impl Unread {
    /// Whether an input of so many bytes may be put beside it.
    pub fn check(self, bytes: usize) -> Result<(), StoreError> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let full = |what: String| Err(StoreError::Limit(format!("{what}; try again when they were read")));
        if self.agent_inputs >= AGENT_INPUTS {
            return full(format!("the agent has {} unread inputs, as many as may wait", self.agent_inputs));
        }
        if self.agent_bytes.saturating_add(bytes) > AGENT_BYTES {
            let most = AGENT_BYTES >> 20;
            return full(format!("the agent has unread inputs of {} bytes, and {most} MiB may wait", self.agent_bytes));
        }
        if self.session_bytes.saturating_add(bytes) > SESSION_BYTES {
            let most = SESSION_BYTES >> 20;
            return full(format!("the session has unread inputs of {} bytes, and {most} MiB may wait", self.session_bytes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_is_told() {
        let unread = |agent_bytes, agent_inputs, session_bytes| Unread { agent_bytes, agent_inputs, session_bytes };
        assert!(unread(AGENT_BYTES - 10, AGENT_INPUTS - 1, SESSION_BYTES - 10).check(10).is_ok());
        for (unread, told) in [
            (unread(AGENT_BYTES - 9, 0, 0), "the agent has unread inputs of"),
            (unread(0, AGENT_INPUTS, 0), "10000 unread inputs"),
            (unread(0, 0, SESSION_BYTES - 9), "the session has unread inputs"),
            (unread(i64::MAX, 0, 0), "64 MiB may wait"),
        ] {
            let refused = unread.check(10).unwrap_err();
            assert!(matches!(&refused, StoreError::Limit(text) if text.contains(told)), "{refused}");
        }
    }
}
