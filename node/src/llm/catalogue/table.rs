//! The file of models: limits, abilities and list prices by vendor, with the date on which they
//! were looked up. The binary holds one, and a user may name a newer one of the same form.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};

use planck_common::command::Prices;
use serde::Deserialize;

use super::{Entry, Thinking};

/// What a file of models says.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelTable {
    /// When the facts were looked up, `YYYY-MM-DD`.
    pub date: String,
    /// By vendor the model that is used where none is named.
    pub standard: BTreeMap<String, String>,
    pub models: Vec<Row>,
    pub families: Vec<Family>,
    /// The vendors whose models other providers serve too.
    pub vendors: BTreeSet<String>,
}

/// A model of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub vendor: String,
    pub model: String,
    pub entry: Entry,
}

/// What is assumed of a vendor's models that are not in the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    vendor: String,
    /// How their names begin.
    pub begins: String,
    pub entry: Entry,
}

impl Family {
    /// Whether a model of one of these vendors belongs to it. OpenAI's open weights are served by
    /// others, within other limits.
    pub fn has(&self, vendors: &[&str], model: &str) -> bool {
        vendors.contains(&self.vendor.as_str())
            && model.starts_with(&self.begins)
            && !model.starts_with("gpt-oss")
    }
}

/// Why a text is no table of models.
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
    /// The table of this version of Planck.
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
        let File {
            date,
            standard,
            models,
            families,
        } = toml::from_str(text).map_err(|error| {
            let before = text
                .get(..error.span().map_or(0, |span| span.start))
                .unwrap_or_default();
            BadTable::Form {
                line: before.matches('\n').count() + 1,
                what: error.message().to_owned(),
            }
        })?;
        let rows = models
            .into_iter()
            .flat_map(Group::rows)
            .collect::<Result<Vec<Row>, BadTable>>()?;
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
        let families: Vec<Family> = families.into_iter().map(Assumed::family).collect();
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
struct File {
    date: String,
    #[serde(default)]
    standard: BTreeMap<String, String>,
    models: Vec<Group>,
    #[serde(default)]
    families: Vec<Assumed>,
}

/// Models of a vendor that differ in their prices only.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    vendor: String,
    context_window: u64,
    max_output: u64,
    thinking: Thinking,
    #[serde(default)]
    responses: bool,
    #[serde(default = "yes")]
    images: bool,
    prices: BTreeMap<String, [f64; 4]>,
}

impl Group {
    fn rows(self) -> Vec<Result<Row, BadTable>> {
        let Self {
            vendor,
            context_window,
            max_output,
            thinking,
            responses,
            images,
            prices,
        } = self;
        let row = |(model, prices): (String, [f64; 4])| {
            if let Some(price) = prices
                .into_iter()
                .find(|price| !price.is_finite() || *price < 0.0)
            {
                return Err(BadTable::Price { model, price });
            }
            let [input, output, cache_read, cache_write] = prices;
            let prices = Some(Prices {
                input,
                output,
                cache_read,
                cache_write,
            });
            let entry = Entry {
                context_window,
                max_output,
                prices,
                images,
                thinking,
                responses,
            };
            Ok(Row {
                vendor: vendor.clone(),
                model,
                entry,
            })
        };
        prices.into_iter().map(row).collect()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Assumed {
    vendor: String,
    begins: String,
    context_window: u64,
    max_output: u64,
    thinking: Thinking,
    #[serde(default)]
    responses: bool,
    #[serde(default = "yes")]
    images: bool,
}

impl Assumed {
    fn family(self) -> Family {
        let Self {
            vendor,
            begins,
            context_window,
            max_output,
            thinking,
            responses,
            images,
        } = self;
        Family {
            vendor,
            begins,
            entry: Entry {
                context_window,
                max_output,
                prices: None,
                images,
                thinking,
                responses,
            },
        }
    }
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
            let output = |row: &Row| row.entry.prices.unwrap().output;
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
    fn what_is_wrong_with_a_file_is_named() {
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
        ] {
            let said = text.parse::<ModelTable>().unwrap_err().to_string();
            assert!(said.contains(expected), "{said}: {text}");
        }
    }
}
