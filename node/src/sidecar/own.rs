//! The sidecars of the node itself: its MCP servers. Only the agents of this node call them, without
//! NATS.

use std::{collections::BTreeMap, time::Duration};

use planck_common::{
    SidecarId,
    command::SidecarRow,
    subject::{self, Prefix},
};
use planck_toolbox::Tool as _;
use tokio::sync::watch;

use super::{
    InProcessTool,
    discovery::{OfferKind, SidecarOffer},
};

/// A sidecar of the node itself.
#[derive(Clone)]
pub struct OwnSidecar {
    pub version: String,
    pub tools: Vec<InProcessTool>,
    pub is_running: bool,
    /// Why the sidecar or a part of it cannot be used.
    pub problem: Option<String>,
}

impl OwnSidecar {
    pub fn offers(&self, name: &SidecarId, prefix: &Prefix) -> Vec<SidecarOffer> {
        let offer = |tool: &InProcessTool| SidecarOffer {
            name: tool.spec().name.clone(),
            // The subject that the tool would have over NATS. It identifies the tool.
            subject: prefix.on(subject::tool(name, &tool.spec().name)),
            timeout: Duration::ZERO,
            kind: OfferKind::Tool(tool.spec().clone()),
        };
        self.tools.iter().map(offer).collect()
    }

    pub fn tool(&self, name: &str) -> Option<&InProcessTool> {
        self.tools.iter().find(|tool| tool.spec().name == name)
    }

    pub fn row(&self, name: &SidecarId) -> SidecarRow {
        SidecarRow {
            name: name.to_string(),
            version: self.version.clone(),
            instances: u32::from(self.is_running),
            tools: self
                .tools
                .iter()
                .map(|tool| tool.spec().name.clone())
                .collect(),
            compactors: Vec::new(),
            problem: self.problem.clone(),
        }
    }
}

/// The sidecars of the node by name. One that has not offered anything yet is `None`.
pub struct OwnSidecars(watch::Sender<BTreeMap<SidecarId, Option<OwnSidecar>>>);

impl OwnSidecars {
    pub fn new(names: impl IntoIterator<Item = SidecarId>) -> Self {
        let unknown = names.into_iter().map(|name| (name, None));
        Self(watch::Sender::new(unknown.collect()))
    }

    /// Sets what a sidecar offers. [`Self::tell`] tells those that wait for it, once the catalogue has
    /// its tools.
    pub fn set(&self, name: SidecarId, sidecar: OwnSidecar) {
        self.0.send_if_modified(|all| {
            all.insert(name, Some(sidecar));
            false
        });
    }

    pub fn tell(&self) {
        self.0.send_modify(|_| ());
    }

    pub fn known(&self) -> BTreeMap<SidecarId, OwnSidecar> {
        let all = self.0.borrow();
        let known = all.iter();
        known
            .filter_map(|(name, own)| Some((name.clone(), own.clone()?)))
            .collect()
    }

    /// Waits until each of them has offered something, or has failed to.
    pub async fn all_known(&self) {
        let mut all = self.0.subscribe();
        let _ended = all.wait_for(|all| all.values().all(Option::is_some)).await;
    }
}
