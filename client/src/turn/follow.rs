//! A turn, or all turns of the work of a prompt, read from a follower of the session.

use std::{collections::VecDeque, fmt};

use planck_common::{
    AgentId, Seq, SessionId,
    command::{Accepted, SessionInfo},
};

use super::{TurnChoice, TurnEvent, TurnReader, Until};
use crate::{AwaitedOutcome, Client, ClientError, Follow};

/// The turns with which an agent answers, while they happen or from the log.
/// [`Client::follow_prompt`] opens them for a prompt.
///
/// Pieces of text are returned as the model sends them. If a node dies, or a request is tried again,
/// [`TurnEvent::StepReset`] says that they are void. The last event is [`TurnEvent::Ended`] or
/// [`TurnEvent::Failed`].
pub struct Turn {
    client: Client,
    session: SessionId,
    follow: Follow,
    /// The outcome of the work, which is asked for between two turns.
    work: Option<AwaitedOutcome>,
    reader: TurnReader,
    queue: VecDeque<TurnEvent>,
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("session", &self.session)
            .field("reader", &self.reader)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Follows the turns of the agent that answers a prompt, until the work is over that the prompt
    /// caused. `accepted` is the reply to the prompt.
    ///
    /// ```no_run
    /// use planck_client::turn::TurnEvent;
    ///
    /// # async fn run(client: planck_client::Client) -> Result<(), planck_client::ClientError> {
    /// let accepted = client.prompt("bold-oak", "Build a tool that counts words.").await?;
    /// let mut turn = client.follow_prompt(&accepted).await?;
    /// while let Some(event) = turn.next().await? {
    ///     match event {
    ///         TurnEvent::Text { text, .. } => print!("{text}"),
    ///         TurnEvent::StepReset => println!("\n(the model answers again)"),
    ///         TurnEvent::ToolCalled { name, args, .. } => println!("\n{name} {args}"),
    ///         TurnEvent::Failed { reason, .. } => println!("\nfailed: {reason}"),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same errors as [`session`](Self::session) and [`follow`](Self::follow).
    pub async fn follow_prompt(&self, accepted: &Accepted) -> Result<Turn, ClientError> {
        let session = self.session(&accepted.session_id).await?;
        let choice = TurnChoice::Of(accepted.prompt_id.clone());
        let (agent, from) = (&accepted.agent_id, accepted.seq + 1);
        Turn::open(self, &session, agent, choice, from, Until::Work).await
    }
}

impl Turn {
    /// Opens a turn of an agent of a session. `from` is a place in the log at or before the turn's
    /// first event: after a prompt it is `seq + 1` of the reply.
    ///
    /// # Errors
    ///
    /// The same errors as [`Client::follow`].
    pub async fn open(
        client: &Client,
        session: &SessionInfo,
        agent: &AgentId,
        choice: TurnChoice,
        from: Seq,
        until: Until,
    ) -> Result<Self, ClientError> {
        let names = session.agents.iter();
        let names = names.map(|agent| (agent.id.clone(), agent.name.clone()));
        let reader = TurnReader::new(agent.clone(), choice).until(until);
        Ok(Self {
            follow: client.follow(&session.id, from).await?,
            client: client.clone(),
            session: session.id.clone(),
            work: None,
            reader: reader.with_names(names),
            queue: VecDeque::new(),
        })
    }

    /// Waits for the next event without a time limit. Returns `None` after the end. The method is
    /// cancel safe: dropping the future loses no event.
    ///
    /// # Errors
    ///
    /// The same errors as [`Follow::next`].
    pub async fn next(&mut self) -> Result<Option<TurnEvent>, ClientError> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Ok(Some(event));
            }
            if self.reader.is_over() {
                return Ok(None);
            }
            let Self {
                client,
                session,
                work,
                ..
            } = self;
            let events = tokio::select! {
                biased;
                over = AwaitedOutcome::of_reader(work, client, session, &self.reader) => {
                    self.reader.over(over.as_ref())
                }
                event = self.follow.next() => self.reader.take(&event?),
            };
            self.queue.extend(events);
        }
    }
}
