//! The section `[providers]`.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{
    Secret,
    key::{KeyDescription, KeyPath},
    setting::{Authorities, ConfiguredUrl, Field, HeaderText, NamedSettings, Period, ProxyRule},
    values::Values,
};
use planck_providers::{PRESETS, Preset, WireKind};

/// The configured services that serve models, by name. A name is that of a preset, or one that the
/// user chooses.
#[derive(Debug, Clone, PartialEq)]
pub struct Providers {
    pub by_name: BTreeMap<String, Provider>,
    pub connect_timeout: Period,
}

/// The key that is directly in `[providers]`, next to the tables of the providers.
const CONNECT_TIMEOUT: &str = "connect_timeout";

section! {
    /// One provider.
    Provider {
        /// The preset that supplies address and deviations, if the provider does not have a
        /// preset's name.
        preset: Option<String> = None;
        /// The wire format, if not the preset's: `chat` is OpenAI's chat completions, `responses`
        /// its Responses API.
        wire: Option<WireKind> = None;
        /// The key, as `env:NAME` or `file:PATH`.
        api_key: Option<Secret> = None;
        /// The address, if it is not the preset's usual one. A query in it is sent with every
        /// request.
        base_url: Option<ConfiguredUrl> = None;
        /// A header for every request: text, `env:NAME` or `file:PATH`.
        headers: NamedSettings<HeaderText> = NamedSettings::default();
        /// The proxy for requests to it: an address, or `env` to use `HTTPS_PROXY`, `HTTP_PROXY`
        /// and `NO_PROXY`. Loopback addresses are reached without a proxy.
        proxy: Option<ProxyRule> = None;
        /// A PEM file with certificates of authorities that are trusted in addition to the
        /// system's.
        ca: Option<Authorities> = None;
        /// The version of Azure's API, for addresses that name a deployment.
        api_version: Option<String> = None;
        /// How long an answer may take to begin; a local server may have to load the model first.
        first_byte_timeout: Period = Period::seconds(300);
        /// How long a stream may bring nothing new; pings, comments and empty pieces do not count.
        /// Before the first piece, `first_byte_timeout` applies if it is longer.
        idle_timeout: Period = Period::seconds(120);
        /// How long one request may take as a whole.
        request_timeout: Period = Period::seconds(1_800);
        /// The maximum number of attempts of one request, including the first.
        max_attempts: u32 = 5;
        /// The longest wait between two attempts.
        max_retry_delay: Period = Period::seconds(60);
        /// The maximum number of requests of this node that run at once.
        max_concurrent: u32 = 256;
    }
}

impl Default for Providers {
    fn default() -> Self {
        Self {
            by_name: BTreeMap::new(),
            connect_timeout: Period::seconds(10),
        }
    }
}

impl Field for Providers {
    fn keys(&self, at: &KeyPath, _: &'static str) -> Vec<KeyDescription> {
        let mut keys = Provider::default().keys(&at.then("*"), "");
        keys.extend(self.connect_timeout.keys(
            &at.then(CONNECT_TIMEOUT),
            "How long a connection to any of them may take.",
        ));
        keys
    }

    fn read(self, at: &KeyPath, values: &mut Values) -> Self {
        let names = values
            .children(at)
            .into_iter()
            .filter(|name| name != CONNECT_TIMEOUT);
        let by_name = names
            .map(|name| {
                (
                    name.clone(),
                    Provider::default().read(&at.then(&name), values),
                )
            })
            .collect();
        Self {
            by_name,
            connect_timeout: Field::read(self.connect_timeout, &at.then(CONNECT_TIMEOUT), values),
        }
    }

    fn show(&self, at: &KeyPath, into: &mut Vec<(KeyPath, Option<String>)>) {
        self.by_name
            .iter()
            .for_each(|(name, provider)| provider.show(&at.then(name), into));
        Field::show(&self.connect_timeout, &at.then(CONNECT_TIMEOUT), into);
    }
}

impl Providers {
    pub fn find(&self, name: &str) -> Option<&Provider> {
        self.by_name.get(name)
    }

    /// Returns the provider of this name for changes. Adds a provider with default values if none
    /// of this name is configured.
    pub fn entry(&mut self, name: &str) -> &mut Provider {
        self.by_name.entry(name.to_owned()).or_default()
    }

    /// Returns whether a provider of this name is configured or has a preset.
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name) || Preset::find(name).is_some()
    }

    /// Returns whether the configuration names the provider's address.
    pub fn has_address(&self, name: &str) -> bool {
        self.find(name)
            .is_some_and(|provider| provider.base_url.is_some())
    }

    /// Returns the names of all presets and configured providers.
    pub fn names(&self) -> BTreeSet<&str> {
        let configured = self.by_name.keys().map(String::as_str);
        PRESETS
            .iter()
            .map(|preset| preset.name)
            .chain(configured)
            .collect()
    }

    /// Returns whether the provider can be used, because it has a key or needs none.
    pub fn is_ready(&self, name: &str) -> bool {
        let provider = self.find(name);
        let has_key = provider.is_some_and(|provider| provider.api_key.is_some());
        let preset = Preset::find(
            provider
                .and_then(|provider| provider.preset.as_deref())
                .unwrap_or(name),
        );
        let needs_key = preset.is_some_and(|preset| preset.needs_key)
            && provider.is_none_or(|it| it.base_url.is_none());
        self.has(name) && (has_key || !needs_key)
    }

    /// Returns the providers with a key, in the order of the presets and then by name.
    pub fn keyed(&self) -> Vec<&str> {
        let has_key = |name: &&str| {
            self.find(name)
                .is_some_and(|provider| provider.api_key.is_some())
        };
        let presets = PRESETS.iter().map(|preset| preset.name);
        let others = self
            .by_name
            .keys()
            .map(String::as_str)
            .filter(|name| Preset::find(name).is_none());
        presets.chain(others).filter(has_key).collect()
    }
}
