//! Permissions: rules that decide whether a tool call runs at once, after an approval, or not at
//! all.

use serde::{Deserialize, Serialize};

use crate::event::ToolEffect;

/// What happens to a call that a rule matches. The order is from the widest to the strictest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RuleAction {
    /// The call runs at once.
    Allow,
    /// The call runs when a person allows it.
    Ask,
    /// The call does not run.
    Deny,
}

/// What happens to a call that no rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PermissionMode {
    /// Every call runs.
    #[default]
    Auto,
    /// A call that may change something asks; the others run.
    Careful,
    /// A call that may change something is denied; the others run.
    ReadOnly,
}

impl PermissionMode {
    pub const ALL: &[Self] = &[Self::Auto, Self::Careful, Self::ReadOnly];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Careful => "careful",
            Self::ReadOnly => "read-only",
        }
    }

    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|mode| mode.name() == name)
    }
}

/// A rule about tool calls. It matches a call that fits every field that the rule has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// A tool's name, in which `*` stands for any characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The declared effect of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<ToolEffect>,
    /// A path below the working directory, in which `*` stands for any characters but `/`, and `**`
    /// for any characters. It is compared with the argument `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The first words of a command, in which a last word `*` stands for any further words. It is
    /// compared with the argument `command`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The sidecar that offers the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar: Option<String>,
    pub action: RuleAction,
}

/// Rules of one author, and the mode for the calls that none of them matches. The first rule that
/// matches decides.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Permissions {
    pub mode: PermissionMode,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}

impl Permissions {
    /// Returns whether these permissions let every call run.
    pub fn allow_everything(&self) -> bool {
        self.mode == PermissionMode::Auto
            && self
                .rules
                .iter()
                .all(|rule| rule.action == RuleAction::Allow)
    }
}
