//! The facts about models. They come from a table that is part of the binary or that the user
//! names, and from the entries that the configuration adds or overrides.

mod table;

use std::collections::BTreeMap;

use planck_common::{
    command::{ModelRow, Prices},
    spec::ModelRef,
    usage::Usage,
};
use serde::Deserialize;

use super::{
    options::ModelOptions,
    preset::{Preset, ServedModels},
    wire::WireKind,
};
use planck_agent::model::{ModelCard, RetryRules};

pub use table::{BadTable, ModelTable};

/// The limits, prices and capabilities of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelFacts {
    pub context_window: u64,
    pub max_output: u64,
    pub prices: Option<Prices>,
    pub images: bool,
    pub thinking: Thinking,
    /// Whether the vendor accepts tools for this model only on the Responses API.
    pub responses: bool,
}

/// How a request asks a model to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thinking {
    None,
    /// The request states a number of tokens for thinking.
    Budget,
    /// The model decides how much it thinks, and accepts no sampling parameters.
    Adaptive,
    /// Like `Adaptive`, but the thinking is valid in later requests only after exactly the messages
    /// that it followed.
    Bound,
}

/// The facts that are assumed for a model that nothing describes. The limits are small, because a
/// limit that is too small does less harm than one that is too large.
pub const UNKNOWN: ModelFacts = ModelFacts {
    context_window: 32_768,
    max_output: 4_096,
    prices: None,
    images: true,
    thinking: Thinking::Budget,
    responses: false,
};

/// The result of looking up a model in the catalogue.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundModel {
    pub entry: ModelFacts,
    /// The source of the facts, or `None` if the catalogue describes the model itself.
    pub assumed: Option<FactSource>,
}

/// The source of the facts about a model that the catalogue does not describe.
#[derive(Debug, Clone, PartialEq)]
pub enum FactSource {
    /// The described model whose name is the beginning of this model's name.
    Of(String),
    /// The family of models whose names begin with this text. Only the facts that all of them share
    /// are used, so there are no prices.
    Family(String),
    Nothing,
}

impl FactSource {
    /// Returns the warning that is shown to a user of the model.
    pub fn warning(&self, model: &ModelRef) -> String {
        let ModelRef { provider, id, .. } = model;
        let taken = match self {
            Self::Of(name) => format!("it is taken to be like `{name}`, prices included"),
            Self::Family(start) => format!(
                "it is taken to be like other models named `{start}…`, and no prices are assumed"
            ),
            Self::Nothing => {
                let ModelFacts {
                    context_window,
                    max_output,
                    ..
                } = UNKNOWN;
                format!(
                    "a context of {context_window} tokens and replies of {max_output} are assumed, and no prices"
                )
            }
        };
        format!(
            "model `{provider}:{id}` is not in the catalogue: {taken}; describe it under `models.entries`"
        )
    }
}

impl ModelFacts {
    pub fn card(&self, retry: RetryRules) -> ModelCard {
        ModelCard {
            context_window: self.context_window,
            max_output: self.max_output,
            prices: self.prices,
            retry,
        }
    }

    /// Returns the cost of `usage` in US dollars, or 0 if the prices are unknown.
    pub fn cost(&self, usage: &Usage) -> f64 {
        let Some(prices) = self.prices else {
            return 0.0;
        };
        let of = |tokens: u64, price: f64| tokens as f64 * price / 1e6;
        of(usage.input_tokens, prices.input)
            + of(usage.output_tokens, prices.output)
            + of(usage.cache_read_tokens, prices.cache_read)
            + of(usage.cache_write_tokens, prices.cache_write)
    }
}

/// A table of models together with the entries from the configuration, which take precedence.
#[derive(Debug, Clone)]
pub struct ModelCatalogue {
    entries: BTreeMap<(String, String), ModelFacts>,
    table: ModelTable,
}

impl ModelCatalogue {
    pub fn new(table: ModelTable, models: &[ModelOptions]) -> Self {
        let listed = table
            .models
            .iter()
            .map(|row| ((row.vendor.clone(), row.model.clone()), row.entry));
        let mut catalogue = Self {
            entries: listed.collect(),
            table,
        };
        for model in models {
            let preset = model.preset.as_deref().and_then(Preset::find).copied();
            let preset = preset.unwrap_or_else(|| Preset::unnamed(WireKind::Chat));
            let FoundModel { entry, .. } = catalogue.find(&model.provider, &preset, &model.model);
            catalogue.entries.insert(
                (model.provider.clone(), model.model.clone()),
                overridden(entry, model),
            );
        }
        catalogue
    }

