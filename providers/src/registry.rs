//! All providers of a node by name, and the models that they serve.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use reqwest::Url;

use planck_agent::model::ModelCard;
use planck_common::{command::Models, spec::ModelRef};

use super::{
    Provider,
    catalogue::{ModelCatalogue, ModelTable},
    concurrency::ConcurrencyLimit,
    decode::Decoder,
    endpoint::{self, ProviderEndpoint, WireChoice},
    options::{LlmOptions, ProviderOptions},
    preset::{PRESETS, Preset},
    wire::{WireKind, WireTarget},
};

/// The maximum number of endpoints that are cached. Agents can name addresses, so the cache needs a
/// limit. At the limit, the cache is emptied.
const MOST_ENDPOINTS: usize = 1024;
const MAX_CONCURRENT: usize = 256;

/// The reason why a model has no usable provider.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LlmError {
    #[error("unknown provider `{name}`; known are {known}")]
    UnknownProvider { name: String, known: String },
    #[error("provider `{name}` has no key; set {variable}`providers.{name}.api_key`")]
    NoKey {
        name: String,
        /// The environment variable that sets the key, followed by ` or `. The text is empty if
        /// there is no such variable.
        variable: String,
    },
    #[error("provider `{name}` needs a base_url: nothing is assumed")]
    NoAddress { name: String },
    #[error("provider `{name}` is set up wrongly: {reason}")]
    Invalid { name: String, reason: String },
}

/// The providers and models of a node.
pub struct Llm {
    options: LlmOptions,
    catalogue: Arc<ModelCatalogue>,
    /// A provider that runs in this process. It takes precedence over a configured provider of the
    /// same name.
    in_process: Option<Arc<dyn Provider>>,
    endpoints: Mutex<HashMap<(String, Url), Arc<ProviderEndpoint>>>,
}

/// A provider that has a preset or a configuration.
struct KnownProvider<'a> {
    name: &'a str,
    preset: Preset,
    options: ProviderOptions,
}

impl Llm {
    pub fn new(options: LlmOptions) -> Self {
        let table = options.table.clone().unwrap_or_else(ModelTable::built_in);
        let catalogue = Arc::new(ModelCatalogue::new(table, &options.models));
        Self {
            options,
            catalogue,
            in_process: None,
            endpoints: Mutex::default(),
        }
    }

    /// Sets a provider that runs in this process instead of on a server.
    pub fn with_in_process(self, in_process: Option<Arc<dyn Provider>>) -> Self {
        Self { in_process, ..self }
    }

    fn in_process(&self, name: &str) -> Option<&Arc<dyn Provider>> {
        let provider = self.in_process.as_ref()?;
        (provider.name() == name).then_some(provider)
    }

    /// Returns the provider of a model. If the model names an address, the provider sends its
    /// requests to that address. All requests of a provider to the same address share one endpoint
    /// and its limits.
    pub fn provider(&self, model: &ModelRef) -> Result<Arc<dyn Provider>, LlmError> {
        if let Some(provider) = self.in_process(&model.provider) {
            return Ok(Arc::clone(provider));
        }
        let known = self.known(&model.provider)?;
        let base = known.base_url(model.base_url.as_deref())?;
        let mut endpoints = self
            .endpoints
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let key = (model.provider.clone(), base.clone());
        if let Some(endpoint) = endpoints.get(&key) {
            return Ok(Arc::clone(endpoint) as Arc<dyn Provider>);
        }
        let endpoint = Arc::new(self.endpoint(&known, base)?);
        if endpoints.len() >= MOST_ENDPOINTS {
            // The endpoints of running requests stay, because their gates limit these requests.
            endpoints.retain(|_, endpoint| Arc::strong_count(endpoint) > 1);
        }
        endpoints.insert(key, Arc::clone(&endpoint));
        Ok(endpoint)
    }

    /// Returns a decoder for recorded replies of a provider.
    pub fn decoder(
        &self,
        provider: &str,
        wire: Option<WireKind>,
    ) -> Result<Box<dyn Decoder>, LlmError> {
        let known = self.known(provider)?;
        let wire = wire.or(known.options.wire).unwrap_or(known.preset.wire);
        Ok(wire.wire().decoder(&WireTarget {
            label: provider.to_owned(),
            ..WireTarget::default()
        }))
    }

