//! Settings for the permissions of agents.

use planck_common::permission::{PermissionMode, Rule};

use super::{InvalidValue, Setting, plain::text, shown_list};
use crate::config::values::{Raw, ValueContext};

impl Setting for PermissionMode {
    fn kind() -> String {
        Self::ALL
            .iter()
            .map(|mode| mode.name())
            .collect::<Vec<_>>()
            .join(" or ")
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        text(raw)
            .and_then(Self::find)
            .ok_or_else(|| InvalidValue::kind::<Self>(raw))
    }

    fn show(&self) -> Option<String> {
        Some(self.name().into())
    }
}

/// A list of rules about tool calls. In an environment variable it is written as JSON, because a
/// rule may contain commas.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuleList(pub Vec<Rule>);

impl Setting for RuleList {
    fn kind() -> String {
        "a list of rules, in the environment as JSON".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        let rules = match raw {
            Raw::Toml(toml::Value::Array(rules)) => {
                let read = |(at, rule): (usize, &toml::Value)| {
                    let read = rule.clone().try_into::<Rule>();
                    read.map_err(|error| refused(&format!("[{at}]: {}", error.message())))
                };
                rules
                    .iter()
                    .enumerate()
                    .map(read)
                    .collect::<Result<_, _>>()?
            }
            Raw::Toml(_) => return Err(InvalidValue::kind::<Self>(raw)),
            Raw::Text(text) => {
                serde_json::from_str(text).map_err(|error| refused(&error.to_string()))?
            }
        };
        Ok(Self(rules))
    }

    fn show(&self) -> Option<String> {
        Some(shown_list(&self.0))
    }
}

fn refused(what: &str) -> InvalidValue {
    InvalidValue {
        what: what.into(),
        remedy: "write rules like { tool = \"bash\", command = \"git push *\", action = \"ask\" }"
            .into(),
    }
}
