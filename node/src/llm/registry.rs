//! All providers of a node by name, and the models they are known for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use planck_common::{command::ModelRow, spec::ModelRef};
use reqwest::Url;

use super::{
    Provider,
    anthropic::Anthropic,
    catalogue::{Catalogue, Entry, UNKNOWN},
    decode::Decoder,
    endpoint::{self, Endpoint},
    gate::Gate,
    google::Google,
    ollama::Ollama,
    openai::{ChatCompletions, Dialect},
    options::{LlmOptions, ProviderOptions},
    wire::Wire,
};
use crate::model::ModelCard;

/// A provider there is.
struct Kind {
    name: &'static str,
    /// Where it is unless said; `None` where somebody must say.
    base_url: Option<&'static str>,
    /// Whether it is no use without a key at its own address.
    needs_key: bool,
    wire: fn() -> Arc<dyn Wire>,
}

const KINDS: &[Kind] = &[
    Kind { name: "anthropic", base_url: Some("https://api.anthropic.com"), needs_key: true, wire: || Arc::new(Anthropic) },
    Kind {
        name: "openai",
        base_url: Some("https://api.openai.com/v1"),
        needs_key: true,
        wire: || Arc::new(ChatCompletions(Dialect::OpenAi)),
    },
    Kind {
        name: "google",
        base_url: Some("https://generativelanguage.googleapis.com"),
        needs_key: true,
        wire: || Arc::new(Google),
    },
    Kind { name: "ollama", base_url: Some("http://127.0.0.1:11434"), needs_key: false, wire: || Arc::new(Ollama) },
    Kind {
        name: "llama_cpp",
        base_url: Some("http://127.0.0.1:8080"),
        needs_key: false,
        wire: || Arc::new(ChatCompletions(Dialect::LlamaCpp)),
    },
    Kind { name: "scripted", base_url: None, needs_key: false, wire: || Arc::new(ChatCompletions(Dialect::OpenAi)) },
];

/// Endpoints that are remembered; agents can name addresses, so there must be an end.
const MOST_ENDPOINTS: usize = 1024;
const MAX_CONCURRENT: usize = 256;

/// Why there is no provider for a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LlmError {
    #[error("unknown provider `{name}`; known are {known}")]
    UnknownProvider { name: String, known: String },
    #[error("provider `{name}` has no key; set {}_API_KEY or `providers.{name}.key`", name.to_uppercase())]
    NoKey { name: String },
    #[error("provider `{name}` needs a base_url: nothing is assumed")]
    NoAddress { name: String },
    #[error("provider `{name}` is set up wrongly: {reason}")]
    Invalid { name: String, reason: String },
}

/// The models of a node.
pub struct Llm {
    options: LlmOptions,
    catalogue: Arc<Catalogue>,
    endpoints: Mutex<HashMap<(&'static str, String), Arc<Endpoint>>>,
}

impl Llm {
    pub fn new(options: LlmOptions) -> Self {
        let catalogue = Arc::new(Catalogue::new(&options.models));
        Self { options, catalogue, endpoints: Mutex::default() }
    }

    /// The provider of a model, at the model's own address if it has one. Requests to one address share their limits.
    pub fn provider(&self, model: &ModelRef) -> Result<Arc<dyn Provider>, LlmError> {
        let kind = find(&model.provider)?;
        let options = self.options_of(kind);
        let base = base_url(kind, &options, model.base_url.as_deref())?;
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = endpoints.get(&(kind.name, base.clone())) {
            return Ok(Arc::clone(known) as Arc<dyn Provider>);
        }
        let endpoint = Arc::new(self.endpoint(kind, options, base.clone())?);
        if endpoints.len() >= MOST_ENDPOINTS {
            endpoints.clear();
        }
        endpoints.insert((kind.name, base), Arc::clone(&endpoint));
        Ok(endpoint)
    }

    /// Decodes a recorded reply of a provider.
    pub fn decoder(&self, provider: &str) -> Result<Box<dyn Decoder>, LlmError> {
        Ok((find(provider)?.wire)().decoder())
    }

    /// What is known of a model; of an unknown one something cautious, and [`Self::warning`] says so.
    pub fn card(&self, model: &ModelRef) -> ModelCard {
        let retry = self.options.providers.get(&model.provider).map(|options| options.retry).unwrap_or_default();
        self.entry(model).card(retry)
    }

