//! The table of known sidecars, and the names under which agents use their tools. This module
//! updates the table from the descriptions that instances send, and decides which instances still
//! exist. It does no I/O.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, VecDeque},
};

use planck_common::{SidecarId, command::SidecarRow, event::ToolEffect, id::is_id};

use super::discovery::{OfferKind, SidecarInstance, SidecarOffer};

/// The number of consecutive searches without an answer after which an instance is removed.
const MISSES: u32 = 3;

/// The maximum number of tools whose strictest effect is remembered.
const EFFECTS: usize = 16_384;

/// The maximum number of stopped instances that are remembered. A stopped instance may still answer
/// searches for a while, and its answers are ignored.
const GONE: usize = 1024;

#[derive(Debug, Default)]
pub struct Directory {
    /// The names of the sidecars that may be in the table. `None` allows all of them.
    allow: Option<Vec<String>>,
    sidecars: BTreeMap<SidecarId, BTreeMap<String, SeenInstance>>,
    gone: VecDeque<GoneInstance>,
    /// The number of searches for all instances that have ended.
    searches: u32,
    /// The strictest effect with which a tool was described since the node started, by the tool's
    /// subject. A later description cannot make calls run that would have asked a person before.
    effects: BTreeMap<String, ToolEffect>,
}

#[derive(Debug)]
struct SeenInstance {
    instance: SidecarInstance,
    misses: u32,
    /// The number of searches that had ended before the instance was found.
    since: u32,
}

/// An instance that takes no more calls. It may still answer those that it has.
#[derive(Debug)]
struct GoneInstance {
    sidecar: SidecarId,
    id: String,
    /// The number of searches that had ended when it said so.
    at: u32,
}

impl Directory {
    pub fn allowing(allow: Option<Vec<String>>) -> Self {
        Self {
            allow,
            ..Self::default()
        }
    }

    /// Adds or updates these instances, except those that are not allowed or have stopped. All
    /// other instances are left unchanged.
    pub fn update(&mut self, instances: Vec<SidecarInstance>) {
        for instance in instances {
            if self.admits(&instance) {
                self.remember_effects(&instance);
                let known = self.sidecars.entry(instance.sidecar.clone()).or_default();
                let since = known
                    .get(&instance.id)
                    .map_or(self.searches, |seen| seen.since);
                known.insert(
                    instance.id.clone(),
                    SeenInstance {
                        instance,
                        misses: 0,
                        since,
                    },
                );
            }
        }
    }

    /// Records the result of a search for all instances. Instances that did not answer [`MISSES`]
    /// consecutive searches are removed.
    pub fn swept(&mut self, instances: Vec<SidecarInstance>) {
        for seen in self.sidecars.values_mut().flat_map(BTreeMap::values_mut) {
            seen.misses += 1;
        }
        self.update(instances);
        self.searches += 1;
        self.sidecars
            .values_mut()
            .for_each(|instances| instances.retain(|_, seen| seen.misses < MISSES));
        self.sidecars.retain(|_, instances| !instances.is_empty());
    }

    /// Removes an instance that has stopped accepting calls, and remembers it so that its later
    /// answers are ignored.
    pub fn left(&mut self, sidecar: &SidecarId, instance: &str) {
        if self.gone.len() >= GONE {
            self.gone.pop_front();
        }
        self.gone.push_back(GoneInstance {
            sidecar: sidecar.clone(),
            id: instance.to_owned(),
            at: self.searches,
        });
        if let Some(instances) = self.sidecars.get_mut(sidecar) {
            instances.remove(instance);
        }
        self.sidecars.retain(|_, instances| !instances.is_empty());
    }

    pub fn knows(&self, sidecar: &SidecarId) -> bool {
        self.sidecars.contains_key(sidecar)
    }

    pub fn searches(&self) -> u32 {
        self.searches
    }

    /// Returns whether no instance is left that may have taken a call. `sent` and `heard` are the
    /// numbers of searches that had ended when the call was sent and at its last sign of life. An
    /// instance that was found by the next search after `sent` may have run before. An instance that
    /// stopped since then may still answer the call, however long that takes.
    pub fn is_lost(&self, sidecar: &SidecarId, sent: u32, heard: u32) -> bool {
        let mut left = self.sidecars.get(sidecar).into_iter().flatten();
        let mut stopped = self.gone.iter();
        self.searches >= heard + MISSES
            && !left.any(|(_, seen)| seen.since <= sent)
            && !stopped.any(|gone| gone.sidecar == *sidecar && gone.at >= sent)
    }

