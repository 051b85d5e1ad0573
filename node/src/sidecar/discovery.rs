//! Keeps the directory up to date. The node searches for all sidecars at intervals, and receives
//! the messages that sidecars send when they start and stop. Invalid parts of a sidecar's
//! description are ignored and reported.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream, pending},
};
use planck_common::{
    SidecarId,
    event::ToolEffect,
    service::{ServiceEndpoint, ServiceInfo},
    sidecar::{
        COMPACTOR_TIMEOUT_MS, Presence, PresenceKind, TOOL_TIMEOUT_MS, metadata, unknown_required,
    },
    subject::{self, NODE_SERVICE, Prefix, Topic},
};
use planck_toolbox::schema::CompiledSchema;
use serde_json::{Value, value::RawValue};
use tokio::time::{Instant, timeout_at};

use super::Sidecars;
use crate::{
    bus::{BusError, Delivery},
    model::ToolSpec,
};

/// The interval between searches for sidecars.
const EVERY: Duration = Duration::from_secs(10);

/// The number of services on NATS up to which each search asks all of them. With more services, fewer
/// searches do. Every node is a service too, so the answers would grow with the square of the number of
/// nodes.
const ASKED_EACH_TIME: usize = 50;

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
        // How many searches ask only the sidecars that are known, before one asks all services.
        let mut until_all = 0;
        loop {
            if news.is_none() {
                news = self.listen().await;
                until_all = 0;
            }
            until_all = match until_all {
                0 => self.ask_all().await,
                left => {
                    self.ask_known(BTreeSet::new()).await;
                    left - 1
                }
            };
            self.report(&changed);
            self.0.known.has_looked();
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

    /// Searches for sidecars among all services. Returns how many of the next searches need not ask all.
    async fn ask_all(&self) -> usize {
        match self.0.bus.services(None, QUIET).await {
            Ok(answers) => {
                let prefix = &self.0.settings.prefix;
                let named = answers.iter().filter_map(|answer| name_in(answer, prefix));
                self.ask_known(named.collect()).await;
                return answers.len().saturating_sub(1) / ASKED_EACH_TIME;
            }
            Err(error @ BusError::Denied(_)) => {
                self.warn(format!("sidecars cannot be found: {error}"))
            }
            Err(error) => tracing::debug!(%error, "cannot search for sidecars"),
        }
        0
    }

    /// Asks the known sidecars and those that were just found what they offer.
    async fn ask_known(&self, found: BTreeSet<SidecarId>) {
        let mut names = found;
        names.extend(self.directory().names());
        if let Some(instances) = self.descriptions(names).await {
            self.directory().swept(instances);
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

/// One running instance of a sidecar.
#[derive(Debug, Clone)]
pub struct SidecarInstance {
    pub sidecar: SidecarId,
    pub id: String,
    pub version: String,
    pub offers: Vec<SidecarOffer>,
    /// Descriptions of the parts that were ignored, with the reasons.
    pub faults: Vec<String>,
}

/// A tool or a compactor that a sidecar offers.
#[derive(Debug, Clone, PartialEq)]
pub struct SidecarOffer {
    pub name: String,
    /// The complete subject to which requests are sent.
    pub subject: String,
    /// For a tool, the maximum time to wait for the answer or the next progress message. For a
    /// compactor, the maximum duration of a call.
    pub timeout: Duration,
    pub kind: OfferKind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum OfferKind {
    Tool(ToolSpec),
    Compactor,
}

/// The time-outs for offers that state none.
#[derive(Debug, Clone, Copy)]
pub struct DefaultTimeouts {
    pub tool: Duration,
    pub compactor: Duration,
}

impl Default for DefaultTimeouts {
    fn default() -> Self {
        Self {
            tool: Duration::from_millis(TOOL_TIMEOUT_MS),
            compactor: Duration::from_millis(COMPACTOR_TIMEOUT_MS),
        }
    }
}

impl SidecarInstance {
    /// Parses a description. Returns `None` if it is not the description of a sidecar of this
    /// cluster.
    pub fn read(answer: &[u8], prefix: &Prefix, patience: DefaultTimeouts) -> Option<Self> {
        let (sidecar, info) = described(answer, prefix)?;
        let (mut offers, mut faults) = (Vec::new(), Vec::new());
        for endpoint in info.endpoints {
            let name = endpoint.name.clone();
            match (InfoReader {
                sidecar: &sidecar,
                prefix,
                patience,
            })
            .offer(endpoint)
            {
                Ok(offer) => offers.push(offer),
                Err(why) => {
                    faults.push(format!("sidecar `{sidecar}`: `{name}` is left out: {why}"))
                }
            }
        }
        Some(Self {
            sidecar,
            id: info.id,
            version: info.version,
            offers,
            faults,
        })
    }
}

/// Returns the name of the sidecar that a description is of, without the work of reading what it
/// offers. Returns `None` if it is not the description of a sidecar of this cluster.
pub fn name_in(answer: &[u8], prefix: &Prefix) -> Option<SidecarId> {
    described(answer, prefix).map(|(sidecar, _)| sidecar)
}

fn described(answer: &[u8], prefix: &Prefix) -> Option<(SidecarId, ServiceInfo)> {
    let info: ServiceInfo = serde_json::from_slice(answer).ok()?;
    let metadata_of = |key: &str| info.metadata.get(key).map_or("", String::as_str);
    if metadata_of(metadata::PLANCK) != "1"
        || metadata_of(metadata::PREFIX) != prefix.as_str()
        || info.name == NODE_SERVICE
    {
        return None;
    }
    Some((SidecarId::parse(&info.name).ok()?, info))
}

struct InfoReader<'a> {
    sidecar: &'a SidecarId,
    prefix: &'a Prefix,
    patience: DefaultTimeouts,
}

impl InfoReader<'_> {
    fn offer(&self, endpoint: ServiceEndpoint) -> Result<SidecarOffer, String> {
        let get = |key: &str| endpoint.metadata.get(key).map(String::as_str);
        let kind = get(metadata::KIND).unwrap_or_default();
        let (place, usual): (fn(&SidecarId, &str) -> String, _) = match kind {
            metadata::TOOL => (subject::tool, self.patience.tool),
            metadata::COMPACTOR => (subject::compactor, self.patience.compactor),
            other => {
                return Err(format!(
                    "its `{}` is `{other}`, not `tool` or `compactor`",
                    metadata::KIND
                ));
            }
        };
        let own = self
            .prefix
            .off(&endpoint.subject)
            .and_then(|own| subject::offered(own, place, self.sidecar));
        let name = own.ok_or_else(|| {
            format!(
                "its subject is `{}`, not `{}`",
                endpoint.subject,
                self.prefix.on(place(self.sidecar, "<name>"))
            )
        })?;
        let timeout = get(metadata::TIMEOUT_MS).map_or(Ok(usual), timeout)?;
        let kind = if kind == metadata::TOOL {
            OfferKind::Tool(tool(name, get)?)
        } else {
            OfferKind::Compactor
        };
        Ok(SidecarOffer {
            name: name.to_owned(),
            subject: endpoint.subject.clone(),
            timeout,
            kind,
        })
    }
}

fn check_parameters(text: &str) -> Result<(), String> {
    CompiledSchema::compile(text).map_err(|why| format!("its `parameters` are wrong: {why}"))?;
    let schema: Value = serde_json::from_str(text)
        .map_err(|why| format!("its `parameters` are not JSON: {why}"))?;
    match unknown_required(&schema) {
        Some(name) => Err(format!(
            "its `parameters` require `{name}`, which is none of their `properties`; describe it there, or take it out of `required`"
        )),
        None => Ok(()),
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    let millis = text.parse().ok().filter(|millis| *millis > 0);
    millis
        .map(Duration::from_millis)
        .ok_or_else(|| format!("its `timeout_ms` is `{text}`, not a number of milliseconds"))
}

fn tool<'a>(name: &str, get: impl Fn(&str) -> Option<&'a str>) -> Result<ToolSpec, String> {
    let description = get(metadata::DESCRIPTION)
        .filter(|text| !text.trim().is_empty())
        .ok_or("it has no `description`")?;
    let parameters = get(metadata::PARAMETERS).ok_or("it has no `parameters`")?;
    check_parameters(parameters)?;
    let effect = get(metadata::EFFECT).map_or(Ok(ToolEffect::default()), |text| {
        ToolEffect::find(text).ok_or_else(|| {
            format!("its `effect` is `{text}`, not `pure`, `idempotent` or `mutating`")
        })
    })?;
    let parameters: Arc<RawValue> = RawValue::from_string(parameters.to_owned())
        .map_err(|why| why.to_string())?
        .into();
    Ok(ToolSpec {
        name: name.into(),
        description: description.into(),
        parameters,
        effect,
        sidecar: None,
        wait: None,
        is_searched: true,
    })
}

#[cfg(test)]
mod tests;
