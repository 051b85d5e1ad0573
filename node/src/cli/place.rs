//! Flags every command understands, and the configuration they lead to.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use crate::config::{
    Config, Loaded, Sources,
    load::{self},
};

#[derive(Debug, Clone, Args)]
pub struct Place {
    /// A configuration file to read over the usual ones
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// NATS servers, with commas between them
    #[arg(long, global = true, value_name = "URL")]
    nats: Option<String>,
    /// `sqlite:DIR` or `postgres://…`
    #[arg(long, global = true, value_name = "URL")]
    store: Option<String>,
}

impl Place {
    pub fn sources(&self, more: Vec<(String, String, String)>) -> anyhow::Result<Sources> {
        let flag = |key: &str, value: &Option<String>, flag: &str| Some((key.into(), value.clone()?, flag.into()));
        let own = [flag("nats.url", &self.nats, "--nats"), flag("store.url", &self.store, "--store")];
        let flags = own.into_iter().flatten().chain(more).collect();
        Sources::of_process(self.config.clone(), flags).context("cannot find the working directory")
    }

    pub fn load(&self) -> anyhow::Result<Loaded> {
        Ok(load::load(&self.sources(Vec::new())?)?)
    }

    pub fn config(&self) -> anyhow::Result<Config> {
        Ok(self.load()?.config)
    }

    /// With a default model from the command line.
    pub fn config_with_model(&self, model: Option<&String>) -> anyhow::Result<Config> {
        let flag = model.map(|model| ("models.default".into(), model.clone(), "--model".into()));
        Ok(load::load(&self.sources(flag.into_iter().collect())?)?.config)
    }
}