    pub fn names(&self) -> Vec<SidecarId> {
        self.sidecars.keys().cloned().collect()
    }

    fn remember_effects(&mut self, instance: &SidecarInstance) {
        for offer in &instance.offers {
            let OfferKind::Tool(tool) = &offer.kind else {
                continue;
            };
            if let Some(known) = self.effects.get_mut(&offer.subject) {
                *known = tool.effect.max(*known);
            } else if self.effects.len() < EFFECTS {
                self.effects.insert(offer.subject.clone(), tool.effect);
            }
        }
    }

    fn admits(&self, instance: &SidecarInstance) -> bool {
        let is_allowed = self
            .allow
            .as_ref()
            .is_none_or(|allow| allow.iter().any(|name| *name == *instance.sidecar));
        is_allowed && !self.gone.iter().any(|gone| gone.id == instance.id)
    }

    /// Returns the offers of each sidecar. If two instances of a sidecar describe the same offer
    /// differently, the instance with the higher version decides, except about the effect of a tool:
    /// the strictest one holds that was described since the node started.
    pub fn offers(&self) -> BTreeMap<SidecarId, Vec<SidecarOffer>> {
        let mut all = BTreeMap::new();
        for (name, instances) in &self.sidecars {
            let mut offers = offers(instances);
            for offer in &mut offers {
                if let (OfferKind::Tool(tool), Some(effect)) =
                    (&mut offer.kind, self.effects.get(&offer.subject))
                {
                    tool.effect = *effect;
                }
            }
            all.insert(name.clone(), offers);
        }
        all
    }

    /// Returns a message for each ignored part of an instance's description, with the reason.
    pub fn faults(&self) -> impl Iterator<Item = String> {
        let seen = self.sidecars.values().flat_map(BTreeMap::values);
        seen.flat_map(|seen| {
            let weaker = seen.instance.offers.iter().filter_map(|offer| {
                let OfferKind::Tool(tool) = &offer.kind else {
                    return None;
                };
                let known = *self.effects.get(&offer.subject)?;
                let (sidecar, name) = (&seen.instance.sidecar, &offer.name);
                let (now, known_name) = (tool.effect.name(), known.name());
                (known > tool.effect).then(|| {
                    format!(
                        "sidecar `{sidecar}`: `{name}` was `{known_name}`, and is described as `{now}`: it counts as `{known_name}` until the node restarts"
                    )
                })
            });
            seen.instance.faults.iter().cloned().chain(weaker)
        })
    }

    pub fn rows(&self) -> Vec<SidecarRow> {
        self.sidecars
            .iter()
            .map(|(name, instances)| row(name, instances))
            .collect()
    }
}

fn offers(instances: &BTreeMap<String, SeenInstance>) -> Vec<SidecarOffer> {
    let mut instances: Vec<&SidecarInstance> =
        instances.values().map(|seen| &seen.instance).collect();
    instances.sort_by(|one, other| compare_versions(&one.version, &other.version));
    let all = instances.iter().flat_map(|instance| &instance.offers);
    let offers: BTreeMap<(bool, &str), &SidecarOffer> = all
        .map(|offer| {
            (
                (offer.kind == OfferKind::Compactor, offer.name.as_str()),
                offer,
            )
        })
        .collect();
    offers.into_values().cloned().collect()
}

/// Compares two versions such as `1.10.0`: number by number, and a pre-release like `1.10.0-rc.1`
/// before its release. Other texts are lower than all versions.
fn compare_versions(one: &str, other: &str) -> Ordering {
    let parts = |version: &str| {
        let version = version.split('+').next().unwrap_or_default();
        let (numbers, pre) = version.split_once('-').unwrap_or((version, ""));
        let numbers: Option<Vec<u64>> = numbers.split('.').map(|part| part.parse().ok()).collect();
        numbers.map(|numbers| (numbers, pre.is_empty(), pre.to_owned()))
    };
    parts(one).cmp(&parts(other)).then(one.cmp(other))
}

