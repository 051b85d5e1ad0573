//! Follows the work of a session until it ends, for commands that do nothing else meanwhile. A command
//! without a cluster is the only node, so the work would break off with it.

use super::{
    ask::{Asker, can_ask},
    connect::ConnectedClient,
    exit::Exit,
    output::{Stream, warn},
    waits::{left_open, open_waits},
    watch::{EventDisplay, OnWait, WatchOutcome, WatchResult, WatchedWork, interrupts, watch},
};

/// Shows the work, and asks at a terminal, until the work has ended or only waits for answers.
/// `session` is the name that hints use. The exit code is that of `planck run`; without a prompt
/// only waits and interrupts change it.
pub async fn follow_work(
    link: &ConnectedClient,
    session: &str,
    work: &WatchedWork,
) -> anyhow::Result<Exit> {
    let (client, mut interrupted) = (&link.client, interrupts()?);
    let mut display = EventDisplay::screen(Some(Stream::Out));
    let mut on_wait = match Stream::Out.is_terminal() && can_ask() {
        true => OnWait::Ask(Box::new(Asker::new(
            client,
            &work.session,
            Stream::Out,
            false,
        ))),
        false => OnWait::Leave,
    };
    let watching = watch(client, work, &mut interrupted, &mut display, &mut on_wait);
    let watched = Box::pin(watching).await?;
    if watched.ended.outcome == WatchOutcome::Waiting {
        let waits = open_waits(client, &work.session).await?;
        warn(&left_open(session, &waits, link.is_alone()));
    }
    Ok(exit(work, &watched))
}

fn exit(work: &WatchedWork, watched: &WatchResult) -> Exit {
    match (work.prompt.is_some(), watched.ended.outcome) {
        (true, _) | (false, WatchOutcome::Waiting) => watched.exit(),
        (false, _) if watched.interrupts > 0 => Exit::Interrupted,
        (false, _) => Exit::Done,
    }
}
