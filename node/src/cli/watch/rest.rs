//! Finds out when a session has finished all the work that a prompt caused, or when it only waits for
//! answers from outside.

use std::time::Duration;

use planck_common::{
    Seq, SessionId,
    command::{AgentState, Snapshot},
};
use tokio::time::{Instant, sleep_until};

use crate::client::Client;

/// The pause between two questions whether the session is at rest.
pub const ASK_AGAIN: Duration = Duration::from_millis(200);
/// The pause between two questions whether agents do nothing but wait.
pub const ASK_WAITING: Duration = Duration::from_secs(1);

/// The tool whose calls end only when another agent has answered.
const ASKS_AN_AGENT: &str = "ask_agent";

/// What the agents of a session do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionRest {
    Working,
    /// No agent works, and an agent waits for an answer from outside.
    Waiting,
    /// No agent works or has unread input.
    Over,
}

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
    /// The head of the log at the last check that found that agents only wait.
    waiting_at: Option<Seq>,
    /// The pause between questions, or `None` while there is nothing to ask.
    pace: Option<Duration>,
    /// The time of the next question, or `None` while there is nothing to ask.
    due: Option<Instant>,
}

impl RestCheck {
    /// Records that an event was shown, and how often to ask from now on: not at all while a turn is
    /// known to be open and does not wait, and before the prompt's turn has ended.
    pub fn seen(&mut self, seq: Option<Seq>, pace: Option<Duration>) {
        self.seen = self.seen.max(seq.unwrap_or_default());
        let has_caught_up = self.head.take_if(|head| *head <= self.seen).is_some();
        self.pace = pace;
        if pace.is_none() {
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

    /// Returns what the agents do. The session is over only if all its events were shown, apart from
    /// lost ones. It waits only if a second check finds so at the same head, because between two
    /// steps of its work an agent may look like one that waits. Also schedules the next question.
    pub async fn look(
        &mut self,
        client: &Client,
        session: &SessionId,
    ) -> anyhow::Result<SessionRest> {
        self.due = self.pace.map(|pace| Instant::now() + pace);
        let found = look(client, session).await?;
        // The head is read after the states of the agents, so it includes all events from before
        // they became idle.
        let head = match found {
            SessionRest::Working => None,
            SessionRest::Waiting | SessionRest::Over => Some(client.session(session).await?.head),
        };
        Ok(match (found, head) {
            (SessionRest::Over, Some(head)) if self.is_shown(head) => SessionRest::Over,
            (SessionRest::Waiting, Some(head)) if self.waiting_at.replace(head) == Some(head) => {
                SessionRest::Waiting
            }
            (SessionRest::Working | SessionRest::Waiting | SessionRest::Over, _) => {
                SessionRest::Working
            }
        })
    }

    /// Records the head of the log, and returns whether all events up to `head` were shown. If the
    /// previous call had the same `head`, returns `true` in any case, so that a lost event does not
    /// block the user.
    fn is_shown(&mut self, head: Seq) -> bool {
        let is_second = self.head.replace(head) == Some(head);
        head <= self.seen || is_second
    }
}

async fn look(client: &Client, session: &SessionId) -> anyhow::Result<SessionRest> {
    let mut standings = Vec::new();
    for agent in client.session(session).await?.agents {
        let standing = match agent.state {
            AgentState::Stopped => Standing::AtRest,
            AgentState::Idle
            | AgentState::Streaming
            | AgentState::ExecutingTools
            | AgentState::Waiting
            | AgentState::Compacting => {
                let info = client.agent(&agent.id).await?;
                Standing::of(info.state, info.queued)
            }
        };
        let standing = match standing == Standing::UsesTools {
            true => Standing::by_tools(&client.snapshot(&agent.id).await?),
            false => standing,
        };
        if standing == Standing::Works {
            return Ok(SessionRest::Working);
        }
        standings.push(standing);
    }
    Ok(together(&standings))
}

/// What an agent does, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Works,
    UsesTools,
    /// Its only running calls ask other agents, so it continues when they do.
    AsksAgents,
    Waits,
    AtRest,
}

impl Standing {
    fn of(state: AgentState, queued: usize) -> Self {
        match state {
            AgentState::Stopped => Self::AtRest,
            AgentState::Idle if queued == 0 => Self::AtRest,
            AgentState::Waiting => Self::Waits,
            AgentState::ExecutingTools => Self::UsesTools,
            AgentState::Idle | AgentState::Streaming | AgentState::Compacting => Self::Works,
        }
    }

