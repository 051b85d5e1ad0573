//! Finds out that a provider has no key before a session is created.

use planck_common::spec::{Member, ModelRef};

use super::SessionChoice;
use crate::exit::UsageError;
use planck_node::{
    config::Config,
    node,
    team::{self, KnownModels, mistake::Mistakes},
};
use planck_providers::Preset;
use planck_toolbox::project::SourcePart;

impl SessionChoice {
    /// Returns an error if a provider of the members has no key, before a session is created that
    /// could do nothing. With NATS the keys are those of the nodes, and nothing is checked.
    pub fn check_keys(&self, config: &Config) -> anyhow::Result<()> {
        if config.nats.url.is_some() {
            return Ok(());
        }
        let members = match self.team()? {
            (_, Some(members)) => members,
            (Some(name), None) => {
                let found = team::find(&config.sources(SourcePart::Teams), &name);
                let file = found.ok().flatten();
                let team = file.and_then(|file| team::load(&file).ok());
                team.map_or_else(Vec::new, |team| team.members)
            }
            (None, None) => vec![Member::default()],
        };
        let known = KnownModels::of(config);
        let default = node::default_model(config);
        let mut ignored = Vec::new();
        for member in &members {
            let mut mistakes = Mistakes::in_file("", &mut ignored);
            let model = known.choose(member, default.as_ref(), &mut mistakes);
            let lacks_key = |model: &ModelRef| {
                let providers = &config.providers;
                model.base_url.is_none()
                    && providers.has(&model.provider)
                    && !providers.is_ready(&model.provider)
            };
            if let Some(model) = model.filter(lacks_key) {
                return Err(UsageError(no_key(&model.provider)).into());
            }
        }
        Ok(())
    }
}

/// Returns the error about a provider without a key, with the ways to set it.
fn no_key(provider: &str) -> String {
    let variable = Preset::find(provider).and_then(|preset| preset.key_variable);
    let variable = variable.map_or(String::new(), |variable| format!("{variable} or "));
    format!("provider `{provider}` has no key; set {variable}`providers.{provider}.api_key`")
}