    /// What to tell whoever uses a model that nobody described.
    pub fn warning(&self, model: &ModelRef) -> Option<String> {
        let known = model.provider == "scripted" || self.catalogue.find(&model.provider, &model.id).is_some();
        (!known).then(|| {
            let ModelRef { provider, id, .. } = model;
            let Entry { context_window, max_output, .. } = UNKNOWN;
            format!(
                "model `{provider}:{id}` is not in the catalogue: a context of {context_window} tokens and replies of {max_output} \
                 are assumed, and no prices; describe it under `models`"
            )
        })
    }

    /// The models there are, sorted.
    pub fn list(&self) -> Vec<ModelRow> {
        self.catalogue.rows()
    }

    /// The providers that can be used: those with a key, and those that need none.
    pub fn available(&self) -> Vec<String> {
        let usable = |kind: &&Kind| {
            let options = self.options_of(kind);
            base_url(kind, &options, None).is_ok_and(|base| !lacks_key(kind, &options, &base))
        };
        KINDS.iter().filter(usable).map(|kind| kind.name.to_owned()).collect()
    }

    fn entry(&self, model: &ModelRef) -> Entry {
        self.catalogue.find(&model.provider, &model.id).unwrap_or(UNKNOWN)
    }

    fn options_of(&self, kind: &Kind) -> ProviderOptions {
        self.options.providers.get(kind.name).cloned().unwrap_or_default()
    }

    fn endpoint(&self, kind: &Kind, options: ProviderOptions, base: String) -> Result<Endpoint, LlmError> {
        if lacks_key(kind, &options, &base) {
            return Err(LlmError::NoKey { name: kind.name.to_owned() });
        }
        let wire = (kind.wire)();
        let is_its_own = is_configured(kind, &options, &base);
        let configured = is_its_own || self.options.addresses.allow(&base);
        let key = options.key.clone().filter(|_| is_its_own);
        let headers = endpoint::headers(&*wire, key.as_ref(), &options.headers).map_err(|reason| invalid(kind, reason))?;
        let gate = Arc::new(Gate::new(options.max_concurrent.unwrap_or(MAX_CONCURRENT)));
        let catalogue = Arc::clone(&self.catalogue);
        let (times, answer) = (options.times, self.options.answer);
        Ok(Endpoint { name: kind.name, wire, base, headers, key, configured, times, answer, gate, catalogue })
    }
}

fn find(name: &str) -> Result<&'static Kind, LlmError> {
    KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
        let known: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        LlmError::UnknownProvider { name: name.to_owned(), known: known.join(", ") }
    })
}

fn invalid(kind: &Kind, reason: String) -> LlmError {
    LlmError::Invalid { name: kind.name.to_owned(), reason }
}

/// The address of a provider: the model's, else the configuration's, else its own.
fn base_url(kind: &Kind, options: &ProviderOptions, own: Option<&str>) -> Result<String, LlmError> {
    let given = own.or(options.base_url.as_deref()).or(kind.base_url);
    let given = given.ok_or_else(|| LlmError::NoAddress { name: kind.name.to_owned() })?;
    let url = if given.contains("://") { given.to_owned() } else { format!("http://{given}") };
    let parsed = Url::parse(&url).map_err(|error| invalid(kind, format!("base_url `{given}`: {error}")))?;
    if !matches!(parsed.scheme(), "http" | "https") || !parsed.has_host() {
        return Err(invalid(kind, format!("base_url `{given}` is no http address")));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// Whether this address is of an origin that the configuration names for this provider: it may have the key.
fn is_configured(kind: &Kind, options: &ProviderOptions, base: &str) -> bool {
    let configured = base_url(kind, options, None).ok();
    let trusted = options.trusted_urls.iter().filter_map(|url| base_url(kind, options, Some(url)).ok());
    configured.into_iter().chain(trusted).any(|url| same_origin(&url, base))
}

fn same_origin(one: &str, other: &str) -> bool {
    match (Url::parse(one), Url::parse(other)) {
        (Ok(one), Ok(other)) => one.origin() == other.origin(),
        (Ok(_) | Err(_), _) => false,
    }
}

/// Whether a provider that takes nobody without a key has none.
fn lacks_key(kind: &Kind, options: &ProviderOptions, base: &str) -> bool {
    kind.needs_key && options.key.is_none() && kind.base_url.is_some_and(|own| same_origin(own, base))
}

#[cfg(test)]
mod tests;
