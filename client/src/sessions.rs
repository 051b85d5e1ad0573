//! Commands about sessions. A session is identified by its id or its name.

use std::time::Duration;

use planck_common::{
    InputId, Seq, SessionId,
    command::{
        AbortSession, Aborted, Accepted, Because, Empty, Events, HeadAt, InputMode, ListSessions,
        MOST_ABORT_MS, Messages, Prompt, ReadEvents, ReadMessages, Removed, Rename, Renamed,
        Rewind, SessionInfo, SessionStateNow, SessionVerb, Sessions, SessionsVerb, Start, Started,
    },
    subject::{Address, Target},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    client::{Client, RetryPolicy},
    error::ClientError,
};

pub(super) fn to(session: &str, verb: SessionVerb) -> Address {
    Address::session(session, verb.name())
}

/// Returns the prompt with an id, by which a node recognises a retry, and the retry policy that
/// fits the prompt's mode.
pub(super) fn identified(mut prompt: Prompt) -> (Prompt, RetryPolicy) {
    prompt.prompt_id.get_or_insert_with(InputId::mint);
    let policy = match prompt.mode {
        InputMode::Queue | InputMode::Steer => RetryPolicy::Idempotent,
        InputMode::Reject => RetryPolicy::Never,
    };
    (prompt, policy)
}

impl Client {
    pub(super) async fn call_session<T: DeserializeOwned>(
        &self,
        session: &str,
        verb: SessionVerb,
        body: &(impl Serialize + Sync),
    ) -> Result<T, ClientError> {
        let policy = RetryPolicy::of(verb.is_idempotent());
        self.call(&to(session, verb), body, policy).await
    }

    /// Starts a session. `dir` or `workspace` must say where the session's agents work. Without
    /// `members` and `team` the session has one agent, with the node's defaults.
    ///
    /// The call is idempotent: absent ids are generated before the first attempt, so that a retry
    /// starts nothing more.
    pub async fn start(&self, mut start: Start) -> Result<Started, ClientError> {
        start.session_id.get_or_insert_with(SessionId::mint);
        if start.prompt.is_some() {
            start.prompt_id.get_or_insert_with(InputId::mint);
        }
        self.call(
            &Address::new(Target::Sessions, SessionsVerb::Start.name()),
            &start,
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Lists sessions, one page per call. The call is idempotent.
    pub async fn sessions(&self, filter: &ListSessions) -> Result<Sessions, ClientError> {
        self.call(
            &Address::new(Target::Sessions, SessionsVerb::List.name()),
            filter,
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Sends a prompt to a session's orchestrator, or to the agent that the prompt names. The reply
    /// confirms that the prompt is stored. The answer comes as events, which
    /// [`follow`](Self::follow) returns from `seq + 1` of the reply on.
    ///
    /// The prompt gets an id if it has none. With [`InputMode::Queue`] and [`InputMode::Steer`] the
    /// call is idempotent by that id and is retried; with [`InputMode::Reject`] it is tried once.
    pub async fn prompt(
        &self,
        session: &str,
        prompt: impl Into<Prompt>,
    ) -> Result<Accepted, ClientError> {
        let (prompt, policy) = identified(prompt.into());
        self.call(&to(session, SessionVerb::Prompt), &prompt, policy)
            .await
    }

    /// Reads a page of a session's log. The call is idempotent. To see events as they happen, use
    /// [`follow`](Self::follow).
    pub async fn events(&self, session: &str, read: &ReadEvents) -> Result<Events, ClientError> {
        self.call_session(session, SessionVerb::Events, read).await
    }

    /// Reads messages of one agent or of all agents: those since the latest checkpoint, or earlier
    /// ones. The call is idempotent.
    pub async fn messages(
        &self,
        session: &str,
        read: &ReadMessages,
    ) -> Result<Messages, ClientError> {
        self.call_session(session, SessionVerb::Messages, read)
            .await
    }

    /// Describes a session: its state, its agents, and its usage. The call is idempotent.
    pub async fn session(&self, session: &str) -> Result<SessionInfo, ClientError> {
        self.call_session(session, SessionVerb::Info, &Empty {})
            .await
    }

    /// Aborts the running turns of a session's agents and, for up to 5 s, those that they begin
    /// because of it, until the work of a prompt is over. With `None` in place of a prompt, this is the
    /// work of all prompts that agents have read; those that wait are read afterwards. Returns the
    /// agents that had a running turn at first. The call is not idempotent.
    pub async fn abort_session(
        &self,
        session: &str,
        prompt: impl Into<Option<&InputId>> + Send,
        reason: Option<String>,
    ) -> Result<Aborted, ClientError> {
        let abort = AbortSession {
            reason,
            prompt_id: prompt.into().cloned(),
        };
        let to = to(session, SessionVerb::Abort);
        let wait = Duration::from_millis(MOST_ABORT_MS);
        self.call_that_waits(&to, &abort, RetryPolicy::of(false), wait)
            .await
    }

    /// Hides a message and all later ones, so that the session continues from the message before
    /// it. Aborts running turns. `by` is the name under which the log records the rewind. The call
    /// is not idempotent.
    pub async fn rewind(
        &self,
        session: &str,
        to_message: Seq,
        by: Option<String>,
    ) -> Result<HeadAt, ClientError> {
        let rewind = Rewind { to: to_message, by };
        self.call_session(session, SessionVerb::Rewind, &rewind)
            .await
    }

    /// Gives a session a title, or removes it. The call is idempotent.
    pub async fn rename(
        &self,
        session: &str,
        title: Option<String>,
    ) -> Result<Renamed, ClientError> {
        self.call_session(session, SessionVerb::Rename, &Rename { title })
            .await
    }

    /// Resumes a session that was closed or interrupted. The call is idempotent.
    pub async fn resume(
        &self,
        session: &str,
        reason: Option<String>,
    ) -> Result<Started, ClientError> {
        self.call_session(session, SessionVerb::Resume, &Because { reason })
            .await
    }

    /// Closes a session: its agents stop, and its log is kept. The call is idempotent.
    pub async fn close(
        &self,
        session: &str,
        reason: Option<String>,
    ) -> Result<SessionStateNow, ClientError> {
        self.call_session(session, SessionVerb::Close, &Because { reason })
            .await
    }

    /// Closes a session and deletes it with its log. The call is not idempotent.
    pub async fn delete(
        &self,
        session: &str,
        reason: Option<String>,
    ) -> Result<Removed, ClientError> {
        self.call_session(session, SessionVerb::Delete, &Because { reason })
            .await
    }
}
