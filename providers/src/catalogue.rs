//! The facts about models. They come from a table that is part of the binary or that the user
//! names, and from the entries that the configuration adds or overrides. This module also parses such
//! a table.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};

use serde::Deserialize;
use toml::Spanned;

use planck_agent::model::{ModelCard, RetryRules};
use planck_common::{
    command::{ModelRow, Prices},
    spec::ModelRef,
    usage::Usage,
};

use crate::{
    options::ModelOptions,
    preset::{Preset, ServedModels},
    wire::WireKind,
};

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

// Parses a file of models: limits, capabilities and list prices by vendor, with the date on which
// they were looked up. One such file is part of the binary. A user may name a newer file in the
// same format.

/// The contents of a file of models.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelTable {
    /// The date on which the facts were looked up, as `YYYY-MM-DD`.
    pub date: String,
    /// The default model of each vendor, for agents that do not name a model.
    pub standard: BTreeMap<String, String>,
    models: Vec<TableModel>,
    families: Vec<ModelFamily>,
    /// The vendors of all `models` and `families`.
    pub vendors: BTreeSet<String>,
}

/// One model and its facts.
#[derive(Debug, Clone, PartialEq)]
struct TableModel {
    vendor: String,
    model: String,
    entry: ModelFacts,
}

/// The facts that are assumed for those models of a vendor that are not in the table and whose
/// names begin with the same text.
#[derive(Debug, Clone, PartialEq)]
struct ModelFamily {
    vendor: String,
    /// The beginning of the models' names.
    begins: String,
    entry: ModelFacts,
}

impl ModelFamily {
    /// Returns whether a model of one of these vendors belongs to the family. OpenAI's open-weight
    /// models (`gpt-oss…`) do not belong to OpenAI's family, because other vendors serve them with
    /// other limits.
    fn has(&self, vendors: &[&str], model: &str) -> bool {
        vendors.contains(&self.vendor.as_str())
            && model.starts_with(&self.begins)
            && !model.starts_with("gpt-oss")
    }
}

/// The reason why a text is not a valid table of models.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BadTable {
    #[error("line {line}: {what}")]
    Form { line: usize, what: String },
    #[error("`standard.{vendor}` names `{model}`, which is no model of {vendor} in the file")]
    Standard { vendor: String, model: String },
    #[error("the price {price} of `{model}` is no amount of dollars")]
    Price { model: String, price: f64 },
}

impl ModelTable {
    /// Returns the table that is part of this version of Planck.
    pub fn built_in() -> Self {
        #[expect(
            clippy::expect_used,
            reason = "a test reads the file, which is a part of the binary"
        )]
        include_str!("catalogue/models.toml")
            .parse()
            .expect("the built-in table can be read")
    }
}

impl FromStr for ModelTable {
    type Err = BadTable;

    fn from_str(text: &str) -> Result<Self, BadTable> {
        let TableFile {
            date,
            standard,
            models,
            families,
        } = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            BadTable::Form {
                line: line(text, at),
                what: error.message().to_owned(),
            }
        })?;
        let rows = each(text, models, ModelGroup::rows)?
            .into_iter()
            .flatten()
            .collect::<Result<Vec<TableModel>, BadTable>>()?;
        let unlisted = standard.iter().find(|(vendor, model)| {
            !rows
                .iter()
                .any(|row| row.vendor == **vendor && row.model == **model)
        });
        if let Some((vendor, model)) = unlisted {
            return Err(BadTable::Standard {
                vendor: vendor.clone(),
                model: model.clone(),
            });
        }
        let families = each(text, families, ModelGroup::family)?;
        let vendors = rows
            .iter()
            .map(|row| &row.vendor)
            .chain(families.iter().map(|family| &family.vendor))
            .cloned()
            .collect();
        Ok(Self {
            date,
            standard,
            models: rows,
            families,
            vendors,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TableFile {
    date: String,
    #[serde(default)]
    standard: BTreeMap<String, String>,
    models: Vec<Spanned<ModelGroup>>,
    #[serde(default)]
    families: Vec<Spanned<ModelGroup>>,
}

/// Models of a vendor that share the same facts. An entry of `models` lists the models with their
/// prices. An entry of `families` covers all models whose names begin with the same text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelGroup {
    vendor: String,
    context_window: u64,
    max_output: u64,
    thinking: Thinking,
    #[serde(default)]
    responses: bool,
    #[serde(default = "yes")]
    images: bool,
    /// The prices of each model. Only entries of `models` have them.
    prices: Option<BTreeMap<String, [f64; 4]>>,
    /// The beginning of the models' names. Only entries of `families` have it.
    begins: Option<String>,
}

impl ModelGroup {
    fn entry(&self, prices: Option<Prices>) -> ModelFacts {
        ModelFacts {
            context_window: self.context_window,
            max_output: self.max_output,
            prices,
            images: self.images,
            thinking: self.thinking,
            responses: self.responses,
        }
    }

    /// Returns the models of the group. Fails with a message if the group has `begins` or lacks
    /// `prices`, because the group is an entry of `models`.
    fn rows(mut self) -> Result<Vec<Result<TableModel, BadTable>>, &'static str> {
        if self.begins.is_some() {
            return Err("unknown field `begins`, which is one of `families`");
        }
        let prices = self.prices.take().ok_or("missing field `prices`")?;
        Ok(prices
            .into_iter()
            .map(|(model, prices)| self.row(model, prices))
            .collect())
    }

    fn row(&self, model: String, prices: [f64; 4]) -> Result<TableModel, BadTable> {
        if let Some(price) = prices
            .into_iter()
            .find(|price| !price.is_finite() || *price < 0.0)
        {
            return Err(BadTable::Price { model, price });
        }
        let [input, output, cache_read, cache_write] = prices;
        let prices = Prices {
            input,
            output,
            cache_read,
            cache_write,
        };
        Ok(TableModel {
            vendor: self.vendor.clone(),
            model,
            entry: self.entry(Some(prices)),
        })
    }

    /// Returns the family. Fails with a message if the group has `prices` or lacks `begins`,
    /// because the group is an entry of `families`.
    fn family(self) -> Result<ModelFamily, &'static str> {
        if self.prices.is_some() {
            return Err("unknown field `prices`, which is one of `models`");
        }
        let entry = self.entry(None);
        let begins = self.begins.ok_or("missing field `begins`")?;
        Ok(ModelFamily {
            vendor: self.vendor,
            begins,
            entry,
        })
    }
}

