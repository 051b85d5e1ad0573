//! Parses a file of models: limits, capabilities and list prices by vendor, with the date on which
//! they were looked up. One such file is part of the binary. A user may name a newer file in the
//! same format.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};

use planck_common::command::Prices;
use serde::Deserialize;
use toml::Spanned;

use super::{ModelFacts, Thinking};

/// The contents of a file of models.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelTable {
    /// The date on which the facts were looked up, as `YYYY-MM-DD`.
    pub date: String,
    /// The default model of each vendor, for agents that do not name a model.
    pub standard: BTreeMap<String, String>,
    pub models: Vec<TableModel>,
    pub families: Vec<ModelFamily>,
    /// The vendors of all `models` and `families`.
    pub vendors: BTreeSet<String>,
}

/// One model and its facts.
#[derive(Debug, Clone, PartialEq)]
pub struct TableModel {
    pub vendor: String,
    pub model: String,
    pub entry: ModelFacts,
}

/// The facts that are assumed for those models of a vendor that are not in the table and whose
/// names begin with the same text.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFamily {
    vendor: String,
    /// The beginning of the models' names.
    pub begins: String,
    pub entry: ModelFacts,
}

impl ModelFamily {
    /// Returns whether a model of one of these vendors belongs to the family. OpenAI's open-weight
    /// models (`gpt-oss…`) do not belong to OpenAI's family, because other vendors serve them with
    /// other limits.
    pub fn has(&self, vendors: &[&str], model: &str) -> bool {
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
        include_str!("models.toml")
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
