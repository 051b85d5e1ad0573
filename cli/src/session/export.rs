//! The command `planck session export`.

use planck_common::command::ReadEvents;

use crate::{exit::Exit, output::json_text};
use planck_client::Client;

/// Writes the events of the log up to its head at the time of the call.
pub async fn perform(client: &Client, session: &str) -> anyhow::Result<Exit> {
    let end = client.session(session).await?.head;
    let mut from = 1;
    while from <= end {
        let page = client
            .events(
                session,
                &ReadEvents {
                    from: Some(from),
                    limit: None,
                    agent: None,
                },
            )
            .await?;
        let lines: String = page
            .events
            .iter()
            .flat_map(|event| [event.get(), "\n"])
            .collect();
        json_text(&lines)?;
        anyhow::ensure!(
            page.next > from,
            "the log of {session} cannot be read past event {from}"
        );
        from = page.next;
    }
    Ok(Exit::Done)
}