    /// Returns the facts about a model. If the catalogue does not describe the model, the facts are
    /// assumed, and [`Self::warning`] names their source.
    pub fn card(&self, model: &ModelRef) -> ModelCard {
        let known = self.known(&model.provider);
        let retry = known
            .as_ref()
            .map(|known| known.options.retry)
            .unwrap_or_default();
        let preset = known.map_or_else(|_| Preset::unnamed(WireKind::Chat), |known| known.preset);
        self.catalogue
            .find(&model.provider, &preset, &model.id)
            .entry
            .card(retry)
    }

    /// Returns the warning for users of a model that the catalogue does not describe. Returns
    /// `None` if the catalogue describes the model, if the provider is unknown, and for models of
    /// `scripted`.
    pub fn warning(&self, model: &ModelRef) -> Option<String> {
        let preset = self.known(&model.provider).ok()?.preset;
        let assumed = self
            .catalogue
            .find(&model.provider, &preset, &model.id)
            .assumed?;
        (model.provider != "scripted").then(|| assumed.warning(model))
    }

    /// Returns the models of the catalogue, with the date on which the facts in its table were
    /// looked up.
    pub fn list(&self) -> Models {
        Models {
            models: self.catalogue.rows(),
            date: Some(self.catalogue.date().to_owned()),
        }
    }

    /// Returns the default model of a provider, for agents that do not name a model.
    pub fn standard(&self, provider: &str) -> Option<ModelRef> {
        let preset = self.known(provider).ok()?.preset;
        let id = self.catalogue.standard(provider, preset.name)?.to_owned();
        Some(ModelRef {
            provider: provider.to_owned(),
            id,
            base_url: None,
        })
    }

    /// Returns the names of the providers that can be used: the provider in this process, and those
    /// providers that are configured or need no configuration and that have an address, and a key
    /// if the address requires one.
    pub fn available(&self) -> Vec<String> {
        let assumed = PRESETS
            .iter()
            .filter(|preset| preset.assumed)
            .map(|preset| preset.name);
        let configured = self.options.providers.keys().map(String::as_str);
        let in_process = self.in_process.iter().map(|provider| provider.name());
        let names: BTreeSet<&str> = assumed.chain(configured).chain(in_process).collect();
        let usable = |name: &&str| {
            self.in_process(name).is_some()
                || self.known(name).is_ok_and(|known| {
                    known
                        .base_url(None)
                        .is_ok_and(|base| !known.lacks_key(&base))
                })
        };
        names
            .into_iter()
            .filter(usable)
            .map(str::to_owned)
            .collect()
    }

    fn known<'a>(&self, name: &'a str) -> Result<KnownProvider<'a>, LlmError> {
        let options = self
            .options
            .providers
            .get(name)
            .cloned()
            .unwrap_or_default();
        let preset = match (
            Preset::find(options.preset.as_deref().unwrap_or(name)),
            options.wire,
        ) {
            (Some(preset), _) => *preset,
            (None, Some(wire)) => Preset::unnamed(wire),
            (None, None) => return Err(self.unknown(name)),
        };
        Ok(KnownProvider {
            name,
            preset,
            options,
        })
    }

    fn unknown(&self, name: &str) -> LlmError {
        let configured = self.options.providers.keys().map(String::as_str);
        let known: BTreeSet<&str> = PRESETS
            .iter()
            .map(|preset| preset.name)
            .chain(configured)
            .collect();
        LlmError::UnknownProvider {
            name: name.to_owned(),
            known: known.into_iter().collect::<Vec<_>>().join(", "),
        }
    }

    fn endpoint(&self, known: &KnownProvider<'_>, base: Url) -> Result<ProviderEndpoint, LlmError> {
        let KnownProvider {
            name,
            preset,
            options,
        } = known;
        if known.lacks_key(&base) {
            return Err(known.no_key());
        }
        let is_its_own = known.is_configured(&base);
        let headers = if is_its_own {
            endpoint::configured(&options.headers)
        } else {
            Ok(Default::default())
        };
        Ok(ProviderEndpoint {
            name: (*name).into(),
            speaks: WireChoice {
                preset: *preset,
                wire: options.wire,
            },
            target: known.target(&base),
            headers: headers.map_err(|reason| known.invalid(reason))?,
            key: options.key.clone().filter(|_| is_its_own),
            configured: is_its_own || self.options.addresses.allow(base.as_str()),
            times: options.times,
            answer: self.options.answer,
            concurrency: Arc::new(ConcurrencyLimit::new(
                options.max_concurrent.unwrap_or(MAX_CONCURRENT),
            )),
            catalogue: Arc::clone(&self.catalogue),
            route: options.route.clone(),
            base,
        })
    }
}

