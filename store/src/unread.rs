//! The bounds of inboxes, which keep unread inputs from filling the store and the memory of the
//! node that reads them.

use super::StoreError;

/// The maximum amounts of unread inputs in the inboxes of a session. Only
/// [`Inbox::put`](super::Inbox::put) refuses an input because of them. Questions and the puts of a
/// batch are not limited, but count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboxBounds {
    /// The maximum number of unread bytes of one agent.
    pub agent_bytes: i64,
    /// The maximum number of unread inputs of one agent.
    pub agent_inputs: i64,
    /// The maximum number of unread bytes of all agents of a session.
    pub session_bytes: i64,
}

impl InboxBounds {
    /// No bounds, for the inputs with which a session is created.
    pub(super) const NONE: Self = Self {
        agent_bytes: i64::MAX,
        agent_inputs: i64::MAX,
        session_bytes: i64::MAX,
    };
}

impl Default for InboxBounds {
    fn default() -> Self {
        Self {
            agent_bytes: 64 << 20,
            agent_inputs: 10_000,
            session_bytes: 256 << 20,
        }
    }
}

/// The amount of unread inputs before an input is put. It only explains a refusal, because
/// the statement that puts the input counts on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unread {
    pub agent_bytes: i64,
    pub agent_inputs: i64,
    pub session_bytes: i64,
}

impl Unread {
    /// Returns an error if an input of this size would exceed the bounds.
    pub fn check(self, bytes: usize, bounds: &InboxBounds) -> Result<(), StoreError> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let full = |what: String| {
            Err(StoreError::Limit(format!(
                "{what}; try again when they were read"
            )))
        };
        if self.agent_inputs >= bounds.agent_inputs {
            return full(format!(
                "the agent has {} unread inputs, as many as may wait",
                self.agent_inputs
            ));
        }
        if self.agent_bytes.saturating_add(bytes) > bounds.agent_bytes {
            let most = size(bounds.agent_bytes);
            return full(format!(
                "the agent has unread inputs of {} bytes, and {most} may wait",
                self.agent_bytes
            ));
        }
        if self.session_bytes.saturating_add(bytes) > bounds.session_bytes {
            let most = size(bounds.session_bytes);
            return full(format!(
                "the session has unread inputs of {} bytes, and {most} may wait",
                self.session_bytes
            ));
        }
        Ok(())
    }
}

fn size(bytes: i64) -> String {
    if bytes & 0xf_ffff == 0 {
        format!("{} MiB", bytes >> 20)
    } else {
        format!("{bytes} bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_bound() {
        let bounds = InboxBounds::default();
        let InboxBounds {
            agent_bytes,
            agent_inputs,
            session_bytes,
        } = bounds;
        let unread = |agent_bytes, agent_inputs, session_bytes| Unread {
            agent_bytes,
            agent_inputs,
            session_bytes,
        };
        assert!(
            unread(agent_bytes - 10, agent_inputs - 1, session_bytes - 10)
                .check(10, &bounds)
                .is_ok()
        );
        for (unread, bound) in [
            (
                unread(agent_bytes - 9, 0, 0),
                "the agent has unread inputs of",
            ),
            (unread(0, agent_inputs, 0), "10000 unread inputs"),
            (
                unread(0, 0, session_bytes - 9),
                "the session has unread inputs",
            ),
            (unread(i64::MAX, 0, 0), "64 MiB may wait"),
        ] {
            let refused = unread.check(10, &bounds).unwrap_err();
            assert!(
                matches!(&refused, StoreError::Limit(text) if text.contains(bound)),
                "{refused}"
            );
        }
        let odd = InboxBounds {
            agent_bytes: 1_000,
            ..bounds
        };
        assert!(
            unread(991, 0, 0)
                .check(10, &odd)
                .unwrap_err()
                .to_string()
                .contains("1000 bytes may wait")
        );
    }
}
