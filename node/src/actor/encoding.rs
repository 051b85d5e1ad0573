//! Caches the encoded conversation and appends new messages to it, so that a request does not
//! encode the whole history again.

use std::sync::Arc;

use crate::agent::Agent;
use planck_providers::{Encoder, Provider, RequestHead, WireRequest};

#[derive(Default)]
pub struct Encoding {
    held: Option<EncodedRequest>,
}

struct EncodedRequest {
    /// The version of the agent's context that was encoded. If the agent has another version, the
    /// conversation is encoded again.
    version: u64,
    pushed: usize,
    encoder: Box<dyn Encoder>,
}

impl Encoding {
    /// Returns a request with the agent's whole context, for its current model.
    pub fn request(&mut self, agent: &Agent, provider: &Arc<dyn Provider>) -> WireRequest {
        let version = agent.version();
        let mut held = match self.held.take().filter(|held| held.version == version) {
            Some(held) => held,
            None => EncodedRequest {
                version,
                pushed: 0,
                encoder: provider.encoder(head(agent)),
            },
        };
        let view = agent.view();
        for line in view.iter().skip(held.pushed) {
            held.encoder.push(&line.body);
        }
        held.pushed = view.len();
        let request = held.encoder.request();
        self.held = Some(held);
        request
    }

    /// Frees the cache. The next request encodes the conversation again.
    pub fn forget(&mut self) {
        self.held = None;
    }
}

fn head(agent: &Agent) -> RequestHead {
    let spec = agent.spec();
    RequestHead {
        model: spec.model.id.clone(),
        system_prompt: spec.system_prompt.as_str().into(),
        tools: Arc::clone(agent.tools()),
        opts: spec.opts.clone(),
        max_output: agent.card().max_output,
    }
}
