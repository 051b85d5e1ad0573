//! All providers of a node by name, and the models that are known for them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use planck_common::{command::Models, spec::ModelRef};
use reqwest::Url;

use super::{
    Provider,
    catalogue::{ModelCatalogue, ModelTable},
    decode::Decoder,
    endpoint::{self, ProviderEndpoint, WireChoice},
    gate::Gate,
    options::{LlmOptions, ProviderOptions},
    preset::{PRESETS, Preset},
    wire::{WireKind, WireTarget},
};
use crate::model::ModelCard;

/// The most endpoints that are cached. Agents can name addresses, so the cache needs a bound.
const MOST_ENDPOINTS: usize = 1024;
const MAX_CONCURRENT: usize = 256;

/// The reason why there is no provider for a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LlmError {
    #[error("unknown provider `{name}`; known are {known}")]
    UnknownProvider { name: String, known: String },
    #[error("provider `{name}` has no key; set {variable}`providers.{name}.api_key`")]
    NoKey {
        name: String,
        /// The variable that sets the key, with the word before the setting; may be empty.
        variable: String,
    },
    #[error("provider `{name}` needs a base_url: nothing is assumed")]
    NoAddress { name: String },
    #[error("provider `{name}` is set up wrongly: {reason}")]
    Invalid { name: String, reason: String },
}

/// The models of a node.
pub struct Llm {
    options: LlmOptions,
    catalogue: Arc<ModelCatalogue>,
    /// Providers that are no servers, before the configured ones of the same name.
    in_process: Vec<Arc<dyn Provider>>,
    endpoints: Mutex<HashMap<(String, Url), Arc<ProviderEndpoint>>>,
}

/// A provider that exists: its preset and its configuration.
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
            in_process: Vec::new(),
            endpoints: Mutex::default(),
        }
    }

    /// Adds providers that run in this process.
    pub fn with_in_process(self, in_process: Vec<Arc<dyn Provider>>) -> Self {
        Self { in_process, ..self }
    }

    /// Returns the provider of a model, at the model's own address if it has one. Requests to the
    /// same address share their limits.
    pub fn provider(&self, model: &ModelRef) -> Result<Arc<dyn Provider>, LlmError> {
        let mut in_process = self.in_process.iter();
        if let Some(provider) = in_process.find(|provider| provider.name() == model.provider) {
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
            endpoints.clear();
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

    /// Returns the facts about a model. An unknown model gets cautious ones, and [`Self::warning`]
    /// reports it.
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

    /// Returns the warning for the user of a model that the catalogue does not describe.
    pub fn warning(&self, model: &ModelRef) -> Option<String> {
        let preset = self.known(&model.provider).ok()?.preset;
        let assumed = self
            .catalogue
            .find(&model.provider, &preset, &model.id)
            .assumed?;
        (model.provider != "scripted").then(|| assumed.warning(model))
    }

    /// Returns the known models in order, and the date on which their facts were looked up.
    pub fn list(&self) -> Models {
        Models {
            models: self.catalogue.rows(),
            date: Some(self.catalogue.date().to_owned()),
        }
    }

    /// Returns the model of a provider that serves agents that name none.
    pub fn standard(&self, provider: &str) -> Option<ModelRef> {
        let preset = self.known(provider).ok()?.preset;
        let id = self.catalogue.standard(provider, preset.name)?.to_owned();
        Some(ModelRef {
            provider: provider.to_owned(),
            id,
            base_url: None,
        })
    }

    /// Returns the providers that can be used: those with a key, and those that need none.
    pub fn available(&self) -> Vec<String> {
        let assumed = PRESETS
            .iter()
            .filter(|preset| preset.assumed)
            .map(|preset| preset.name);
        let named = assumed.chain(self.options.providers.keys().map(String::as_str));
        let names: BTreeSet<&str> = named.collect();
        let usable = |name: &&str| {
            self.known(name).is_ok_and(|known| {
                known
                    .base_url(None)
                    .is_ok_and(|base| !known.lacks_key(&base))
            })
        };
        let in_process: BTreeSet<&str> = self.in_process.iter().map(|own| own.name()).collect();
        let usable: BTreeSet<&str> = names.into_iter().filter(usable).collect();
        let all = usable.union(&in_process);
        all.map(|name| (*name).to_owned()).collect()
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
            gate: Arc::new(Gate::new(options.max_concurrent.unwrap_or(MAX_CONCURRENT))),
            catalogue: Arc::clone(&self.catalogue),
            route: options.route.clone(),
            base,
        })
    }
}

impl KnownProvider<'_> {
    /// Only a provider with the preset's own name takes its key from the preset's variable.
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

    /// Returns the base URL: the model's, else the configuration's, else the preset's.
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

    /// Returns whether the configuration names the origin of this address for the provider, so that
    /// the key may be sent there.
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

    /// Returns whether the provider requires a key and none is configured.
    fn lacks_key(&self, base: &Url) -> bool {
        self.preset.needs_key && self.options.key.is_none() && self.is_vendor(base)
    }

    /// Returns the target of requests. Opaque tokens are labelled with the provider's name, and
    /// with the address too if it is not the configured one.
    fn target(&self, base: &Url) -> WireTarget {
        let is_usual = self
            .base_url(None)
            .is_ok_and(|usual| usual.origin() == base.origin());
        let label = if is_usual {
            self.name.to_owned()
        } else {
            format!("{}@{}", self.name, base.authority())
        };
        WireTarget {
            label,
            is_vendor: self.is_vendor(base),
            quirks: self.preset.quirks,
        }
    }
}

#[cfg(test)]
mod tests;
