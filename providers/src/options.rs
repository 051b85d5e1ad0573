//! The configuration of providers as plain data. Other modules read it from the files and the
//! environment.

use std::{collections::BTreeMap, time::Duration};

use planck_common::command::Prices;

use super::{
    addresses::Addresses, answer_bounds::AnswerBounds, catalogue::ModelTable, client::Route,
    wire::WireKind,
};
use crate::secret::Secret;
use planck_agent::model::RetryRules;

/// The options of all providers, and the configured additions to the catalogue.
#[derive(Debug, Clone, Default)]
pub struct LlmOptions {
    /// The options by provider name. A provider that is not listed has default options and no key.
    pub providers: BTreeMap<String, ProviderOptions>,
    /// The table that replaces the built-in table of models.
    pub table: Option<ModelTable>,
    /// Entries that extend or override the table of models.
    pub models: Vec<ModelOptions>,
    /// The addresses of servers whose error messages may be shown to users. A provider's key is
    /// sent to one of them only if the address also has the origin of the provider's base URL or of
    /// one of its `trusted_urls`.
    pub addresses: Addresses,
    /// The limits of every provider's answers.
    pub answer: AnswerBounds,
}

/// The options of one provider.
#[derive(Debug, Clone, Default)]
pub struct ProviderOptions {
    /// The preset that supplies the address and the deviations from the wire format. If it is
    /// `None`, the preset with the provider's name is used. If there is no such preset, `wire` and
    /// `base_url` must be set.
    pub preset: Option<String>,
    /// The wire format, or `None` for that of the preset or of the catalogue's entry for the model.
    pub wire: Option<WireKind>,
    pub key: Option<Secret>,
    /// The base URL, or `None` for that of the preset.
    pub base_url: Option<String>,
    /// Addresses whose origins may receive the key, in addition to the origin of the base URL. A
    /// request to any other origin carries no key, because an agent can choose the address.
    pub trusted_urls: Vec<String>,
    /// Headers that are added after Planck's own headers to requests to those origins that may
    /// receive the key.
    pub headers: Vec<(String, Secret)>,
    /// The version of Azure's API, for addresses that contain the deployment.
    pub api_version: Option<String>,
    pub route: Route,
    pub times: Times,
    /// The maximum number of concurrent requests of this node to one address of the provider. The
    /// default is 256.
    pub max_concurrent: Option<usize>,
    pub retry: RetryRules,
}

/// Time limits for a provider. The limit for connecting is an option of the client
/// ([`super::ClientOptions`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// The maximum time from sending a request to the first byte of its answer. A local server may
    /// have to load the model first.
    pub first_byte: Duration,
    /// The maximum time between two pieces of content in a stream. Pings, comments and empty pieces
    /// do not count as content.
    pub between_content: Duration,
    /// The maximum time from sending a request to the end of its answer.
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

/// A model as the configuration describes it. The catalogue supplies the missing facts.
#[derive(Debug, Clone, Default)]
pub struct ModelOptions {
    pub provider: String,
    /// The preset among whose models the missing facts are looked up.
    pub preset: Option<String>,
    pub model: String,
    pub context_window: Option<u64>,
    pub max_output: Option<u64>,
    pub prices: Option<Prices>,
    pub images: Option<bool>,
}
