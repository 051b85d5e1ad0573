//! The configuration of providers. Plain data; other modules read files and the environment.

use std::{collections::BTreeMap, time::Duration};

use planck_common::command::Prices;

use super::{
    addresses::Addresses, allowance::AnswerBounds, catalogue::ModelTable, client::Route,
    wire::WireKind,
};
use crate::{model::RetryRules, secret::Secret};

/// All providers and additions to the catalogue.
#[derive(Debug, Clone, Default)]
pub struct LlmOptions {
    /// By provider name; one that is not named has its defaults and no key.
    pub providers: BTreeMap<String, ProviderOptions>,
    /// In place of the table of models that comes with the binary.
    pub table: Option<ModelTable>,
    /// They add to the table and override it.
    pub models: Vec<ModelOptions>,
    /// Error messages of servers at these addresses may be shown to people. A key goes there only
    /// if a provider has the address.
    pub addresses: Addresses,
    /// Of every provider's answers.
    pub answer: AnswerBounds,
}

/// One provider.
#[derive(Debug, Clone, Default)]
pub struct ProviderOptions {
    /// The preset whose address and quirks it has, if it does not bear the preset's name.
    pub preset: Option<String>,
    /// The wire format, if not the preset's.
    pub wire: Option<WireKind>,
    pub key: Option<Secret>,
    /// The provider's own address unless said.
    pub base_url: Option<String>,
    /// Further addresses that may be given the key. A base URL that stands in neither is called
    /// without it: an agent can name one.
    pub trusted_urls: Vec<String>,
    /// Sent with every request, after ours, to addresses that may have the key.
    pub headers: Vec<(String, Secret)>,
    /// Azure's version of the API, for its addresses with deployments.
    pub api_version: Option<String>,
    pub route: Route,
    pub times: Times,
    /// How many requests of this node may run at once; 256 by default.
    pub max_concurrent: Option<usize>,
    pub retry: RetryRules,
}

/// How long to wait for a provider. The time to connect is the client's ([`super::ClientOptions`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// From the request to the first byte of its answer; a local server may load the model first.
    pub first_byte: Duration,
    /// Between two pieces of content of a stream; pings, comments and empty pieces are none.
    pub between_content: Duration,
    /// From the request to the end of its answer.
    pub whole: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            first_byte: Duration::from_secs(300),
            between_content: Duration::from_secs(120),
            whole: Duration::from_secs(1800),
        }
    }
}

/// A model as the configuration describes it; what is absent is the catalogue's.
#[derive(Debug, Clone, Default)]
pub struct ModelOptions {
    pub provider: String,
    /// The provider's preset, whose models' facts it starts from.
    pub preset: Option<String>,
    pub model: String,
    pub context_window: Option<u64>,
    pub max_output: Option<u64>,
    pub prices: Option<Prices>,
    pub images: Option<bool>,
}