impl KnownProvider<'_> {
    /// Returns the error for a missing key. The error suggests the preset's environment variable
    /// only for a provider with the preset's own name, because other providers do not read that
    /// variable.
    fn no_key(&self) -> LlmError {
        let variable = self
            .preset
            .key_variable
            .filter(|_| self.name == self.preset.name);
        LlmError::NoKey {
            name: self.name.to_owned(),
            variable: variable.map_or_else(String::new, |variable| format!("{variable} or ")),
        }
    }

    fn invalid(&self, reason: String) -> LlmError {
        LlmError::Invalid {
            name: self.name.to_owned(),
            reason,
        }
    }

    /// Returns the base URL: `own`, or else the one in the configuration, or else the preset's.
    /// Adds the configured `api_version` to its query.
    fn base_url(&self, own: Option<&str>) -> Result<Url, LlmError> {
        let given = own
            .or(self.options.base_url.as_deref())
            .or(self.preset.base_url);
        let given = given.ok_or_else(|| LlmError::NoAddress {
            name: self.name.to_owned(),
        })?;
        let url = if given.contains("://") {
            given.to_owned()
        } else {
            format!("http://{given}")
        };
        let mut url = Url::parse(&url)
            .map_err(|error| self.invalid(format!("base_url `{given}`: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(self.invalid(format!("base_url `{given}` is no http address")));
        }
        let folder = url.path().trim_end_matches('/').to_owned();
        url.set_path(&folder);
        url.set_fragment(None);
        if let Some(version) = &self.options.api_version {
            url.query_pairs_mut().append_pair("api-version", version);
        }
        Ok(url)
    }

    /// Returns whether this address has the origin of the provider's base URL or of one of its
    /// trusted addresses. The key may be sent only to such an address.
    fn is_configured(&self, base: &Url) -> bool {
        let configured = self.base_url(None).ok();
        let trusted = self
            .options
            .trusted_urls
            .iter()
            .filter_map(|url| self.base_url(Some(url)).ok());
        configured
            .into_iter()
            .chain(trusted)
            .any(|url| url.origin() == base.origin())
    }

    fn is_vendor(&self, base: &Url) -> bool {
        let own = self.preset.base_url.and_then(|url| Url::parse(url).ok());
        own.is_some_and(|own| own.origin() == base.origin())
    }

    /// Returns whether requests to `base` would fail for lack of a key: no key is configured, and
    /// the vendor's own address requires one.
    fn lacks_key(&self, base: &Url) -> bool {
        self.preset.needs_key && self.options.key.is_none() && self.is_vendor(base)
    }

    /// Returns the description of the endpoint at `base`. The label for signatures is the
    /// provider's name. If `base` does not have the origin of the provider's base URL, the
    /// authority of `base` (host and port) follows.
    fn target(&self, base: &Url) -> WireTarget {
        let is_usual = self
            .base_url(None)
            .is_ok_and(|usual| usual.origin() == base.origin());
        let label = if is_usual {
            self.name.to_owned()
        } else {
            format!("{}@{}", self.name, host_and_port(base))
        };
        WireTarget {
            label,
            is_vendor: self.is_vendor(base),
            quirks: self.preset.quirks,
        }
    }
}

/// Returns the authority of an address without user name and password, because the label of an
/// endpoint is stored in sessions.
fn host_and_port(base: &Url) -> String {
    let host = base.host_str().unwrap_or_default();
    match base.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

#[cfg(test)]
mod tests;
