//! Finds out when a session has finished all the work that a prompt caused.

use std::time::Duration;

use planck_common::{Seq, SessionId, command::AgentState};
use tokio::time::{Instant, sleep_until};

use crate::client::Client;

/// The pause before a session that was still working is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Decides when to ask whether the session is at rest: at once when the last known turn has ended,
/// and again at intervals while another agent works, because that agent's events may be lost or
/// late.
#[derive(Debug, Default)]
pub struct RestCheck {
    /// The sequence number of the latest event that was shown.
    seen: Seq,
    /// The end of the log when all agents were at rest, if it was not shown completely then.
    head: Option<Seq>,
    /// The time of the next question, or `None` while a turn is known to be open.
    due: Option<Instant>,
}

impl RestCheck {
    /// Records that an event was shown. If `at_rest` is true, no turn is known to be open.
    pub fn seen(&mut self, seq: Option<Seq>, at_rest: bool) {
        self.seen = self.seen.max(seq.unwrap_or_default());
        let has_caught_up = self.head.take_if(|head| *head <= self.seen).is_some();
        if !at_rest {
            self.due = None;
        } else if self.due.is_none() || has_caught_up {
            self.due = Some(Instant::now());
        }
    }

    /// Waits until it is time to ask.
    pub async fn is_due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Returns whether no agent of the session is working or has unread input, and all events of
    /// the session were shown.
    pub async fn is_over(&mut self, client: &Client, session: &SessionId) -> anyhow::Result<bool> {
        self.due = Some(Instant::now() + ASK_AGAIN);
        for agent in client.session(session).await?.agents {
            if agent.state == AgentState::Stopped {
                continue;
            }
            let info = client.agent(&agent.id).await?;
            if info.state != AgentState::Idle || info.queued > 0 {
                return Ok(false);
            }
        }
        // The log is read after the agents, so it contains all that they did until they rested.
        Ok(self.is_shown(client.session(session).await?.head))
    }

    /// Returns whether all events up to `head`, the end of the log, were shown. If the previous
    /// call had the same `head`, returns `true` in any case, so that a lost event does not block
    /// the user.
    fn is_shown(&mut self, head: Seq) -> bool {
        let is_second = self.head.replace(head) == Some(head);
        head <= self.seen || is_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_is_due_as_soon_as_no_turn_is_open() {
        let mut rest = RestCheck::default();
        rest.seen(Some(1), false);
        assert_eq!(rest.due, None);
        rest.seen(Some(2), true);
        assert!(rest.due.is_some_and(|due| due <= Instant::now()));
        rest.seen(Some(3), false);
        assert_eq!(rest.due, None);
    }

    #[test]
    fn events_up_to_the_head_are_awaited() {
        let mut rest = RestCheck::default();
        rest.seen(Some(2), true);
        assert!(!rest.is_shown(4));
        let later = Instant::now() + ASK_AGAIN;
        rest.due = Some(later);
        rest.seen(Some(3), true);
        assert_eq!(rest.due, Some(later));
        rest.seen(Some(4), true);
        assert!(rest.due.is_some_and(|due| due <= Instant::now()));
        assert!(rest.is_shown(4));
    }

    #[test]
    fn event_that_never_arrives_holds_nothing_up() {
        let mut rest = RestCheck::default();
        rest.seen(Some(2), true);
        assert!(!rest.is_shown(4));
        assert!(rest.is_shown(4));
    }
}
