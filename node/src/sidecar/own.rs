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
    /// Whether the sidecar has offered something, or cannot be used. Agents wait for those that are
    /// not settled.
    pub is_settled: bool,
    /// Why the sidecar or a part of it cannot be used.
    pub problem: Option<String>,
}

impl OwnSidecar {
    pub fn starting() -> Self {
        Self {
            version: String::new(),
            tools: Vec::new(),
            is_running: false,
            is_settled: false,
            problem: Some("it is being started".into()),
        }
    }

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

/// The sidecars of the node by name.
pub struct OwnSidecars(watch::Sender<BTreeMap<SidecarId, OwnSidecar>>);

impl OwnSidecars {
    pub fn new(names: impl IntoIterator<Item = SidecarId>) -> Self {
        let starting = names.into_iter().map(|name| (name, OwnSidecar::starting()));
        Self(watch::Sender::new(starting.collect()))
    }

    /// Sets what a sidecar offers. Those that wait for it are told by [`Self::tell`] once the
    /// catalogue has its tools, so until then it is no more settled than before.
    pub fn set(&self, name: SidecarId, sidecar: OwnSidecar) {
        self.0.send_if_modified(|all| {
            let is_settled = all.get(&name).is_some_and(|former| former.is_settled);
            let sidecar = OwnSidecar {
                is_settled,
                ..sidecar
            };
            all.insert(name, sidecar);
            false
        });
    }

    pub fn tell(&self, name: &SidecarId, is_settled: bool) {
        self.0.send_modify(|all| {
            if let Some(sidecar) = all.get_mut(name) {
                sidecar.is_settled = is_settled;
            }
        });
    }

    pub fn all(&self) -> BTreeMap<SidecarId, OwnSidecar> {
        self.0.borrow().clone()
    }

    /// Waits until all of them are settled.
    pub async fn all_settled(&self) {
        let mut all = self.0.subscribe();
        let is_settled = |own: &OwnSidecar| own.is_settled;
        let _ended = all.wait_for(|all| all.values().all(is_settled)).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_sidecar_is_settled_only_when_the_catalogue_has_its_tools() {
        let names = ["one", "two"].map(|name| SidecarId::parse(name).unwrap());
        let all = OwnSidecars::new(names.clone());
        for name in &names {
            let sidecar = OwnSidecar {
                is_settled: true,
                ..OwnSidecar::starting()
            };
            all.set(name.clone(), sidecar);
        }
        let [one, two] = &names;
        all.tell(one, true);
        assert!(all.all_settled().now_or_never().is_none());
        all.tell(two, true);
        assert!(all.all_settled().now_or_never().is_some());
    }
}
