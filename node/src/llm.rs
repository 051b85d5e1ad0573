//! Providers of models. Each encodes a conversation into its wire format and decodes the reply's
//! stream; each has a file or folder of its own.

pub mod options;
mod registry;

#[cfg(test)]
mod testing;

mod addresses;
mod allowance;
mod call_ids;
mod catalogue;
mod client;
mod endpoint;
mod gate;
mod http;
mod loose;

mod complaint;
mod decode;
mod encode;
mod frames;
mod function;
mod opts;
mod preset;
mod quirks;
mod seal;
mod wire;

mod anthropic;
mod google;
mod ollama;
mod openai;
mod responses;

#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use planck_common::message::Body;
use reqwest::header::HeaderMap;
use serde_json::{Map, Value};

pub use addresses::Addresses;
pub use allowance::AnswerBounds;
pub use catalogue::{BadTable, ModelTable};
pub use client::{
    ClientOptions, Clients, HttpClientError, Proxy, Route, check_authorities, client,
};
pub use options::{LlmOptions, ModelOptions, ProviderOptions, Times};
pub use preset::{PRESETS, Preset, key_variables, keyless};
pub use registry::Llm;
pub use wire::WireKind;

use crate::model::{Chunk, Failure, Finish, ToolSpec};

/// The part of a request that precedes the messages. It stays the same for a whole conversation.
#[derive(Debug, Clone)]
pub struct RequestHead {
    pub model: String,
    pub system_prompt: Arc<str>,
    /// The tools, sorted by name.
    pub tools: Arc<[ToolSpec]>,
    /// Options such as `temperature`, `max_output_tokens` and `thinking_budget`.
    pub opts: Map<String, Value>,
    pub max_output: u64,
}

/// Encodes one conversation message by message. Each message is serialised once, and every request
/// is assembled from those bytes.
pub trait Encoder: Send {
    /// Adds the next message that the model sees.
    fn push(&mut self, message: &Body);
    /// Returns a request that holds every message pushed so far.
    fn request(&self) -> WireRequest;
}

/// A request in the wire format of its provider.
#[derive(Debug, Clone, Default)]
pub struct WireRequest {
    pub body: Bytes,
    /// Headers without which the server would refuse the body.
    pub headers: HeaderMap,
}

impl From<Vec<u8>> for WireRequest {
    fn from(body: Vec<u8>) -> Self {
        Self {
            body: body.into(),
            headers: HeaderMap::new(),
        }
    }
}

/// An item of a reply's stream. The last item is `Finished` or an error; nothing follows it.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyProgress {
    /// All chunks of one read, in order.
    Chunks(Vec<Chunk>),
    Finished(Finish),
}

/// One configured provider: a wire format, an address and limits. Dropping a stream closes its
/// request.
pub trait Provider: Send + Sync {
    fn name(&self) -> &str;
    /// Returns the host and port that requests go to, for traces.
    fn server(&self) -> Option<(&str, u16)>;
    fn encoder(&self, head: RequestHead) -> Box<dyn Encoder>;
    /// Sends a request. `clients` must belong to the runtime that polls the stream.
    fn stream(
        &self,
        clients: &Clients,
        model: &str,
        request: WireRequest,
    ) -> BoxStream<'static, Result<ReplyProgress, Failure>>;
}

#[cfg(test)]
mod tests;
