//! Answers commands from the configured store, without a node.

use std::sync::Arc;

use planck_common::NodeId;

use super::{AssemblyError, models, store};
use crate::{
    bus::{Bus, ServiceGuard},
    config::Config,
    gateway,
};
use planck_providers::Llm;
use planck_store::SessionStore;

/// Starts to answer the commands that only read the sessions of the configured store, on the given
/// bus. None of these commands changes a session.
pub async fn look(
    config: &Config,
    bus: &Arc<dyn Bus>,
) -> Result<Box<dyn ServiceGuard>, AssemblyError> {
    serve_store(config, bus, store::look(config).await?, None).await
}

/// Does the same as [`look`], and also stores answers to waits. No agent runs in this process, so no
/// call that an answer allows begins here, where it would end with the command.
pub async fn take_answers(
    config: &Config,
    bus: &Arc<dyn Bus>,
) -> Result<Box<dyn ServiceGuard>, AssemblyError> {
    let store = store::open(config, &NodeId::mint()).await?;
    serve_store(config, bus, store, Some(config.limits.max_prompt.0)).await
}

async fn serve_store(
    config: &Config,
    bus: &Arc<dyn Bus>,
    store: Arc<dyn SessionStore>,
    answers: Option<u64>,
) -> Result<Box<dyn ServiceGuard>, AssemblyError> {
    let models = Arc::new(Llm::new(models::options(config)));
    let read_only = gateway::ReadOnly {
        store,
        context_window: {
            let models = Arc::clone(&models);
            Arc::new(move |model| models.card(model).context_window)
        },
        models: Arc::new(move || models.list()),
        answers,
    };
    Ok(bus
        .serve(&NodeId::mint(), gateway::read_only_handler(read_only))
        .await?)
}
