//! Commands about waits: list them, and answer them.

use planck_common::{
    command::{Answer, Answered, ListWaits, SessionVerb, SessionsVerb, Waits},
    subject::{Address, Target},
};

use super::{
    client::{Client, RetryPolicy},
    error::ClientError,
};

impl Client {
    /// Lists what agents wait for: by default the open waits of all sessions, oldest first, one page
    /// per call. The call is idempotent.
    pub async fn waits(&self, filter: &ListWaits) -> Result<Waits, ClientError> {
        self.call(
            &Address::new(Target::Sessions, SessionsVerb::Waits.name()),
            filter,
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Answers a wait of a session. The first answer holds: another one is refused with `exists`,
    /// and the same one gets the same reply, so the call is idempotent.
    pub async fn answer(&self, session: &str, answer: &Answer) -> Result<Answered, ClientError> {
        self.call_session(session, SessionVerb::Answer, answer)
            .await
    }
}
