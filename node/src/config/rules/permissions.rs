//! The rules about the permissions of agents.

use super::BrokenRule;
use crate::{agent::permission, config::Config};

pub(super) fn check(config: &Config) -> Vec<BrokenRule> {
    let mistakes = permission::check(&config.permissions.rules.0).into_iter();
    mistakes
        .map(|mistake| {
            let what = match mistake.field.as_str() {
                "" => mistake.what,
                field => format!("{field}: {}", mistake.what),
            };
            BrokenRule::new("permissions.rules", what, mistake.remedy)
        })
        .collect()
}
