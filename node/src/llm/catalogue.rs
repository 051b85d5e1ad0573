//! What is known of models: a table that comes with the binary or that a user names, and what the
//! configuration adds or overrides.

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
    preset::{Preset, Serves},
    wire::WireKind,
};
use crate::model::{ModelCard, RetryRules};

pub use table::{BadTable, ModelTable};

/// A model's limits, prices and abilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    pub context_window: u64,
    pub max_output: u64,
    pub prices: Option<Prices>,
    pub images: bool,
    pub thinking: Thinking,
    /// Whether the vendor takes tools for it on the Responses API only.
    pub responses: bool,
}

/// How a model is asked to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thinking {
    None,
    /// With a number of tokens.
    Budget,
    /// It decides itself how much, and takes no sampling parameters.
    Adaptive,
    /// As adaptive, and its thinking is valid only after the very messages that it followed.
    Bound,
}

/// What is assumed of a model nobody described: small limits hurt less than an overrun.
pub const UNKNOWN: Entry = Entry {
    context_window: 32_768,
    max_output: 4_096,
    prices: None,
    images: true,
    thinking: Thinking::Budget,
    responses: false,
};

/// What the catalogue says of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    pub entry: Entry,
    /// From what the facts are, if the model itself is not described.
    pub assumed: Option<Assumed>,
}

/// Whose facts are taken for a model that is not described.
#[derive(Debug, Clone, PartialEq)]
pub enum Assumed {
    /// Those of the model whose name it extends.
    Of(String),
    /// Those that models whose names begin like this have in common; their prices differ.
    Family(String),
    Nothing,
}

