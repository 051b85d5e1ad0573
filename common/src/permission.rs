//! Permissions: rules that decide whether a tool call runs at once, after an approval, or not at
//! all.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::event::ToolEffect;

/// The names of the built-in tools that act only inside their session: they read its team and its
/// skills, and give its agents work. [`PermissionMode`] counts their calls as calls that change
/// nothing, whatever effect they declare, because each agent that they reach has permissions of its
/// own. A rule about such a tool applies as about any other.
pub const SESSION_TOOLS: [&str; 10] = [
    "ask_agent",
    "delegate_task",
    "list_team",
    "send_response",
    "spawn_agent",
    "destroy_agent",
    "interrupt_agent",
    "list_models",
    "list_skills",
    "load_skill",
];

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

impl RuleAction {
    /// Returns the name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

/// What happens to a call that no rule matches. A call may change something unless its tool declares
/// the effect `pure` or is one of [`SESSION_TOOLS`]. In particular a tool with the effect
/// `idempotent` may change something: the effect says only that a second run changes nothing more.
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
    /// A path below the working directory, or an absolute path. `*` stands for any characters but
    /// `/`, and `**` for any number of folders. It is compared with the argument `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The words of a simple command, of which a last word `*` stands for any further words. They
    /// are compared with the argument `command`.
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
    /// Returns the permissions of a mode without rules.
    pub const fn of_mode(mode: PermissionMode) -> Self {
        Self {
            mode,
            rules: Vec::new(),
        }
    }

    /// Returns whether these permissions let every call run. A rule that needs an argument asks if
    /// it cannot read the argument, so such a rule does not let every call run.
    pub fn allow_everything(&self) -> bool {
        let always_allows = |rule: &Rule| {
            rule.action == RuleAction::Allow && rule.path.is_none() && rule.command.is_none()
        };
        self.mode == PermissionMode::Auto && self.rules.iter().all(always_allows)
    }
}

/// The arguments of a call at which rules look.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct RuleArguments {
    pub path: Option<RuleArgument>,
    pub command: Option<RuleArgument>,
    /// The directory in which a command runs, if it is not the session's.
    pub cwd: Option<RuleArgument>,
}

/// An argument at which rules look.
#[derive(Debug, Clone, PartialEq)]
pub enum RuleArgument {
    Text(String),
    /// Another value, which no rule can read. It is not kept.
    Other,
}

impl RuleArgument {
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Other => None,
        }
    }
}

impl<'de> Deserialize<'de> for RuleArgument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        Ok(match serde_json::from_str(raw.get()) {
            Ok(text) => Self::Text(text),
            Err(_) => Self::Other,
        })
    }
}

impl RuleArguments {
    /// Reads the text of a call's arguments. Returns `None` if the text is no JSON object, or if
    /// one of these arguments occurs twice, because the tool could use the other one.
    pub fn read(args: &str) -> Option<Self> {
        // The derived implementation would also read an array.
        let is_object = args.trim_start().starts_with('{');
        serde_json::from_str(args).ok().filter(|_| is_object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_actions_have_the_names_of_serde() {
        for mode in PermissionMode::ALL {
            let name = format!("{:?}", mode.name());
            assert_eq!(serde_json::to_string(mode).unwrap(), name);
            assert_eq!(PermissionMode::find(mode.name()), Some(*mode));
        }
        assert_eq!(PermissionMode::find("careless"), None);
        for action in [RuleAction::Allow, RuleAction::Ask, RuleAction::Deny] {
            let name = format!("{:?}", action.name());
            assert_eq!(serde_json::to_string(&action).unwrap(), name);
        }
    }

    #[test]
    fn an_argument_that_occurs_twice_is_not_read() {
        let read = |args| RuleArguments::read(args);
        assert_eq!(
            read(r#"{"path": "a", "x": [{"path": "b"}]}"#).unwrap().path,
            Some(RuleArgument::Text("a".into()))
        );
        assert_eq!(read("{}"), Some(RuleArguments::default()));
        for args in [
            r#"{"command": "ls", "command": "rm -r ."}"#,
            r#"{"path": "a", "p\u0061th": "b"}"#,
            r#"["a", "b"]"#,
            r#""a""#,
            r#"{"path": "a""#,
            "",
        ] {
            assert_eq!(read(args), None, "{args}");
        }
    }

    #[test]
    fn a_rule_that_needs_an_argument_does_not_allow_everything() {
        let with = |rule: &str| Permissions {
            rules: vec![serde_json::from_str(rule).unwrap()],
            ..Permissions::default()
        };
        assert!(Permissions::default().allow_everything());
        assert!(with(r#"{"tool": "bash", "action": "allow"}"#).allow_everything());
        assert!(!with(r#"{"path": "a", "action": "allow"}"#).allow_everything());
        assert!(!with(r#"{"action": "ask"}"#).allow_everything());
        assert!(!Permissions::of_mode(PermissionMode::Careful).allow_everything());
    }
}
