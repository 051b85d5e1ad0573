//! The events of a session for a reader of a turn or of the work of a prompt, and the news that the
//! work is over.

use std::{future::Future, pin::Pin, time::Duration};

use planck_client::{Client, ClientError};
use planck_common::{
    InputId, Seq, SessionId,
    command::{Outcome, WorkState},
    reply::Code,
};
use tokio::time::{Instant, sleep, sleep_until};

use super::TurnReader;
use crate::{
    feed::{Cursor, FeedItem},
    front::Front,
    problem::Problem,
};

/// How long each request for the outcome waits.
const WAIT: Duration = Duration::from_secs(15);
/// The pause between two requests. If the work itself waits, for example for a person, each request
/// is answered at once.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_WAITING: Duration = Duration::from_secs(5);
/// How long the events may take that the log has when the work is over.
const LATE: Duration = Duration::from_secs(20);

/// The next news for the reader.
pub enum Next {
    Item(FeedItem),
    /// The work is over. There is no outcome if no node can tell it.
    Over(Option<Box<Outcome>>),
}

type Asking = Pin<Box<dyn Future<Output = Option<Outcome>> + Send>>;

/// The place of a reader in the events. While the reader is between two turns, one request for the
/// outcome of the prompt is open.
pub struct TurnSource {
    cursor: Cursor,
    client: Client,
    session: SessionId,
    asking: Option<Asking>,
    over: Option<KnownOver>,
}

/// That the work is over, and until when its events are waited for.
struct KnownOver {
    outcome: Option<Box<Outcome>>,
    until: Instant,
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
            asking: None,
            over: None,
        })
    }

    /// Waits for what is next. The method is cancel safe.
    pub async fn next(&mut self, reader: &TurnReader) -> Result<Next, Problem> {
        let Some(prompt) = reader.awaited() else {
            self.asking = None;
            return self.cursor.next().await.map(Next::Item);
        };
        loop {
            if let Some(over) = &self.over {
                let outcome = over.outcome.as_deref();
                if outcome.is_none_or(|outcome| reader.has_all(outcome)) {
                    return Ok(Next::Over(over.outcome.clone()));
                }
                return tokio::select! {
                    biased;
                    item = self.cursor.next() => item.map(Next::Item),
                    () = sleep_until(over.until) => Ok(Next::Over(over.outcome.clone())),
                };
            }
            let asking = self
                .asking
                .get_or_insert_with(|| Box::pin(ask(&self.client, &self.session, prompt)));
            tokio::select! {
                biased;
                item = self.cursor.next() => return item.map(Next::Item),
                outcome = asking => self.set_over(outcome),
            }
        }
    }

    /// Asks whether the work is over by now, if the reader is between two turns. Returns whether it
    /// is.
    pub async fn is_over(&mut self, reader: &TurnReader) -> Result<bool, ClientError> {
        let Some(prompt) = reader.awaited() else {
            return Ok(false);
        };
        if self.over.is_none() {
            let asked = self.client.outcome(&self.session, prompt, Duration::ZERO);
            match asked.await {
                Ok(outcome) if outcome.state == WorkState::Over => self.set_over(Some(outcome)),
                Ok(_) => {}
                Err(error) if is_final(&error) => self.set_over(None),
                Err(error) => return Err(error),
            }
        }
        Ok(self.over.is_some())
    }

    fn set_over(&mut self, outcome: Option<Outcome>) {
        self.asking = None;
        self.over = Some(KnownOver {
            outcome: outcome.map(Box::new),
            until: Instant::now() + LATE,
        });
    }

    /// Records that the reader has all that it wants and will not connect again.
    pub fn done(&mut self) {
        self.cursor.done();
    }
}

/// Asks for the outcome of a prompt until the work is over. Returns `None` if no node can tell it.
fn ask(
    client: &Client,
    session: &SessionId,
    prompt: &InputId,
) -> impl Future<Output = Option<Outcome>> + Send + use<> {
    let (client, session, prompt) = (client.clone(), session.clone(), prompt.clone());
    async move {
        loop {
            let pause = match client.outcome(&session, &prompt, WAIT).await {
                Ok(outcome) => match outcome.state {
                    WorkState::Over => return Some(outcome),
                    WorkState::Working => PAUSE,
                    WorkState::Waiting => PAUSE_WAITING,
                },
                Err(error) if is_final(&error) => return None,
                Err(error) => {
                    tracing::debug!(%session, %error, "a front asks for an outcome again");
                    PAUSE
                }
            };
            sleep(pause).await;
        }
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
