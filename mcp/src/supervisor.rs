//! Keeps a server running. It starts the server, reads what it offers, and starts it again with
//! growing pauses when it ends.

use std::{sync::Arc, time::Duration};

use planck_toolbox::Launcher;
use rmcp::service::{Peer, RoleClient};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    bridge::Report,
    connection::{Connection, LiveServer, ServerCommand},
    offer::Offer,
    session,
};

/// The pause before the first new start, which doubles with each start up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How long a server must have run for the pauses to begin from the first one again.
const STEADY: Duration = Duration::from_secs(60);

/// The number of starts that may fail before one has succeeded. The first start of a package may
/// have to fetch it, which takes longer than the second.
const FIRST_STARTS: u32 = 3;

/// Whether a server takes calls.
#[derive(Debug, Clone)]
pub enum Link {
    Up(Arc<LiveServer>),
    /// The server is not running, for this reason.
    Away(String),
}

/// How to start a server.
pub struct Supervisor {
    pub launcher: Launcher,
    pub command: ServerCommand,
    pub start_within: Duration,
    pub trusts_hints: bool,
    pub report: Report,
}

/// What the supervisor tells the rest of the bridge.
#[derive(Debug)]
pub struct News {
    pub link: watch::Sender<Link>,
    /// The latest offer. It stays while the server is away.
    pub offer: watch::Sender<Option<Offer>>,
}

impl Supervisor {
    /// Keeps the server running until `stop` is cancelled.
    ///
    /// # Errors
    /// Returns the reason if the server could not be started once.
    pub async fn run(self, news: News, stop: CancellationToken) -> Result<(), String> {
        let (mut pause, mut failures) = (FIRST_PAUSE, 0);
        loop {
            let began = Instant::now();
            let why = tokio::select! {
                started = self.start() => match started {
                    Ok(server) => {
                        failures = FIRST_STARTS;
                        let Some(why) = self.attend(server, &news, &stop).await else {
                            return Ok(());
                        };
                        why
                    }
                    Err(why) => {
                        failures += 1;
                        if failures == FIRST_STARTS {
                            return Err(why);
                        }
                        why
                    }
                },
                () = stop.cancelled() => return Ok(()),
            };
            if began.elapsed() > STEADY {
                pause = FIRST_PAUSE;
            }
            (self.report)(&format!("{why}; it is started again in {pause:?}"));
            news.link.send_replace(Link::Away(why));
            tokio::select! {
                () = sleep(pause) => pause = (2 * pause).min(LONGEST_PAUSE),
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    async fn start(&self) -> Result<(Connection, Offer), String> {
        let server = Connection::open(
            &self.launcher,
            &self.command,
            self.start_within,
            &self.report,
        )
        .await?;
        match self.read_offer(&server.live.peer).await {
            Ok(offer) => Ok((server, offer)),
            Err(why) => {
                server.close(&why).await;
                Err(why)
            }
        }
    }

    async fn read_offer(&self, server: &Peer<RoleClient>) -> Result<Offer, String> {
        let (tools, warning) = session::tools(server).await?;
        let (offer, left_out) = Offer::of(&session::version(server), tools, self.trusts_hints);
        for line in warning.iter().chain(&left_out) {
            (self.report)(line);
        }
        match offer.tools.is_empty() {
            true => Err("it offers no tool that an agent can have".into()),
            false => Ok(offer),
        }
    }

    /// Publishes the server's offer, now and when it changes. Returns why the server is gone, or
    /// `None` if it was stopped.
    async fn attend(
        &self,
        (mut server, offer): (Connection, Offer),
        news: &News,
        stop: &CancellationToken,
    ) -> Option<String> {
        news.offer.send_replace(Some(offer));
        news.link.send_replace(Link::Up(server.live.clone()));
        let (live, changed) = (server.live.clone(), server.tools_changed());
        let why = {
            let mut ended = std::pin::pin!(server.ended());
            loop {
                tokio::select! {
                    why = &mut ended => break Some(why),
                    () = stop.cancelled() => break None,
                    () = changed.notified() => match self.read_offer(&live.peer).await {
                        Ok(offer) => drop(news.offer.send_replace(Some(offer))),
                        Err(why) => (self.report)(&why),
                    },
                }
            }
        };
        match &why {
            Some(_) => server.kill().await,
            None => server.close("the bridge ends").await,
        }
        why
    }
}
