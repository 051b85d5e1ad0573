//! Commands about sessions. A session is named by its id or its name.

use planck_common::{
    InputId, Seq, SessionId,
    command::{
        Aborted, Accepted, Because, Empty, Events, HeadAt, ListSessions, Messages, Mode, Prompt,
        ReadEvents, ReadMessages, Removed, Rewind, SessionInfo, SessionStateNow, SessionVerb,
        Sessions, SessionsVerb, Start, Started,
    },
    subject::{Address, Target},
};

use super::{
    ask::{Client, Repeat},
    error::ClientError,
};

fn to(session: &str, verb: SessionVerb) -> Address {
    Address::session(session, verb.name())
}

/// A prompt with an id, so that its repetition is the same prompt.
pub(super) fn identified(mut prompt: Prompt) -> (Prompt, Repeat) {
    prompt.prompt_id.get_or_insert_with(InputId::mint);
    let repeat = match prompt.mode {
        Mode::Queue | Mode::Steer => Repeat::Harmless,
        Mode::Reject => Repeat::Never,
    };
    (prompt, repeat)
}

impl Client {
    /// Starts a session; ids are minted where they are absent, so that a repetition starts nothing
    /// more.
    pub async fn start(&self, mut start: Start) -> Result<Started, ClientError> {
        start.session_id.get_or_insert_with(SessionId::mint);
        if start.prompt.is_some() {
            start.prompt_id.get_or_insert_with(InputId::mint);
        }
        self.ask(
            &Address::new(Target::Sessions, SessionsVerb::Start.name()),
            &start,
            Repeat::Harmless,
        )
        .await
    }

    pub async fn sessions(&self, filter: &ListSessions) -> Result<Sessions, ClientError> {
        self.ask(
            &Address::new(Target::Sessions, SessionsVerb::List.name()),
            filter,
            Repeat::Harmless,
        )
        .await
    }

    pub async fn prompt(&self, session: &str, prompt: Prompt) -> Result<Accepted, ClientError> {
        let (prompt, repeat) = identified(prompt);
        self.ask(&to(session, SessionVerb::Prompt), &prompt, repeat)
            .await
    }

    pub async fn events(&self, session: &str, read: &ReadEvents) -> Result<Events, ClientError> {
        self.ask(&to(session, SessionVerb::Events), read, Repeat::Harmless)
            .await
    }

    pub async fn messages(
        &self,
        session: &str,
        read: &ReadMessages,
    ) -> Result<Messages, ClientError> {
        self.ask(&to(session, SessionVerb::Messages), read, Repeat::Harmless)
            .await
    }

    pub async fn session(&self, session: &str) -> Result<SessionInfo, ClientError> {
        self.ask(&to(session, SessionVerb::Info), &Empty {}, Repeat::Harmless)
            .await
    }

    pub async fn abort_session(&self, session: &str) -> Result<Aborted, ClientError> {
        self.ask(
            &to(session, SessionVerb::Abort),
            &Empty {},
            Repeat::IfNotDone,
        )
        .await
    }

    pub async fn rewind(&self, session: &str, to_message: Seq) -> Result<HeadAt, ClientError> {
        self.ask(
            &to(session, SessionVerb::Rewind),
            &Rewind { to: to_message },
            Repeat::IfNotDone,
        )
        .await
    }

    pub async fn resume(
        &self,
        session: &str,
        reason: Option<String>,
    ) -> Result<Started, ClientError> {
        self.ask(
            &to(session, SessionVerb::Resume),
            &Because { reason },
            Repeat::Harmless,
        )
        .await
    }

    pub async fn close(
        &self,
        session: &str,
        reason: Option<String>,
    ) -> Result<SessionStateNow, ClientError> {
        self.ask(
            &to(session, SessionVerb::Close),
            &Because { reason },
            Repeat::Harmless,
        )
        .await
    }

    pub async fn delete(
        &self,
        session: &str,
        reason: Option<String>,
    ) -> Result<Removed, ClientError> {
        self.ask(
            &to(session, SessionVerb::Delete),
            &Because { reason },
            Repeat::IfNotDone,
        )
        .await
    }
}
