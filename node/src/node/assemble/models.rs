//! Builds the providers and models from the configuration, and tries them out.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use planck_common::{command, spec::ModelRef};

use crate::{
    compact::{self, Request},
    config::{AnswerLimits, Config, ConfiguredUrl, ModelEntry, Prices, Provider},
    model::{Failure, FailureKind, RetryRules},
};
use planck_providers::{
    Addresses, AnswerBounds, ClientOptions, Clients, HttpClientError, Llm, LlmOptions,
    ModelOptions, PRESETS, ProviderOptions, Route, Times,
};

/// The result of one small request to a model.
#[derive(Debug)]
pub struct ModelTrial {
    pub model: ModelRef,
    /// How long the whole answer took.
    pub answer: Result<Duration, NoAnswer>,
}

/// Why a model did not answer, and what a person can do about it.
#[derive(Debug)]
pub struct NoAnswer {
    pub why: String,
    pub remedy: &'static str,
}

impl From<Failure> for NoAnswer {
    fn from(Failure { kind, message, .. }: Failure) -> Self {
        let remedy = match kind {
            FailureKind::Auth => "correct the key of the provider",
            FailureKind::Transient => {
                "see whether this machine reaches the address, which `base_url` and `proxy` of the provider set"
            }
            FailureKind::Refused | FailureKind::ContextFull | FailureKind::AnswerLimit => {
                "see what the provider says; `models.default` sets another model"
            }
        };
        Self {
            why: message,
            remedy,
        }
    }
}

/// The limit on the answer to a trial, in tokens. Models that think need more than a word takes.
const TRIAL: u64 = 256;

/// Sends one small request to the default model, and to a model of each other provider that has what
/// it needs.
pub async fn try_out(config: &Config) -> Result<Vec<ModelTrial>, HttpClientError> {
    let llm = Arc::new(Llm::new(options(config)));
    let clients = Clients::new(&client(config))?;
    let mut models: Vec<ModelRef> = super::default_model(config).into_iter().collect();
    let providers = &config.providers;
    for name in providers
        .by_name
        .keys()
        .filter(|name| providers.is_ready(name))
    {
        if models.iter().all(|model| model.provider != *name) {
            models.extend(llm.standard(name));
        }
    }
    let trials = models.into_iter().map(|model| trial(&llm, &clients, model));
    Ok(join_all(trials).await)
}

async fn trial(llm: &Llm, clients: &Clients, model: ModelRef) -> ModelTrial {
    let began = Instant::now();
    let answer = async {
        let provider = llm
            .provider(&model)
            .map_err(|error| Failure::new(FailureKind::Auth, error.to_string()))?;
        let request = Request {
            system: "You help to check a connection.",
            user: "Answer with the word ok.".into(),
        };
        compact::ask_model(&provider, clients, &model, request, TRIAL).await
    };
    let answer = answer
        .await
        .map(|_| began.elapsed())
        .map_err(NoAnswer::from);
    ModelTrial { model, answer }
}

pub(super) fn client(config: &Config) -> ClientOptions {
    ClientOptions {
        connect: config.providers.connect_timeout.0,
        ..ClientOptions::default()
    }
}

pub(super) fn options(config: &Config) -> LlmOptions {
    let providers = &config.providers.by_name;
    LlmOptions {
        providers: providers
            .iter()
            .map(|(name, section)| (name.clone(), provider(section, trusted(config, name))))
            .collect(),
        table: config
            .models
            .catalogue
            .as_ref()
            .map(|file| file.table.clone()),
        models: config
            .models
            .entries
            .0
            .iter()
            .filter_map(|named| entry(config, named))
            .collect(),
        addresses: addresses(config),
        answer: answer(&config.limits.answer),
    }
}

fn answer(limits: &AnswerLimits) -> AnswerBounds {
    let bytes = usize::try_from(limits.max_bytes.0).unwrap_or(usize::MAX);
    AnswerBounds {
        bytes,
        calls: usize::try_from(limits.max_calls).unwrap_or(usize::MAX),
    }
}

fn provider(section: &Provider, trusted_urls: Vec<String>) -> ProviderOptions {
    ProviderOptions {
        preset: section.preset.clone(),
        wire: section.wire,
        key: section.api_key.clone(),
        base_url: section.base_url.as_ref().map(|url| url.reveal().to_owned()),
        trusted_urls,
        headers: section
            .headers
            .0
            .iter()
            .map(|(name, text)| (name.clone(), text.value.clone()))
            .collect(),
        api_version: section.api_version.clone(),
        route: Route {
            proxy: section.proxy.as_ref().map(|rule| rule.proxy.clone()),
            ca: section.ca.as_ref().map(|authorities| authorities.0.clone()),
        },
        times: Times {
            first_byte: section.first_byte_timeout.0,
            between_content: section.idle_timeout.0,
            whole: section.request_timeout.0,
        },
        max_concurrent: Some(section.max_concurrent as usize),
        retry: RetryRules {
            tries: section.max_attempts,
            cap: section.max_retry_delay.0,
            ..RetryRules::default()
        },
    }
}

/// Returns the addresses that a spec may name for a model.
pub(super) fn addresses(config: &Config) -> Addresses {
    let usual = PRESETS
        .iter()
        .filter(|preset| preset.assumed && !config.providers.has_address(preset.name));
    let usual = usual.filter_map(|preset| preset.base_url);
    let own = config
        .providers
        .by_name
        .values()
        .filter_map(|provider| provider.base_url.as_ref());
    let of_models = config
        .models
        .entries
        .0
        .values()
        .filter_map(|entry| entry.base_url.as_ref());
    let configured = own
        .chain(of_models)
        .chain(&config.models.allowed_base_urls)
        .map(ConfiguredUrl::reveal);
    Addresses::new(usual.chain(configured))
}

/// Returns whether a spec can name an address that no configured provider or model has.
pub(super) fn offers_addresses(config: &Config) -> bool {
    !config.models.allowed_base_urls.is_empty()
}

/// Returns the addresses of a provider's configured models. The provider's key may be sent to these
/// addresses, because the configuration assigns them to the provider.
fn trusted(config: &Config, provider: &str) -> Vec<String> {
    let entries = config
        .models
        .entries
        .0
        .values()
        .filter(|entry| entry.provider.as_deref() == Some(provider));
    entries
        .filter_map(|entry| entry.base_url.as_ref())
        .map(|url| url.reveal().to_owned())
        .collect()
}

fn entry(config: &Config, (name, entry): (&String, &ModelEntry)) -> Option<ModelOptions> {
    let provider = entry.provider.clone()?;
    let preset = config
        .providers
        .find(&provider)
        .and_then(|section| section.preset.clone());
    Some(ModelOptions {
        preset: Some(preset.unwrap_or_else(|| provider.clone())),
        provider,
        model: entry.model.clone().unwrap_or_else(|| name.clone()),
        context_window: entry.context_window,
        max_output: entry.max_output,
        prices: prices(&entry.prices),
        images: None,
    })
}

fn prices(section: &Prices) -> Option<command::Prices> {
    let (input, output) = (section.input?, section.output?);
    let (cache_read, cache_write) = (
        section.cache_read.unwrap_or(input),
        section.cache_write.unwrap_or(input),
    );
    Some(command::Prices {
        input,
        output,
        cache_read,
        cache_write,
    })
}

/// Returns the standard model of the first provider that has both a key and a standard model, for
/// agents that do not name a model.
pub(super) fn default(config: &Config, models: &Llm) -> Option<ModelRef> {
    config
        .providers
        .keyed()
        .into_iter()
        .find_map(|name| models.standard(name))
}