    /// Returns the facts about a model. An entry under the name of the provider or its preset takes
    /// precedence, then, if the provider serves models of several vendors, an entry of these
    /// vendors, then a model or a family of the same vendors with a similar name, then [`UNKNOWN`].
    /// Nothing is assumed from the name of downloaded weights.
    pub fn find(&self, provider: &str, preset: &Preset, model: &str) -> FoundModel {
        let own = [provider, preset.name]
            .into_iter()
            .find_map(|provider| self.described(provider, model));
        if let Some(entry) = own {
            return FoundModel {
                entry,
                assumed: None,
            };
        }
        let (vendors, name): (Vec<&str>, &str) = match preset.serves {
            ServedModels::Weights => {
                return FoundModel {
                    entry: UNKNOWN,
                    assumed: Some(FactSource::Nothing),
                };
            }
            ServedModels::Own => (vec![provider, preset.name], model),
            ServedModels::Any => (
                self.table.vendors.iter().map(String::as_str).collect(),
                model.rsplit_once('/').map_or(model, |(_, name)| name),
            ),
        };
        if let Some(entry) = vendors
            .iter()
            .find_map(|vendor| self.described(vendor, name))
        {
            return FoundModel {
                entry,
                assumed: None,
            };
        }
        self.similar(&vendors, name)
    }

    /// Returns the entry that describes a model. A dated or tagged name
    /// (`claude-haiku-4-5-20251001`, `qwen3:8b`) gets the entry of the longest name that it
    /// extends.
    fn described(&self, provider: &str, model: &str) -> Option<ModelFacts> {
        self.longest(&[provider], |name| extends(model, name))
            .map(|(_, entry)| entry)
    }

    fn similar(&self, vendors: &[&str], model: &str) -> FoundModel {
        if let Some((name, entry)) = self.longest(vendors, |name| model.starts_with(name)) {
            return FoundModel {
                entry,
                assumed: Some(FactSource::Of(name.to_owned())),
            };
        }
        match self
            .table
            .families
            .iter()
            .find(|family| family.has(vendors, model))
        {
            Some(family) => FoundModel {
                entry: family.entry,
                assumed: Some(FactSource::Family(family.begins.clone())),
            },
            None => FoundModel {
                entry: UNKNOWN,
                assumed: Some(FactSource::Nothing),
            },
        }
    }

    fn longest(
        &self,
        providers: &[&str],
        fits: impl Fn(&str) -> bool,
    ) -> Option<(&str, ModelFacts)> {
        let fitting = self
            .entries
            .iter()
            .filter(|((of, name), _)| providers.contains(&of.as_str()) && fits(name));
        fitting
            .max_by_key(|((_, name), _)| name.len())
            .map(|((_, name), entry)| (name.as_str(), *entry))
    }

    /// Returns the default model of a provider, for agents that do not name a model: the standard
    /// model of the vendor, or else the first model that has an entry.
    pub fn standard(&self, provider: &str, preset: &str) -> Option<&str> {
        let listed = [provider, preset]
            .into_iter()
            .find_map(|vendor| self.table.standard.get(vendor));
        let described = || {
            self.entries
                .keys()
                .find(|(of, _)| of == provider)
                .map(|(_, model)| model)
        };
        listed.or_else(described).map(String::as_str)
    }

    pub fn rows(&self) -> Vec<ModelRow> {
        let is_standard = |provider: &str, model: &str| {
            self.table
                .standard
                .get(provider)
                .is_some_and(|name| name == model)
        };
        let row = |((provider, model), entry): (&(String, String), &ModelFacts)| ModelRow {
            id: format!("{provider}:{model}"),
            provider: provider.clone(),
            model: model.clone(),
            context_window: entry.context_window,
            max_output: entry.max_output,
            prices: entry.prices,
            standard: is_standard(provider, model),
        };
        self.entries.iter().map(row).collect()
    }

    /// Returns the date on which the facts in the table were looked up.
    pub fn date(&self) -> &str {
        &self.table.date
    }
}

fn overridden(entry: ModelFacts, model: &ModelOptions) -> ModelFacts {
    ModelFacts {
        context_window: model.context_window.unwrap_or(entry.context_window),
        max_output: model.max_output.unwrap_or(entry.max_output),
        prices: model.prices.or(entry.prices),
        images: model.images.unwrap_or(entry.images),
        thinking: entry.thinking,
        responses: entry.responses,
    }
}

