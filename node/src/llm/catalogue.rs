//! What is known of models: a small built-in table, and what the configuration adds or overrides.

mod table;

use std::collections::BTreeMap;

use planck_common::{
    command::{ModelRow, Prices},
    usage::Usage,
};

use super::options::ModelOptions;
use crate::model::{ModelCard, RetryRules};

/// A model's limits, prices and abilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    pub context_window: u64,
    pub max_output: u64,
    pub prices: Option<Prices>,
    pub images: bool,
    pub thinking: Thinking,
}

/// How a model is asked to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
pub const UNKNOWN: Entry =
    Entry { context_window: 32_768, max_output: 4_096, prices: None, images: true, thinking: Thinking::Budget };

impl Entry {
    pub fn card(&self, retry: RetryRules) -> ModelCard {
        ModelCard { context_window: self.context_window, max_output: self.max_output, prices: self.prices, retry }
    }

    /// What this much costs, in US dollars; 0 where prices are unknown.
    pub fn cost(&self, usage: &Usage) -> f64 {
        let Some(prices) = self.prices else { return 0.0 };
        let of = |tokens: u64, price: f64| tokens as f64 * price / 1e6;
        of(usage.input_tokens, prices.input)
            + of(usage.output_tokens, prices.output)
            + of(usage.cache_read_tokens, prices.cache_read)
            + of(usage.cache_write_tokens, prices.cache_write)
    }
}

/// The built-in table with the configuration's entries over it.
#[derive(Debug, Clone)]
pub struct Catalogue {
    entries: BTreeMap<(String, String), Entry>,
}

impl Catalogue {
    pub fn new(models: &[ModelOptions]) -> Self {
        let built_in = table::ROWS.iter().map(|row| ((row.provider.to_owned(), row.model.to_owned()), row.entry));
        let mut catalogue = Self { entries: built_in.collect() };
        for model in models {
            let entry = catalogue.find(&model.provider, &model.model).unwrap_or(UNKNOWN);
            catalogue.entries.insert((model.provider.clone(), model.model.clone()), overridden(entry, model));
        }
        catalogue
    }

    /// The entry of a model. A dated or tagged name (`claude-haiku-4-5-20251001`, `qwen3:8b`) has that of the longest name it extends.
    pub fn find(&self, provider: &str, model: &str) -> Option<Entry> {
        let of_provider = self.entries.iter().filter(|((of, _), _)| of == provider);
        let extended = of_provider.filter(|((_, name), _)| extends(model, name));
        extended.max_by_key(|((_, name), _)| name.len()).map(|(_, entry)| *entry)
    }

    pub fn rows(&self) -> Vec<ModelRow> {
        self.entries.iter().map(|((provider, model), entry)| row(provider, model, entry)).collect()
    }
}

fn overridden(entry: Entry, model: &ModelOptions) -> Entry {
    Entry {
        context_window: model.context_window.unwrap_or(entry.context_window),
        max_output: model.max_output.unwrap_or(entry.max_output),
        prices: model.prices.or(entry.prices),
        images: model.images.unwrap_or(entry.images),
        thinking: entry.thinking,
    }
}

/// Whether a model's name is this one, or this one with a date or tag: `-2025…`, `@2025…`, `-latest`, `:8b`.
fn extends(model: &str, name: &str) -> bool {
    let Some(rest) = model.strip_prefix(name) else { return false };
    let dated = |rest: &str| rest.starts_with("20") || rest == "latest";
    rest.is_empty() || rest.starts_with(':') || rest.strip_prefix(['-', '@']).is_some_and(dated)
}

fn row(provider: &str, model: &str, entry: &Entry) -> ModelRow {
    ModelRow {
        id: format!("{provider}:{model}"),
        provider: provider.to_owned(),
        model: model.to_owned(),
        context_window: entry.context_window,
        max_output: entry.max_output,
        prices: entry.prices,
    }
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
        let named = |model: &str| ModelOptions { provider: "openai".into(), model: model.into(), ..ModelOptions::default() };
        let first = table::ROWS.iter().find(|row| row.provider == "openai").unwrap();
        let catalogue = Catalogue::new(&[
            ModelOptions { context_window: Some(7), ..named(first.model) },
            ModelOptions { max_output: Some(9), ..named("mine") },
        ]);
        let changed = catalogue.find("openai", first.model).unwrap();
        assert_eq!((changed.context_window, changed.max_output), (7, first.entry.max_output));
        let added = catalogue.find("openai", "mine").unwrap();
        assert_eq!((added.context_window, added.max_output), (UNKNOWN.context_window, 9));
        assert_eq!(catalogue.find("openai", "nobody"), None);
    }

    #[test]
    fn a_cost_counts_each_kind_of_token() {
        let prices = Prices { input: 1.0, output: 10.0, cache_read: 0.1, cache_write: 2.0 };
        let entry = Entry { prices: Some(prices), ..UNKNOWN };
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
