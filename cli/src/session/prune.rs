//! The command `planck session prune`.

use planck_common::{
    Timestamp,
    command::{ListSessions, SessionState},
};

use super::change;
use crate::{choose::every_session, exit::Exit, output::say};
use planck_client::Client;
use planck_node::config::Period;

/// Removes the closed sessions whose last write is older than `older_than`, and lists them. If
/// `dry_run` is true, only lists them.
pub async fn perform(client: &Client, older_than: Period, dry_run: bool) -> anyhow::Result<Exit> {
    let age = u64::try_from(older_than.0.as_millis()).unwrap_or(u64::MAX);
    let now = Timestamp::now();
    let filter = ListSessions {
        state: Some(SessionState::Closed),
        limit: None,
        after: None,
    };
    let closed = every_session(client, &filter).await?;
    let old: Vec<_> = closed
        .into_iter()
        .filter(|session| now.millis_since(session.updated_at) > age)
        .collect();
    if old.is_empty() {
        say(&format!("no closed session is older than {older_than}\n"))?;
    }
    if !dry_run {
        let old = old.iter();
        let old = old.map(|session| (session.id.as_str(), session.name.as_str()));
        return change::remove_all(client, old).await;
    }
    for session in old {
        say(&format!(
            "would remove {}, closed {}\n",
            session.name, session.updated_at
        ))?;
    }
    Ok(Exit::Done)
}