impl Assumed {
    /// The warning for a user of the model.
    pub fn told(&self, model: &ModelRef) -> String {
        let ModelRef { provider, id, .. } = model;
        let taken = match self {
            Self::Of(name) => format!("it is taken to be like `{name}`, prices included"),
            Self::Family(start) => format!(
                "it is taken to be like other models named `{start}…`, and no prices are assumed"
            ),
            Self::Nothing => {
                let Entry {
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

impl Entry {
    pub fn card(&self, retry: RetryRules) -> ModelCard {
        ModelCard {
            context_window: self.context_window,
            max_output: self.max_output,
            prices: self.prices,
            retry,
        }
    }

    /// What this much costs, in US dollars; 0 where prices are unknown.
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

/// A table with the configuration's entries over it.
#[derive(Debug, Clone)]
pub struct Catalogue {
    entries: BTreeMap<(String, String), Entry>,
    table: ModelTable,
}

impl Catalogue {
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
            let Found { entry, .. } = catalogue.find(&model.provider, &preset, &model.model);
            catalogue.entries.insert(
                (model.provider.clone(), model.model.clone()),
                overridden(entry, model),
            );
        }
        catalogue
    }

    /// What is known of a model: what stands under its provider's name, or under its vendor's where
    /// the provider serves the models of others; else what a model of a similar name has.
    pub fn find(&self, provider: &str, preset: &Preset, model: &str) -> Found {
        let own = [provider, preset.name]
            .into_iter()
            .find_map(|provider| self.described(provider, model));
        if let Some(entry) = own {
            return Found {
                entry,
                assumed: None,
            };
        }
        let (vendors, name): (Vec<&str>, &str) = match preset.serves {
            Serves::Weights => {
                return Found {
                    entry: UNKNOWN,
                    assumed: Some(Assumed::Nothing),
                };
            }
            Serves::Own => (vec![provider, preset.name], model),
            Serves::Any => (
                self.table.vendors.iter().map(String::as_str).collect(),
                model.rsplit_once('/').map_or(model, |(_, name)| name),
            ),
        };
        if let Some(entry) = vendors
            .iter()
            .find_map(|vendor| self.described(vendor, name))
        {
            return Found {
                entry,
                assumed: None,
            };
        }
        self.similar(&vendors, name)
    }

    /// The entry of a model. A dated or tagged name (`claude-haiku-4-5-20251001`, `qwen3:8b`) has
    /// that of the longest name it extends.
    fn described(&self, provider: &str, model: &str) -> Option<Entry> {
        self.longest(&[provider], |name| extends(model, name))
            .map(|(_, entry)| entry)
    }

    fn similar(&self, vendors: &[&str], model: &str) -> Found {
        if let Some((name, entry)) = self.longest(vendors, |name| model.starts_with(name)) {
            return Found {
                entry,
                assumed: Some(Assumed::Of(name.to_owned())),
            };
        }
        match self
            .table
            .families
            .iter()
            .find(|family| family.has(vendors, model))
        {
            Some(family) => Found {
                entry: family.entry,
                assumed: Some(Assumed::Family(family.begins.clone())),
            },
            None => Found {
                entry: UNKNOWN,
                assumed: Some(Assumed::Nothing),
            },
        }
    }

    fn longest(&self, providers: &[&str], fits: impl Fn(&str) -> bool) -> Option<(&str, Entry)> {
        let fitting = self
            .entries
            .iter()
            .filter(|((of, name), _)| providers.contains(&of.as_str()) && fits(name));
        fitting
            .max_by_key(|((_, name), _)| name.len())
            .map(|((_, name), entry)| (name.as_str(), *entry))
    }

    /// The model of a provider that is used where none is named: its vendor's standard one, else
    /// the first that is described.
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
        let row = |((provider, model), entry): (&(String, String), &Entry)| ModelRow {
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

    /// When the facts of the table were looked up.
    pub fn date(&self) -> &str {
        &self.table.date
    }
}

fn overridden(entry: Entry, model: &ModelOptions) -> Entry {
    Entry {
        context_window: model.context_window.unwrap_or(entry.context_window),
        max_output: model.max_output.unwrap_or(entry.max_output),
        prices: model.prices.or(entry.prices),
        images: model.images.unwrap_or(entry.images),
        thinking: entry.thinking,
        responses: entry.responses,
    }
}

/// Whether a model's name is this one, or this one with a date or tag: `-2025…`, `@2025…`,
/// `-latest`, `:8b`.
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
    fn names_with_a_date_or_a_tag() {
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
        let catalogue = Catalogue::new(
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
    fn a_model_that_is_not_described_is_like_those_with_a_similar_name() {
        let catalogue = Catalogue::new(ModelTable::built_in(), &[]);
        let assumed = |provider: &str, model: &str| {
            let preset = Preset::find(provider)
                .copied()
                .unwrap_or_else(|| Preset::unnamed(WireKind::Chat));
            catalogue.find(provider, &preset, model).assumed
        };
        let like = |name: &str| Some(Assumed::Of(name.into()));
        for (provider, model, expected) in [
            ("openai", "gpt-5", None),
            ("openai", "gpt-5-nano-turbo", like("gpt-5-nano")),
            ("openai", "gpt-5.6-sol-2026-08-01", None),
            ("mistral", "mistral-large-latest", None),
            ("moonshot", "kimi-k9", Some(Assumed::Family("kimi-".into()))),
            ("gateway", "moonshotai/kimi-k3", None),
            ("openai", "gpt-9-vega", Some(Assumed::Family("gpt-".into()))),
            ("openai", "davinci", Some(Assumed::Nothing)),
            (
                "anthropic",
                "claude-epic-7",
                Some(Assumed::Family("claude-".into())),
            ),
            ("anthropic", "gpt-5", Some(Assumed::Nothing)),
            ("openrouter", "anthropic/claude-sonnet-5-5", None),
            ("openrouter", "openai/gpt-oss-999b", Some(Assumed::Nothing)),
            ("azure", "gpt-5", None),
            (
                "gateway",
                "google/gemini-3.8-flash-lite",
                like("gemini-3.8-flash"),
            ),
            ("llama_cpp", "gpt-5", Some(Assumed::Nothing)),
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
        let entry = Entry {
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