    fn by_tools(snapshot: &Snapshot) -> Self {
        let running = snapshot.running.as_ref();
        let asks = running.is_some_and(|running| {
            let mut tools = running.tools.iter();
            !running.tools.is_empty() && tools.all(|tool| tool.name == ASKS_AN_AGENT)
        });
        if asks { Self::AsksAgents } else { Self::Works }
    }
}

fn together(standings: &[Standing]) -> SessionRest {
    let is_any = |wanted: Standing| standings.contains(&wanted);
    match (
        is_any(Standing::Works) || is_any(Standing::UsesTools),
        is_any(Standing::Waits),
    ) {
        (true, _) => SessionRest::Working,
        (false, true) => SessionRest::Waiting,
        // An answer is on its way to the agent that asked.
        (false, false) if is_any(Standing::AsksAgents) => SessionRest::Working,
        (false, false) => SessionRest::Over,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_is_due_as_soon_as_no_turn_is_open() {
        let mut rest = RestCheck::default();
        rest.seen(Some(1), None);
        assert_eq!(rest.due, None);
        rest.seen(Some(2), Some(ASK_AGAIN));
        assert!(rest.due.is_some_and(|due| due <= Instant::now()));
        rest.seen(Some(3), None);
        assert_eq!(rest.due, None);
    }

    #[test]
    fn events_up_to_the_head_are_awaited() {
        let mut rest = RestCheck::default();
        rest.seen(Some(2), Some(ASK_AGAIN));
        assert!(!rest.is_shown(4));
        let later = Instant::now() + ASK_AGAIN;
        rest.due = Some(later);
        rest.seen(Some(3), Some(ASK_AGAIN));
        assert_eq!(rest.due, Some(later));
        rest.seen(Some(4), Some(ASK_AGAIN));
        assert!(rest.due.is_some_and(|due| due <= Instant::now()));
        assert!(rest.is_shown(4));
    }

    #[test]
    fn event_that_never_arrives_holds_nothing_up() {
        let mut rest = RestCheck::default();
        rest.seen(Some(2), Some(ASK_AGAIN));
        assert!(!rest.is_shown(4));
        assert!(rest.is_shown(4));
    }

    #[test]
    fn session_waits_if_nothing_else_can_happen() {
        use Standing::{AsksAgents, AtRest, UsesTools, Waits, Works};
        for (standings, rest) in [
            (&[][..], SessionRest::Over),
            (&[AtRest, AtRest], SessionRest::Over),
            (&[AtRest, Waits], SessionRest::Waiting),
            (&[AsksAgents, Waits], SessionRest::Waiting),
            (&[AsksAgents, AtRest], SessionRest::Working),
            (&[Works, Waits], SessionRest::Working),
            (&[UsesTools, Waits], SessionRest::Working),
        ] {
            assert_eq!(together(standings), rest, "{standings:?}");
        }
        for (state, queued, standing) in [
            (AgentState::Idle, 0, AtRest),
            (AgentState::Idle, 1, Works),
            (AgentState::Waiting, 2, Waits),
            (AgentState::Compacting, 0, Works),
            (AgentState::ExecutingTools, 0, UsesTools),
            (AgentState::Stopped, 1, AtRest),
        ] {
            assert_eq!(Standing::of(state, queued), standing, "{state:?} {queued}");
        }
    }
}