fn row(name: &SidecarId, instances: &BTreeMap<String, SeenInstance>) -> SidecarRow {
    let (compactors, tools): (Vec<SidecarOffer>, Vec<SidecarOffer>) = offers(instances)
        .into_iter()
        .partition(|offer| offer.kind == OfferKind::Compactor);
    let names = |offers: Vec<SidecarOffer>| offers.into_iter().map(|offer| offer.name).collect();
    let versions = instances.values().map(|seen| &seen.instance.version);
    SidecarRow {
        name: name.to_string(),
        version: versions
            .max_by(|one, other| compare_versions(one, other))
            .cloned()
            .unwrap_or_default(),
        instances: u32::try_from(instances.len()).unwrap_or(u32::MAX),
        tools: names(tools),
        compactors: names(compactors),
        problem: None,
    }
}

/// A tool, and the name under which a model sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTool {
    pub name: String,
    pub sidecar: SidecarId,
    pub offer: SidecarOffer,
}

/// The tools for each name that a team spec may use, and the warnings for users.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ToolNames {
    pub tools: BTreeMap<String, Vec<NamedTool>>,
    pub warnings: Vec<String>,
}

/// Assigns names to all tools. The qualified name `<sidecar>__<tool>` names exactly one tool. It is
/// not assigned if it is too long or taken. `<sidecar>__*` selects all tools of a sidecar that have a
/// qualified name. A tool's own name selects the tool too, unless the node
/// has a tool of that name. If several sidecars offer a tool of that name, the name selects all of
/// these tools under their qualified names. `is_taken` returns whether the node has a tool of a
/// name.
pub fn assign_names(
    offers: &BTreeMap<SidecarId, Vec<SidecarOffer>>,
    is_taken: impl Fn(&str) -> bool,
) -> ToolNames {
    let mut assigned = ToolNames::default();
    for (name, owners) in by_name(offers) {
        let mut qualified: Vec<NamedTool> = owners
            .iter()
            .map(|(sidecar, offer)| named(sidecar, offer))
            .collect();
        qualified.retain(|tool| assigned.has_room(&tool.name, &is_taken));
        for tool in &qualified {
            assigned.tools.insert(tool.name.clone(), vec![tool.clone()]);
            let all = assigned.tools.entry(format!("{}__*", tool.sidecar));
            all.or_default().push(tool.clone());
        }
        match owners.as_slice() {
            _ if is_taken(name) => {
                assigned.warn(name, &owners, "is a tool of this node too", &qualified)
            }
            [(sidecar, offer)] => {
                let tool = NamedTool {
                    name: name.into(),
                    sidecar: (*sidecar).clone(),
                    offer: (*offer).clone(),
                };
                assigned.tools.insert(name.into(), vec![tool]);
            }
            _ => {
                assigned.warn(name, &owners, "is offered by several", &qualified);
                assigned.tools.insert(name.into(), qualified);
            }
        }
    }
    assigned
}

type Owners<'a> = Vec<(&'a SidecarId, &'a SidecarOffer)>;

fn by_name(offers: &BTreeMap<SidecarId, Vec<SidecarOffer>>) -> BTreeMap<&str, Owners<'_>> {
    let mut names: BTreeMap<&str, Owners<'_>> = BTreeMap::new();
    for (sidecar, offers) in offers {
        for offer in offers
            .iter()
            .filter(|offer| offer.kind != OfferKind::Compactor)
        {
            names.entry(&offer.name).or_default().push((sidecar, offer));
        }
    }
    names
}

fn named(sidecar: &SidecarId, offer: &SidecarOffer) -> NamedTool {
    NamedTool {
        name: format!("{sidecar}__{}", offer.name),
        sidecar: sidecar.clone(),
        offer: offer.clone(),
    }
}

impl ToolNames {
    fn has_room(&self, name: &str, is_taken: impl Fn(&str) -> bool) -> bool {
        is_id(name) && !is_taken(name) && !self.tools.contains_key(name)
    }

    fn warn(&mut self, name: &str, owners: &Owners<'_>, what: &str, qualified: &[NamedTool]) {
        let owners: Vec<&str> = owners.iter().map(|(sidecar, _)| sidecar.as_str()).collect();
        let names: Vec<&str> = qualified.iter().map(|tool| tool.name.as_str()).collect();
        let names = if names.is_empty() {
            "nothing: the longer name does not fit".into()
        } else {
            names.join(", ")
        };
        self.warnings.push(format!(
            "the tool `{name}` of sidecar {} {what}; it goes by {names}",
            owners.join(", ")
        ));
    }
}

#[cfg(test)]
mod tests;
