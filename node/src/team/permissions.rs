//! The permissions of members: which layers an agent has, and whether its own rules are valid.

use planck_common::{permission::Permissions, spec::Member};

use super::{context::TeamContext, mistake::Mistakes};
use crate::agent::permission;

/// Returns the layers of an agent: those that it inherits, those of the node and of the request that
/// started the session, and its own. Layers that let every call run are left out, and so are layers
/// that the agent has already. A layer only ever makes an agent's permissions stricter, so an agent
/// is never permitted more than its spawner.
pub(super) fn layers(
    inherited: &[Permissions],
    context: &TeamContext,
    member: &Member,
) -> Vec<Permissions> {
    let own = Permissions {
        mode: member.permission_mode.unwrap_or_default(),
        rules: member.permissions.clone(),
    };
    let mut layers: Vec<Permissions> = Vec::new();
    for layer in inherited.iter().chain(&context.permissions).chain([&own]) {
        if !layer.allow_everything() && !layers.contains(layer) {
            layers.push(layer.clone());
        }
    }
    layers
}

pub(super) fn check(member: &Member, mistakes: &mut Mistakes<'_>) {
    for mistake in permission::check(&member.permissions) {
        let field = format!("permissions{}", mistake.field);
        mistakes.field(&field, mistake.what, mistake.remedy);
    }
}
