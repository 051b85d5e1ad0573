//! The outcome of a prompt: what became of the work that it caused.

use std::{fmt, time::Duration};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Fuse},
};
use tokio::time::{Instant, sleep, sleep_until};

use planck_common::{
    InputId, SessionId,
    command::{Outcome, Prompt, ReadOutcome, SessionVerb, WorkState},
};

use super::{
    Client, ClientError,
    client::{FailedTry, RetryPolicy},
    commands::session_address,
    turn::TurnReader,
};

/// How long each request waits at a node. A node that dies meanwhile is noticed after this time.
const WAIT: Duration = Duration::from_secs(5);
/// The minimum time between two requests, because a node need not wait.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the events of a turn's reader may take that the log has when the work is over.
pub const READER_LATE: Duration = Duration::from_secs(20);

impl Client {
    /// Returns what has become of the work that a prompt caused: the turn that read the prompt, the
    /// tasks, questions and responses that agents sent because of it, and the turns that read those.
    /// The call is idempotent, and can be made long after the work.
    ///
    /// With `None` in place of a prompt, the reply is about all inputs of the session that have no
    /// outcome yet. While the work goes on, waits for up to `wait`. If nodes die meanwhile, others
    /// continue the work and answer.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `not_found` if the session has no such prompt.
    pub async fn outcome(
        &self,
        session: &str,
        prompt: impl Into<Option<&InputId>> + Send,
        wait: Duration,
    ) -> Result<Outcome, ClientError> {
        self.outcome_until(session, prompt.into(), Instant::now().checked_add(wait))
            .await
    }

    /// Waits until the work that a prompt caused is over, or until agents wait for answers from
    /// outside and nothing else of it can happen ([`WorkState::Waiting`]). Give the
    /// [answers](Client::answer), and call this again.
    ///
    /// # Errors
    ///
    /// The same errors as [`outcome`](Self::outcome), but only those that stay. While no node answers,
    /// asks again without an end, so set a deadline of your own if you need one.
    pub async fn wait_for_outcome(
        &self,
        session: &str,
        prompt: impl Into<Option<&InputId>> + Send,
    ) -> Result<Outcome, ClientError> {
        self.outcome_until(session, prompt.into(), None).await
    }

    /// Waits like [`wait_for_outcome`](Self::wait_for_outcome), but until the work is over, however
    /// long agents wait for answers from outside.
    ///
    /// # Errors
    ///
    /// The same errors as [`wait_for_outcome`](Self::wait_for_outcome).
    pub async fn wait_until_over(
        &self,
        session: &str,
        prompt: impl Into<Option<&InputId>> + Send,
    ) -> Result<Outcome, ClientError> {
        let prompt = prompt.into();
        loop {
            let found = self.outcome_until(session, prompt, None).await?;
            if found.state == WorkState::Over {
                return Ok(found);
            }
            sleep(PAUSE).await;
        }
    }

    /// Asks until the work is no longer going on or the time is over.
    async fn outcome_until(
        &self,
        session: &str,
        prompt: Option<&InputId>,
        until: Option<Instant>,
    ) -> Result<Outcome, ClientError> {
        loop {
            let now = Instant::now();
            let left = until.map(|until| until.saturating_duration_since(now));
            let wait = left.unwrap_or(WAIT).min(WAIT);
            match self.ask_outcome(session, prompt, wait).await {
                Ok(found)
                    if found.state != WorkState::Working
                        || left.is_some_and(|left| left <= wait) =>
                {
                    return Ok(found);
                }
                Err(error) if left.is_some() || error.failed_try() == FailedTry::Final => {
                    return Err(error);
                }
                Ok(_) | Err(_) => {}
            }
            sleep_until(now + PAUSE).await;
        }
    }

