//! The events of a session for a reader of a turn or of the work of a prompt, and the news that the
//! work is over.

use std::time::Duration;

use planck_client::{AwaitedOutcome, Client, ClientError, READER_LATE, turn::TurnReader};
use planck_common::{
    Seq, SessionId,
    command::{Outcome, WorkState},
    reply::Code,
};

use crate::{
    feed::{Cursor, FeedItem},
    front::Front,
    problem::Problem,
};

/// The next news for the reader.
pub enum Next {
    Item(FeedItem),
    /// The work is over. There is no outcome if no node can tell it.
    Over(Option<Box<Outcome>>),
}

/// The place of a reader in the events. While the reader is between two turns, one request for the
/// outcome of the prompt is open.
pub struct TurnSource {
    cursor: Cursor,
    client: Client,
    session: SessionId,
    work: Option<AwaitedOutcome>,
}

impl TurnSource {
    /// Opens the events of a session after the number `sent`. The log has at least `least` events.
    pub async fn open(
        front: &Front,
        session: &SessionId,
        sent: Seq,
        least: Seq,
    ) -> Result<Self, Problem> {
        let (client, feed) = (front.client().clone(), front.feed(session));
        Ok(Self {
            cursor: Cursor::in_log(sent, least, client.clone(), feed).await?,
            client,
            session: session.clone(),
            work: None,
        })
    }

    /// Waits for what is next. The method is cancel safe.
    pub async fn next(&mut self, reader: &TurnReader) -> Result<Next, Problem> {
        let (work, client, session) = (&mut self.work, &self.client, &self.session);
        tokio::select! {
            biased;
            over = AwaitedOutcome::of_reader(work, client, session, reader) => {
                Ok(Next::Over(over.map(Box::new)))
            }
            item = self.cursor.next() => item.map(Next::Item),
        }
    }

    /// Asks whether the work is over by now, if the reader is between two turns. Returns whether it
    /// is.
    pub async fn is_over(&mut self, reader: &TurnReader) -> Result<bool, ClientError> {
        let Some(prompt) = reader.awaited() else {
            return Ok(false);
        };
        if self
            .work
            .as_ref()
            .is_some_and(|work| work.known().is_some())
        {
            return Ok(true);
        }
        let asked = self.client.outcome(&self.session, prompt, Duration::ZERO);
        let over = match asked.await {
            Ok(outcome) if outcome.state == WorkState::Over => Ok(outcome),
            Ok(_) => return Ok(false),
            Err(error) if is_final(&error) => Err(error),
            Err(error) => return Err(error),
        };
        self.work = Some(AwaitedOutcome::new(std::future::ready(over), READER_LATE));
        Ok(true)
    }

    /// Records that the reader has all that it wants and will not connect again.
    pub fn done(&mut self) {
        self.cursor.done();
    }
}

/// Returns whether asking again cannot help, because the session has no such prompt any more or the
/// front may not ask.
fn is_final(error: &ClientError) -> bool {
    match error {
        ClientError::Refused(refusal) => matches!(
            refusal.code,
            Code::BadRequest | Code::NotFound | Code::Denied
        ),
        ClientError::Unreachable(_) | ClientError::Malformed { .. } => false,
    }
}
