//! Assigns the names under which agents use the tools of sidecars: one with the sidecar's name, and
//! also the tool's own name if no other tool has it. This module does no I/O.

use std::collections::BTreeMap;

use planck_common::{SidecarId, id::is_id};

use super::info::{OfferKind, SidecarOffer};

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
/// not assigned if it is too long or taken. A tool's own name selects the tool too, unless the node
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
mod tests {
    use std::time::Duration;

    use super::*;
    use planck_toolbox::spec;

    fn offer(name: &str) -> SidecarOffer {
        let tool = spec(
            name,
            "does it",
            Default::default(),
            &serde_json::json!({"type": "object"}),
        );
        SidecarOffer {
            name: name.into(),
            subject: String::new(),
            timeout: Duration::from_secs(1),
            kind: OfferKind::Tool(tool),
        }
    }

    fn names(offers: &[(&str, &[&str])]) -> (Vec<(String, Vec<String>)>, usize) {
        let offers = offers.iter().map(|(sidecar, tools)| {
            (
                SidecarId::parse(sidecar).unwrap(),
                tools.iter().map(|tool| offer(tool)).collect(),
            )
        });
        let assigned = assign_names(&offers.collect(), |name| name == "read");
        let shown = |tools: Vec<NamedTool>| tools.into_iter().map(|tool| tool.name).collect();
        (
            assigned
                .tools
                .into_iter()
                .map(|(name, tools)| (name, shown(tools)))
                .collect(),
            assigned.warnings.len(),
        )
    }

    fn same(names: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
        names
            .iter()
            .map(|(name, tools)| {
                (
                    (*name).into(),
                    tools.iter().map(|tool| (*tool).into()).collect(),
                )
            })
            .collect()
    }

    #[test]
    fn a_unique_name_is_available_next_to_the_qualified_one() {
        assert_eq!(
            names(&[("a", &["add"])]),
            (same(&[("a__add", &["a__add"]), ("add", &["add"])]), 0)
        );
    }

    #[test]
    fn a_shared_name_stands_for_all_its_tools() {
        let expected = same(&[
            ("a__add", &["a__add"]),
            ("add", &["a__add", "b__add"]),
            ("b__add", &["b__add"]),
        ]);
        assert_eq!(names(&[("a", &["add"]), ("b", &["add"])]), (expected, 1));
    }

    #[test]
    fn a_tool_of_the_node_keeps_its_name() {
        assert_eq!(
            names(&[("a", &["read"])]),
            (same(&[("a__read", &["a__read"])]), 1)
        );
    }

    #[test]
    fn a_name_too_long_to_be_qualified_is_available_unqualified_only() {
        let long = "x".repeat(60);
        assert_eq!(
            names(&[("abcd", &[&long])]),
            (same(&[(&long, &[&long])]), 0)
        );
    }
}