    async fn ask_outcome(
        &self,
        session: &str,
        prompt: Option<&InputId>,
        wait: Duration,
    ) -> Result<Outcome, ClientError> {
        let read = ReadOutcome {
            prompt_id: prompt.cloned(),
            wait_ms: u64::try_from(wait.as_millis()).ok().filter(|ms| *ms > 0),
        };
        let to = session_address(session, SessionVerb::Outcome);
        self.call_that_waits(&to, &read, RetryPolicy::Idempotent, wait)
            .await
    }

    /// Sends a prompt like [`prompt`](Self::prompt), and waits for its outcome like
    /// [`wait_for_outcome`](Self::wait_for_outcome). If the call may fail after the prompt was sent,
    /// give the prompt an id, with which you can then wait again.
    ///
    /// ```no_run
    /// # async fn run(client: planck_client::Client) -> Result<(), planck_client::ClientError> {
    /// let outcome = client.run("bold-oak", "Build a tool that counts words.").await?;
    /// println!("{}", outcome.message.unwrap_or_default());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run(
        &self,
        session: &str,
        prompt: impl Into<Prompt>,
    ) -> Result<Outcome, ClientError> {
        let accepted = self.prompt(session, prompt).await?;
        self.wait_for_outcome(&accepted.session_id, &accepted.prompt_id)
            .await
    }
}

/// The outcome of the work on a prompt, for a reader of the session's events: it is not reached before
/// the reader has the events of the work.
pub struct AwaitedOutcome {
    asked: Fuse<BoxFuture<'static, Result<Outcome, ClientError>>>,
    found: Option<Outcome>,
    late: Duration,
}

impl fmt::Debug for AwaitedOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwaitedOutcome")
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}

impl AwaitedOutcome {
    /// Awaits the outcome that `asked` returns. Events that do not come for `late` after it are not
    /// waited for, because a lost event must not keep the reader waiting.
    pub fn new(
        asked: impl Future<Output = Result<Outcome, ClientError>> + Send + 'static,
        late: Duration,
    ) -> Self {
        Self {
            asked: asked.boxed().fuse(),
            found: None,
            late,
        }
    }

    /// Awaits the end of the work on a prompt, however long agents wait for answers from outside.
    pub fn of_prompt(
        client: &Client,
        session: &SessionId,
        prompt: &InputId,
        late: Duration,
    ) -> Self {
        let (client, session, prompt) = (client.clone(), session.clone(), prompt.clone());
        let asked = async move { client.wait_until_over(&session, &prompt).await };
        Self::new(asked, late)
    }

    /// Waits until the work is over on whose end a reader waits between two turns. Returns `None` if
    /// the outcome cannot be known. Never returns while the reader waits for events only. `work` keeps
    /// the request between the calls. The method is cancel safe.
    pub async fn of_reader(
        work: &mut Option<Self>,
        client: &Client,
        session: &SessionId,
        reader: &TurnReader,
    ) -> Option<Outcome> {
        let Some(prompt) = reader.awaited() else {
            *work = work.take().filter(|work| work.known().is_some());
            return std::future::pending().await;
        };
        let begin = || Self::of_prompt(client, session, prompt, READER_LATE);
        let work = work.get_or_insert_with(begin);
        work.reached(|outcome| reader.has_all(outcome)).await.ok()
    }

    /// Returns the outcome if a node has said it, even if events before it are missing.
    pub fn known(&self) -> Option<&Outcome> {
        self.found.as_ref()
    }

    /// Waits until the work is over and the reader has its events, as far as `has_all` can tell by
    /// the outcome. Call this again after each event. The method is cancel safe.
    ///
    /// # Errors
    ///
    /// The error of the request for the outcome.
    pub async fn reached(
        &mut self,
        has_all: impl Fn(&Outcome) -> bool + Send,
    ) -> Result<Outcome, ClientError> {
        let found = match self.found.take() {
            Some(found) => found,
            None => (&mut self.asked).await?,
        };
        let found = self.found.insert(found);
        if !has_all(found) {
            sleep(self.late).await;
        }
        Ok(found.clone())
    }
}
