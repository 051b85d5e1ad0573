//! The outcome of a prompt: what became of the work that it caused.

use std::{fmt, time::Duration};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Fuse},
};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, sleep_until};

use planck_common::{
    InputId, SessionId,
    command::{Outcome, Prompt, ReadEvents, ReadOutcome, SessionVerb, WorkState},
    envelope::Envelope,
    event::{Event, json},
    spec::OutputSpec,
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

    /// Does the same as [`run`](Self::run), and returns the answer as a value of a type. The type's
    /// JSON Schema is the shape of the answer, so the type must be a struct or a map.
    ///
    /// ```no_run
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Rivers {
    ///     names: Vec<String>,
    /// }
    ///
    /// # async fn run(client: planck_client::Client) -> Result<(), planck_client::AnswerError> {
    /// let rivers: Rivers = client.prompt_as("bold-oak", "Name three rivers.").await?;
    /// println!("{}", rivers.names.join(", "));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn prompt_as<T: DeserializeOwned + JsonSchema>(
        &self,
        session: &str,
        prompt: impl Into<Prompt>,
    ) -> Result<T, AnswerError> {
        let prompt = Prompt {
            output: Some(OutputSpec {
                schema: schemars::schema_for!(T).to_value(),
                name: None,
            }),
            ..prompt.into()
        };
        let outcome = self.run(session, prompt).await?;
        let output = match outcome.truncated {
            true => self.output_in_log(session, &outcome).await?,
            false => outcome.output.clone(),
        };
        match output {
            Some(output) => serde_json::from_str(output.get()).map_err(AnswerError::Type),
            None => Err(AnswerError::Absent(Box::new(outcome))),
        }
    }

    /// Returns the whole answer whose strings are cut in an outcome, or `None` if it is too large for
    /// one message in the log's reply too.
    async fn output_in_log(
        &self,
        session: &str,
        outcome: &Outcome,
    ) -> Result<Option<Box<RawValue>>, ClientError> {
        let read = ReadEvents {
            from: outcome.seq,
            limit: Some(1),
            agent: None,
        };
        let page = self.events(session, &read).await?;
        let event = page.events.first();
        let event = event.and_then(|event| serde_json::from_str::<Envelope>(event.get()).ok());
        let event = event.filter(|event| !event.truncated);
        match event.as_ref().and_then(Envelope::event) {
            Some(Ok(Event::TurnEnd(end))) => Ok(end.output),
            Some(_) | None => Ok(None),
        }
    }
}

/// Why there is no answer of a type.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The prompt could not be sent, or its outcome could not be read.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The work ended without an answer in the shape, or waits for an answer from outside.
    #[error("no answer in the shape of the type: {}", why(.0))]
    Absent(Box<Outcome>),
    /// The type does not read what its own schema allows.
    #[error("the answer satisfies the schema of the type, but the type cannot read it: {0}")]
    Type(serde_json::Error),
}

fn why(outcome: &Outcome) -> String {
    match (&outcome.error, outcome.outcome) {
        (Some(error), _) => error.reason.clone(),
        (None, _) if outcome.truncated => "it is too large for one message".to_owned(),
        (None, Some(how)) => format!("the work ended with the outcome {}", json(&how)),
        (None, None) => "the work waits for an answer from outside".to_owned(),
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
