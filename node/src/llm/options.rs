//! The configuration of providers as plain data; other modules read the files and the environment.

use std::{collections::BTreeMap, time::Duration};

use planck_common::command::Prices;

use super::{
    addresses::Addresses, allowance::AnswerBounds, catalogue::ModelTable, client::Route,
    wire::WireKind,
};
use crate::{model::RetryRules, secret::Secret};

/// The options of all providers, and the additions to the catalogue.
#[derive(Debug, Clone, Default)]
pub struct LlmOptions {
    /// The options by provider name. A provider that is not listed has the defaults and no key.
    pub providers: BTreeMap<String, ProviderOptions>,
    /// Replaces the table of models that is part of the binary.
    pub table: Option<ModelTable>,
    /// Entries that extend and override the table.
    pub models: Vec<ModelOptions>,
    /// The addresses of servers whose error messages may be shown to people. A key is sent to one
    /// of them only if its provider lists the address.
    pub addresses: Addresses,
    /// The limits of every provider's answers.
    pub answer: AnswerBounds,
}

/// The options of one provider.
#[derive(Debug, Clone, Default)]
pub struct ProviderOptions {
    /// The preset that supplies address and deviations, if the provider does not have the preset's
    /// name.
    pub preset: Option<String>,
    /// The wire format, if it differs from the preset's.
    pub wire: Option<WireKind>,
    pub key: Option<Secret>,
    /// The base URL, if it differs from the provider's own.
    pub base_url: Option<String>,
    /// Further addresses that may receive the key. A request to a base URL that is neither
    /// configured nor listed here carries no key, because an agent can name one.
    pub trusted_urls: Vec<String>,
    /// Headers that are added to every request after Planck's own, at addresses that may receive
    /// the key.
    pub headers: Vec<(String, Secret)>,
    /// The version of Azure's API, for addresses with deployments.
    pub api_version: Option<String>,
    pub route: Route,
    pub times: Times,
    /// The maximum number of requests of this node that run at once; 256 by default.
    pub max_concurrent: Option<usize>,
    pub retry: RetryRules,
}

/// How long to wait for a provider. The time to connect is an option of the client
/// ([`super::ClientOptions`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// The maximum time from the request to the first byte of its answer. A local server may have
    /// to load the model first.
    pub first_byte: Duration,
    /// The maximum time between two pieces of content of a stream. Pings, comments and empty pieces
    /// do not count.
    pub between_content: Duration,
    /// The maximum time from the request to the end of its answer.
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

/// A model as the configuration describes it. The catalogue supplies the fields that are absent.
#[derive(Debug, Clone, Default)]
pub struct ModelOptions {
    pub provider: String,
    /// The preset of the provider, in whose models the missing facts are looked up.
    pub preset: Option<String>,
    pub model: String,
    pub context_window: Option<u64>,
    pub max_output: Option<u64>,
    pub prices: Option<Prices>,
    pub images: Option<bool>,
}
