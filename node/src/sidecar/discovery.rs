//! Keeps the directory up to date. The node searches for all sidecars at intervals, and receives
//! the messages that sidecars send when they start and stop.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use futures_util::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream, pending},
};
use planck_common::{
    SidecarId,
    sidecar::{Presence, PresenceKind},
    subject::Topic,
};
use tokio::time::{Instant, timeout_at};

use super::{
    Sidecars,
    info::{SidecarInstance, name_in},
};
use crate::bus::{BusError, Delivery};

/// The interval between searches for sidecars.
const EVERY: Duration = Duration::from_secs(10);

/// The time without an answer after which a search for all sidecars ends.
const QUIET: Duration = Duration::from_millis(250);

/// The time without an answer after which a search for the instances of one sidecar ends.
const QUIET_OF_ONE: Duration = Duration::from_millis(100);

/// The maximum number of messages that are handled together.
const AT_ONCE: usize = 256;

/// The maximum number of sidecars that are asked for their descriptions, and of those that are asked
/// at the same time.
const MOST: usize = 2_000;
const ASKED_AT_ONCE: usize = 32;

type InfoStream = BoxStream<'static, Vec<Delivery>>;

impl Sidecars {
    /// Searches for sidecars at intervals, and handles their messages in between. Never returns.
    /// Calls `changed` each time the offered tools or compactors have changed.
    pub async fn keep_looking(&self, changed: impl Fn() + Send + Sync) {
        let mut news: Option<InfoStream> = None;
        loop {
            if news.is_none() {
                news = self.listen().await;
            }
            self.look_around().await;
            self.report(&changed);
            self.0.looked.send_replace(true);
            self.receive(&mut news, Instant::now() + EVERY, &changed)
                .await;
        }
    }

    fn report(&self, changed: &impl Fn()) {
        if self.show() {
            tracing::info!(sidecars = ?self.rows(), "the tools that sidecars offer have changed");
            changed();
        }
    }

    async fn listen(&self) -> Option<InfoStream> {
        match self.0.bus.subscribe(&Topic::AllSidecars.to_string()).await {
            Ok(news) => Some(news.ready_chunks(AT_ONCE).boxed()),
            Err(error) => {
                tracing::debug!(%error, "cannot subscribe to the messages of starting and stopping sidecars");
                None
            }
        }
    }

    async fn look_around(&self) {
        match self.0.bus.services(None, QUIET).await {
            Ok(answers) => {
                let prefix = &self.0.settings.prefix;
                let named = answers.iter().filter_map(|answer| name_in(answer, prefix));
                let mut names: BTreeSet<_> = named.collect();
                names.extend(self.directory().names());
                if let Some(instances) = self.descriptions(names).await {
                    self.directory().swept(instances);
                }
            }
            Err(error @ BusError::Denied(_)) => {
                self.warn(format!("sidecars cannot be found: {error}"))
            }
            Err(error) => tracing::debug!(%error, "cannot search for sidecars"),
        }
    }

    /// Asks each sidecar for the descriptions of its instances, on the subject that only the sidecar
    /// may serve. A description under another name is dropped: with it, a sidecar could say what
    /// the tool of another one does. Returns `None` if the sidecars cannot be asked.
    async fn descriptions(&self, names: BTreeSet<SidecarId>) -> Option<Vec<SidecarInstance>> {
        let asked = names.into_iter().take(MOST).map(|name| async move {
            let answers = self.0.bus.services(Some(&name), QUIET_OF_ONE).await?;
            let mut instances = self.read(&answers);
            instances.retain(|instance| instance.sidecar == name);
            Ok::<_, BusError>(instances)
        });
        let described = stream::iter(asked).buffer_unordered(ASKED_AT_ONCE);
        described
            .try_concat()
            .await
            .inspect_err(|error| tracing::debug!(%error, "cannot ask the sidecars"))
            .ok()
    }

    fn read(&self, answers: &[Bytes]) -> Vec<SidecarInstance> {
        let settings = &self.0.settings;
        answers
            .iter()
            .filter_map(|answer| SidecarInstance::read(answer, &settings.prefix, settings.patience))
            .collect()
    }

    fn warn(&self, warning: String) {
        super::lock(&self.0.shown).warn(vec![warning], false);
    }

    /// Handles messages of sidecars until `until`, when the next search is due.
    async fn receive(&self, news: &mut Option<InfoStream>, until: Instant, changed: &impl Fn()) {
        let mut silence: InfoStream = pending().boxed();
        while let Ok(received) =
            timeout_at(until, news.as_mut().unwrap_or(&mut silence).next()).await
        {
            match received {
                Some(deliveries) => {
                    self.take(&deliveries).await;
                    self.report(changed);
                }
                None => *news = None,
            }
        }
    }

    async fn take(&self, deliveries: &[Delivery]) {
        let mut arrived: BTreeSet<SidecarId> = BTreeSet::new();
        for delivery in deliveries {
            let Ok(presence) = serde_json::from_slice::<Presence>(&delivery.payload) else {
                continue;
            };
            // The subject is the sidecar's own.
            if delivery.subject != Topic::Sidecar(&presence.sidecar).to_string() {
                continue;
            }
            match presence.r#type {
                PresenceKind::Hello => drop(arrived.insert(presence.sidecar)),
                PresenceKind::Bye => self.directory().left(&presence.sidecar, &presence.instance),
            }
        }
        if let Some(instances) = self.descriptions(arrived).await {
            self.directory().update(instances);
        }
    }
}