/// Returns whether `model` is `name`, or `name` with a date or tag: `-2025…`, `@2025…`, `-latest`,
/// `:8b`.
fn extends(model: &str, name: &str) -> bool {
    let Some(rest) = model.strip_prefix(name) else {
        return false;
    };
    let dated = |rest: &str| rest.starts_with("20") || rest == "latest";
    rest.is_empty() || rest.starts_with(':') || rest.strip_prefix(['-', '@']).is_some_and(dated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_or_a_tag_extends_a_name() {
        for (model, name, expected) in [
            ("claude-x-4-5", "claude-x-4-5", true),
            ("claude-x-4-5-20251001", "claude-x-4-5", true),
            ("claude-x-4-5@20251001", "claude-x-4-5", true),
            ("gpt-9-mini", "gpt-9", false),
            ("gpt-9-2025-08-07", "gpt-9", true),
            ("qwen3:8b", "qwen3", true),
            ("qwen3.5", "qwen3", false),
        ] {
            assert_eq!(extends(model, name), expected, "{model} {name}");
        }
    }

    #[test]
    fn the_configuration_adds_and_overrides() {
        let named = |model: &str| ModelOptions {
            provider: "openai".into(),
            model: model.into(),
            ..ModelOptions::default()
        };
        let table = ModelTable::built_in();
        let first = table
            .models
            .iter()
            .find(|row| row.vendor == "openai")
            .unwrap()
            .clone();
        let catalogue = ModelCatalogue::new(
            table,
            &[
                ModelOptions {
                    context_window: Some(7),
                    ..named(&first.model)
                },
                ModelOptions {
                    max_output: Some(9),
                    ..named("mine")
                },
            ],
        );
        let found = |model: &str| catalogue.find("openai", Preset::find("openai").unwrap(), model);
        let changed = found(&first.model).entry;
        assert_eq!(
            (changed.context_window, changed.max_output),
            (7, first.entry.max_output)
        );
        let added = found("mine");
        assert_eq!(
            (added.entry.context_window, added.entry.max_output),
            (UNKNOWN.context_window, 9)
        );
        assert_eq!(added.assumed, None);
    }

    #[test]
    fn a_model_without_an_entry_has_the_facts_of_similar_names() {
        let catalogue = ModelCatalogue::new(ModelTable::built_in(), &[]);
        let assumed = |provider: &str, model: &str| {
            let preset = Preset::find(provider)
                .copied()
                .unwrap_or_else(|| Preset::unnamed(WireKind::Chat));
            catalogue.find(provider, &preset, model).assumed
        };
        let like = |name: &str| Some(FactSource::Of(name.into()));
        for (provider, model, expected) in [
            ("openai", "gpt-5", None),
            ("openai", "gpt-5-nano-turbo", like("gpt-5-nano")),
            ("openai", "gpt-5.6-sol-2026-08-01", None),
            ("mistral", "mistral-large-latest", None),
            (
                "moonshot",
                "kimi-k9",
                Some(FactSource::Family("kimi-".into())),
            ),
            ("gateway", "moonshotai/kimi-k3", None),
            (
                "openai",
                "gpt-9-vega",
                Some(FactSource::Family("gpt-".into())),
            ),
            ("openai", "davinci", Some(FactSource::Nothing)),
            (
                "anthropic",
                "claude-epic-7",
                Some(FactSource::Family("claude-".into())),
            ),
            ("anthropic", "gpt-5", Some(FactSource::Nothing)),
            ("openrouter", "anthropic/claude-sonnet-5-5", None),
            (
                "openrouter",
                "openai/gpt-oss-999b",
                Some(FactSource::Nothing),
            ),
            ("azure", "gpt-5", None),
            (
                "gateway",
                "google/gemini-3.8-flash-lite",
                like("gemini-3.8-flash"),
            ),
            ("llama_cpp", "gpt-5", Some(FactSource::Nothing)),
        ] {
            assert_eq!(assumed(provider, model), expected, "{provider}:{model}");
        }
    }

    #[test]
    fn a_cost_counts_each_kind_of_token() {
        let prices = Prices {
            input: 1.0,
            output: 10.0,
            cache_read: 0.1,
            cache_write: 2.0,
        };
        let entry = ModelFacts {
            prices: Some(prices),
            ..UNKNOWN
        };
        let usage = Usage {
            input_tokens: 1_000_000,
            output_tokens: 100_000,
            cache_read_tokens: 10_000_000,
            cache_write_tokens: 500_000,
            cost_usd: 0.0,
        };
        assert!((entry.cost(&usage) - 4.0).abs() < 1e-9);
    }
}
