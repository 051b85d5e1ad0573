//! Providers of models. Each wire format has a file or folder of its own, which encodes a
//! conversation into that format and decodes the stream of the reply.

pub mod options;
mod registry;
pub mod secret;

#[cfg(test)]
mod testing;

mod addresses;
mod answer_bounds;
mod call_ids;
mod catalogue;
mod client;
mod concurrency;
mod endpoint;
mod http;
mod lenient;

mod decode;
mod encode;
mod error_body;
mod frames;
mod preset;
mod wire;

mod anthropic;
mod google;
mod ollama;
mod openai;
mod responses;

#[doc(hidden)]
pub mod fuzz;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use planck_common::message::MessageBody;
use reqwest::header::HeaderMap;
use serde_json::{Map, Value};

pub use addresses::Addresses;
pub use answer_bounds::AnswerBounds;
pub use catalogue::{BadTable, ModelTable};
pub use client::{
    ClientOptions, Clients, HttpClientError, Proxy, Route, check_authorities, client,
};
pub use options::{LlmOptions, ModelOptions, ProviderOptions, Times};
pub use preset::{PRESETS, Preset, key_variables, keyless};
pub use registry::Llm;
pub use wire::WireKind;

use planck_agent::model::{Chunk, Failure, Finish, ToolSpec};

/// The model, system prompt, tools and options of a request, which precede its messages. If one of
/// them changes, the conversation is encoded again.
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
/// is assembled from the serialised bytes.
pub trait Encoder: Send {
    /// Appends the next message of the conversation.
    fn push(&mut self, message: &MessageBody);
    /// Returns a request with all messages that have been appended so far. The model is made to call
    /// the tool `demanded`, if there is one and the provider can do that.
    fn request(&self, demanded: Option<&str>) -> WireRequest;
}

/// A request in the wire format of its provider.
#[derive(Debug, Clone, Default)]
pub struct WireRequest {
    pub body: Bytes,
    /// The headers that this body requires. Without them, the server would refuse the body.
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

/// An item of a reply's stream. The last item of a stream is `Finished` or an error.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyProgress {
    /// All chunks that one read from the network completed, in order.
    Chunks(Vec<Chunk>),
    Finished(Finish),
}

/// One configured provider: a wire format, an address and limits. Dropping a stream closes the
/// connection of its request.
pub trait Provider: Send + Sync {
    fn name(&self) -> &str;
    /// Returns the host and port that requests are sent to, or `None` for a provider without a
    /// server. Traces record them.
    fn server(&self) -> Option<(&str, u16)>;
    fn encoder(&self, head: RequestHead) -> Box<dyn Encoder>;
    /// Sends a request and returns the stream of its reply. `clients` must belong to the runtime
    /// that polls the stream.
    fn stream(
        &self,
        clients: &Clients,
        model: &str,
        request: WireRequest,
    ) -> BoxStream<'static, Result<ReplyProgress, Failure>>;
}

#[cfg(test)]
mod tests;
