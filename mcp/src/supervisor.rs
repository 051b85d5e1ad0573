//! Keeps a server in use. It connects to the server, reads what it offers, and connects again with
//! growing pauses when the server is gone.

use std::{sync::Arc, time::Duration};

use planck_toolbox::Launcher;
use rmcp::service::{Peer, RoleClient};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    connection::{Connection, LiveServer},
    offer::Offer,
    pins::PinnedTools,
    server::{Report, ServerOptions},
    session,
};

/// The pause before the first new start, which doubles with each start up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How long a server must have run for the pauses to begin from the first one again.
const STEADY: Duration = Duration::from_secs(60);

/// How often a server at an address is looked at, because nothing else tells that it is gone or that
/// its tools have changed.
const LOOKING: Duration = Duration::from_secs(60);

/// How long a server may take to list a page of its tools, when it has started and when it is looked
/// at.
const FIRST_LISTING: Duration = Duration::from_secs(30);
const LISTING: Duration = Duration::from_secs(10);

/// The shortest time between two looks, because a server may say without end that its tools have changed.
const QUIET: Duration = Duration::from_secs(1);

/// Whether a server takes calls.
#[derive(Debug, Clone)]
pub enum Link {
    /// The server is being started, and calls wait for it.
    Starting,
    Up(Arc<LiveServer>),
    /// The server cannot be used now.
    Away {
        why: String,
        /// The number of starts that failed since the server was last in use.
        failed_starts: u32,
    },
}

/// The task that keeps a server in use.
pub struct Supervisor {
    pub launcher: Launcher,
    pub options: ServerOptions,
    pub report: Report,
}

/// The channels on which the supervisor publishes the state of the server.
#[derive(Debug)]
pub struct News {
    pub link: watch::Sender<Link>,
    /// The latest offer. It stays while the server is away.
    pub offer: watch::Sender<Option<Arc<Offer>>>,
}

impl News {
    /// Publishes that the server is being started, which it is from the beginning.
    fn set_starting(&self) {
        self.link.send_if_modified(|link| {
            let was_away = !matches!(link, Link::Starting);
            *link = Link::Starting;
            was_away
        });
    }
}

impl Supervisor {
    /// Keeps the server in use until `stop` is cancelled.
    pub async fn run(self, news: News, stop: CancellationToken) {
        self.offer_what_is_known(&news).await;
        let (mut pause, mut failed_starts) = (FIRST_PAUSE, 0);
        loop {
            let began = Instant::now();
            news.set_starting();
            let why = tokio::select! {
                started = self.start() => match started {
                    Ok(server) => {
                        failed_starts = 0;
                        let Some(why) = self.attend(server, &news, &stop).await else {
                            return;
                        };
                        why
                    }
                    Err(why) => {
                        failed_starts += 1;
                        why
                    }
                },
                () = stop.cancelled() => return,
            };
            if began.elapsed() > STEADY {
                pause = FIRST_PAUSE;
            }
            (self.report)(&format!("{why}; it is tried again in {pause:?}"));
            news.link.send_replace(Link::Away { why, failed_starts });
            tokio::select! {
                () = sleep(pause) => pause = (2 * pause).min(LONGEST_PAUSE),
                () = stop.cancelled() => return,
            }
        }
    }

    /// Offers the tools that were allowed before, so that agents have them before the server has
    /// started.
    async fn offer_what_is_known(&self, news: &News) {
        if let Ok(Some(pinned)) = self.pinned().await {
            let PinnedTools { version, tools } = pinned;
            let offer = Offer::of(&version, tools, &self.options.rules, None);
            news.offer.send_replace(Some(Arc::new(offer)));
        }
    }

    async fn start(&self) -> Result<(Connection, Offer), String> {
        let ServerOptions {
            transport,
            start_within,
            ..
        } = &self.options;
        let server =
            Connection::open(&self.launcher, transport, *start_within, &self.report).await?;
        match self.read_offer(&server.live.peer, FIRST_LISTING).await {
            Ok(offer) => Ok((server, offer)),
            Err(why) => {
                server.close(&why).await;
                Err(why)
            }
        }
    }

    async fn read_offer(
        &self,
        server: &Peer<RoleClient>,
        within: Duration,
    ) -> Result<Offer, String> {
        let (tools, warning) = session::tools(server, within).await?;
        let version = session::version(server);
        let pinned = self.pinned().await?;
        let mut offer = Offer::of(
            &version,
            tools.clone(),
            &self.options.rules,
            pinned.as_ref(),
        );
        if pinned.is_none() {
            offer.left_out.extend(self.pin(version, tools).await.err());
        }
        offer.left_out.extend(warning);
        match offer.tools.is_empty() {
            true => Err(match offer.left_out.first() {
                Some(first) => format!("it offers no tool that an agent can have: {first}"),
                None => "it offers no tools".into(),
            }),
            false => Ok(offer),
        }
    }

    async fn pinned(&self) -> Result<Option<PinnedTools>, String> {
        let Some(pins) = self.options.pins.clone() else {
            return Ok(None);
        };
        let read = spawn_blocking(move || pins.read()).await;
        read.map_err(|panic| panic.to_string())?
    }

    /// Allows the tools of a server that is used for the first time: its user has just configured it.
    async fn pin(&self, version: String, tools: Vec<rmcp::model::Tool>) -> Result<(), String> {
        let Some(pins) = self.options.pins.clone() else {
            return Ok(());
        };
        let pinned = PinnedTools { version, tools };
        let written = spawn_blocking(move || pins.write(&pinned)).await;
        written.map_err(|panic| panic.to_string())?
    }

    /// Publishes the server's offer, now and when it changes. Returns why the server is gone, or
    /// `None` if it was stopped.
    async fn attend(
        &self,
        (mut server, offer): (Connection, Offer),
        news: &News,
        stop: &CancellationToken,
    ) -> Option<String> {
        self.publish(offer, news);
        news.link.send_replace(Link::Up(server.live.clone()));
        let (live, is_remote) = (server.live.clone(), server.is_remote());
        let why = {
            let mut ended = std::pin::pin!(server.ended());
            loop {
                let quiet = sleep(QUIET);
                tokio::select! {
                    why = &mut ended => break Some(why),
                    () = stop.cancelled() => break None,
                    () = async { live.look_again.notified().await; quiet.await } => (),
                    () = sleep(LOOKING), if is_remote => (),
                }
                match self.read_offer(&live.peer, LISTING).await {
                    Ok(offer) => self.publish(offer, news),
                    Err(why) if is_remote || !live.is_busy() => break Some(why),
                    Err(why) => (self.report)(&why),
                }
            }
        };
        match &why {
            Some(why) => server.kill(why).await,
            None => server.close("the connection ends").await,
        }
        why
    }

    /// Publishes an offer if it is another one than the last.
    fn publish(&self, offer: Offer, news: &News) {
        let is_new = |known: &Option<Arc<Offer>>| known.as_deref() != Some(&offer);
        if !is_new(&news.offer.borrow()) {
            return;
        }
        for line in &offer.left_out {
            (self.report)(line);
        }
        news.offer.send_replace(Some(Arc::new(offer)));
    }
}
