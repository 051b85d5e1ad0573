//! Finds out when a session has finished all the work that a prompt caused.

use std::time::Duration;

use planck_common::{Seq, SessionId, command::AgentState};
use tokio::time::{Instant, sleep_until};

use crate::client::Client;

/// The pause between two questions whether the session is at rest.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// The state that decides when to ask whether the session is at rest. The first question is due
/// when the last known turn has ended. Further questions follow at intervals until the session is
/// at rest, because events of an agent that still works may be lost or late.
#[derive(Debug, Default)]
pub struct RestCheck {
    /// The sequence number of the latest event that was shown.
    seen: Seq,
    /// The head of the log at the last check that found no agent at work, or `None` before such a
    /// check and after all events up to that head were shown.
    head: Option<Seq>,
    /// The time of the next question, or `None` while a turn is known to be open and before the
    /// prompt's turn has ended.
    due: Option<Instant>,
}

impl RestCheck {
    /// Records that an event was shown. If `at_rest` is true, the prompt's turn has ended and no
    /// turn is known to be open.
    pub fn seen(&mut self, seq: Option<Seq>, at_rest: bool) {
        self.seen = self.seen.max(seq.unwrap_or_default());
        let has_caught_up = self.head.take_if(|head| *head <= self.seen).is_some();
        if !at_rest {
            self.due = None;
        } else if self.due.is_none() || has_caught_up {
            self.due = Some(Instant::now());
        }
    }

    /// Waits until the next question is due.
    pub async fn is_due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Returns whether no agent of the session is working or has unread input, and all events of
    /// the session were shown, apart from lost ones. Also schedules the next question.
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
        // The head is read after the states of the agents, so it includes all events from before
        // they became idle.
        Ok(self.is_shown(client.session(session).await?.head))
    }

    /// Records the head of the log, and returns whether all events up to `head` were shown. If the
    /// previous call had the same `head`, returns `true` in any case, so that a lost event does not
    /// block the user.
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