/// Converts every group. An error contains the line of the group that caused it.
fn each<T>(
    text: &str,
    groups: Vec<Spanned<ModelGroup>>,
    read: fn(ModelGroup) -> Result<T, &'static str>,
) -> Result<Vec<T>, BadTable> {
    let one = |group: Spanned<ModelGroup>| {
        let at = group.span().start;
        read(group.into_inner()).map_err(|what| BadTable::Form {
            line: line(text, at),
            what: what.into(),
        })
    };
    groups.into_iter().map(one).collect()
}

fn line(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or_default();
    before.matches('\n').count() + 1
}

fn yes() -> bool {
    true
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

    #[test]
    fn standard_models_are_neither_the_dearest_nor_the_smallest() {
        let table = ModelTable::built_in();
        for (vendor, standard) in &table.standard {
            let output = |row: &TableModel| row.entry.prices.unwrap().output;
            let of_vendor = table.models.iter().filter(|row| row.vendor == *vendor);
            let prices: Vec<f64> = of_vendor.clone().map(output).collect();
            let price = of_vendor
                .clone()
                .find(|row| row.model == *standard)
                .map(output)
                .unwrap();
            let (least, most) = (
                prices.iter().copied().fold(f64::MAX, f64::min),
                prices.iter().copied().fold(0.0, f64::max),
            );
            let has_a_middle = prices.iter().any(|price| *price > least && *price < most);
            assert!(
                !has_a_middle || price > least && price < most,
                "{vendor}: {standard} at {price} of {least} to {most}"
            );
        }
    }

    #[test]
    fn an_error_names_the_line_and_the_field() {
        let models = "date = \"2026-01-01\"\n[[models]]\nvendor = \"mine\"\ncontext_window = 9\nmax_output = 3\n";
        for (text, expected) in [
            ("models = []\n".to_owned(), "missing field `date`"),
            (
                format!("{models}thinking = \"loud\"\n"),
                "line 6: unknown variant `loud`",
            ),
            (
                format!("{models}thinking = \"none\"\n[models.prices]\nm = [1.0]\n"),
                "line 8: invalid length 1",
            ),
            (
                format!(
                    "{models}thinking = \"none\"\n[models.prices]\nm = [1.0, -2.0, 0.0, 0.0]\n"
                ),
                "the price -2 of `m`",
            ),
            (
                format!(
                    "{models}thinking = \"none\"\nprices.m = [1.0, 1.0, 1.0, 1.0]\n[standard]\nmine = \"n\"\n"
                ),
                "names `n`",
            ),
            (
                format!("{models}thinking = \"none\"\n"),
                "line 2: missing field `prices`",
            ),
            (
                format!("{models}thinking = \"none\"\nbegins = \"m\"\nprices = {{}}\n"),
                "line 2: unknown field `begins`",
            ),
            (
                format!(
                    "{models}thinking = \"none\"\nprices = {{}}\n{}",
                    models
                        .replace("[[models]]", "[[families]]")
                        .replace("date", "#")
                        + "thinking = \"none\"\n"
                ),
                "line 9: missing field `begins`",
            ),
        ] {
            let said = text.parse::<ModelTable>().unwrap_err().to_string();
            assert!(said.contains(expected), "{said}: {text}");
        }
    }
}
