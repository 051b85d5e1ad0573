//! The sidecars that a node knows: which of them exist, what they offer, and calls to them.

mod directory;
mod discovery;

mod call;
mod compactor;
mod known;
mod tool;

mod in_process;
mod own;

#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use planck_common::{SidecarId, command::SidecarRow, subject::Prefix};
use tokio::time::{Instant, timeout};

pub use self::tool::{RemoteTool, call_tool, plain_tools};
pub use discovery::DefaultTimeouts;
pub use in_process::{FindTool, InProcessTool};
pub use own::OwnSidecar;

use self::{directory::Directory, known::KnownSidecars, own::OwnSidecars};
use crate::bus::Bus;
use directory::{NamedTool, assign_names};
use discovery::SidecarOffer;
use planck_toolbox::{Tool, ToolCatalogue};

/// The maximum time to wait for the first search for sidecars. An agent waits if it may need a tool
/// or a compactor of a sidecar.
const FIRST_LOOK: Duration = Duration::from_secs(3);

/// The maximum time to wait for the first offers of the node's own sidecars. It is as long as a server
/// may take to start, because the node's user wants exactly these, and one that was used before needs
/// no wait.
const FIRST_START: Duration = Duration::from_secs(30);

/// The sidecars of a node. Clones share them.
#[derive(Clone)]
pub struct Sidecars(Arc<SidecarsInner>);

struct SidecarsInner {
    bus: Arc<dyn Bus>,
    catalogue: ToolCatalogue,
    settings: SidecarSettings,
    known: Arc<KnownSidecars>,
    own: OwnSidecars,
    shown: Mutex<PublishedOffers>,
    /// Compactors that did not answer in time, each with the time until which it is not asked.
    resting: Mutex<HashMap<String, Instant>>,
}

/// The settings that concern sidecars.
#[derive(Debug, Clone, Default)]
pub struct SidecarSettings {
    pub prefix: Prefix,
    /// The names of the sidecars that the node uses. `None` allows all of them.
    pub allow: Option<Vec<String>>,
    pub patience: DefaultTimeouts,
    /// The names of the node's own sidecars.
    pub own: Vec<SidecarId>,
}

/// The offers that are in the catalogue, and the warnings that are not logged again while the
/// offers stay the same.
#[derive(Default)]
struct PublishedOffers {
    offers: BTreeMap<SidecarId, Vec<SidecarOffer>>,
    warned: BTreeSet<String>,
}

impl Sidecars {
    pub fn new(bus: Arc<dyn Bus>, catalogue: ToolCatalogue, settings: SidecarSettings) -> Self {
        let directory = Directory::allowing(settings.allow.clone());
        let own = OwnSidecars::new(settings.own.clone());
        let (shown, resting) = Default::default();
        Self(Arc::new(SidecarsInner {
            bus,
            catalogue,
            settings,
            known: Arc::new(KnownSidecars::new(directory)),
            own,
            shown,
            resting,
        }))
    }

    pub fn rows(&self) -> Vec<SidecarRow> {
        let own = self.0.own.all();
        let mut rows = self.directory().rows();
        rows.retain(|row| !own.keys().any(|name| row.name == name.as_str()));
        rows.extend(own.iter().map(|(name, own)| own.row(name)));
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        rows
    }

    /// Sets what a sidecar of the node itself offers. It hides sidecars of the same name that are
    /// found over NATS. Returns whether the offered tools have changed.
    pub fn set_own(&self, name: SidecarId, sidecar: OwnSidecar) -> bool {
        let is_settled = sidecar.is_settled;
        self.0.own.set(name.clone(), sidecar);
        let is_new = self.show();
        self.0.own.tell(&name, is_settled);
        is_new
    }

    /// Records that no search is made, because no other process is on the bus.
    pub fn are_none(&self) {
        self.0.known.has_looked();
    }

    /// Waits until the first search has ended, but at most [`FIRST_LOOK`], and until the node's own
    /// sidecars are settled, but at most [`FIRST_START`].
    pub async fn looked(&self) {
        let _as_it_is = tokio::join!(
            timeout(FIRST_LOOK, self.0.known.looked()),
            timeout(FIRST_START, self.0.own.all_settled())
        );
    }

    /// Updates the catalogue with the current offers, and logs new warnings. Returns whether the
    /// offers have changed.
    fn show(&self) -> bool {
        // The offers are read under the lock, so that older ones do not replace newer ones.
        let mut shown = lock(&self.0.shown);
        let (mut offers, faults) = {
            let directory = self.directory();
            (directory.offers(), directory.faults().collect::<Vec<_>>())
        };
        let own = self.0.own.all();
        let prefix = &self.0.settings.prefix;
        let of_own = own
            .iter()
            .map(|(name, own)| (name.clone(), own.offers(name, prefix)));
        offers.extend(of_own);
        let is_new = shown.offers != offers;
        let mut warnings = faults;
        if is_new {
            let assigned = assign_names(&offers, |name| self.0.catalogue.is_own(name));
            let tool = |named: &NamedTool| match own.get(&named.sidecar) {
                Some(own) => {
                    let tool = own.tool(&named.offer.name)?;
                    let tool = tool.of_sidecar(&named.name, &named.sidecar);
                    Some(Arc::new(tool) as Arc<dyn Tool>)
                }
                None => {
                    let (bus, known) = (Arc::clone(&self.0.bus), Arc::clone(&self.0.known));
                    Some(Arc::new(RemoteTool::of(named, bus, known)?) as Arc<dyn Tool>)
                }
            };
            let tools = assigned
                .tools
                .iter()
                .map(|(name, tools)| (name.clone(), tools.iter().filter_map(tool).collect()));
            let bad = self.0.catalogue.offer(tools.collect());
            warnings.extend(
                assigned
                    .warnings
                    .into_iter()
                    .chain(bad.iter().map(ToString::to_string)),
            );
            shown.offers = offers;
        }
        shown.warn(warnings, is_new);
        is_new
    }

    fn directory(&self) -> MutexGuard<'_, Directory> {
        self.0.known.directory()
    }
}

impl PublishedOffers {
    /// Logs the warnings that have not been logged yet. If `is_new` is set, the offers have
    /// changed, and warnings that no longer apply are forgotten.
    fn warn(&mut self, warnings: Vec<String>, is_new: bool) {
        for warning in warnings
            .iter()
            .filter(|warning| !self.warned.contains(*warning))
        {
            tracing::warn!("{warning}");
        }
        if is_new {
            self.warned.clear();
        }
        self.warned.extend(warnings);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
