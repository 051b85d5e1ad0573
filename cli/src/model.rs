//! The command `planck model ls`, and the models that a person may choose.

use clap::Subcommand;
use planck_common::{
    command::{ChangeModel, ModelRow, Models},
    similar::did_you_mean,
};

use super::{
    args::GlobalArgs,
    connect::ConnectedClient,
    exit::{Exit, UsageError},
    output::{Format, Output, say, table},
    render::style::count,
};

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  planck model ls
  planck model ls -o json | jq -r '.[].id'")]
pub enum ModelCommand {
    /// List the models that can be used
    #[command(
        after_help = "Examples:\n  planck model ls\n  planck model ls -o json | jq -r '.[].id'"
    )]
    Ls {
        #[command(flatten)]
        output: Output,
    },
}

impl ModelCommand {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let Self::Ls { output } = self;
        let config = global.config()?;
        let link = ConnectedClient::look(&config).await?;
        let models = link.client.models().await;
        link.close().await;
        let Models { models, date } = models?;
        let rows = models.iter().map(row).collect();
        output.list(&models, &COLUMNS, rows)?;
        if let (Some(date), Format::Table) = (date, output.output) {
            say(&format!(
                "\nUS dollars per million tokens, looked up {date}. `standard`: used where no model is named.\n"
            ))?;
        }
        Ok(Exit::Done)
    }
}

const COLUMNS: [&str; 6] = ["id", "context", "answer", "$ in", "$ out", ""];

/// Formats models as a table.
pub fn list(models: &[ModelRow]) -> String {
    let rows: Vec<_> = models.iter().map(row).collect();
    table(&COLUMNS, &rows)
}

/// Splits the name of a model into its provider, if it has one, and the rest.
pub fn parse(name: &str) -> (Option<String>, String) {
    match name.split_once(':') {
        Some((provider, id)) => (Some(provider.to_owned()), id.to_owned()),
        None => (None, name.to_owned()),
    }
}

/// Returns the change to a model that is taken as it is named.
pub fn change(name: &str) -> ChangeModel {
    let (provider, model_id) = parse(name);
    ChangeModel {
        provider,
        model_id,
        base_url: None,
    }
}

/// Returns the change to the model that a person names, which must be one of the list. Without a
/// provider, it is a model of the provider of `current`, or of the only provider that has it. A
/// provider without any model in the list is not judged, because the list does not describe it.
pub fn choose(models: &[ModelRow], current: &str, name: &str) -> Result<ChangeModel, UsageError> {
    let (provider, id) = parse(name);
    let (own, _) = parse(current);
    let found = match &provider {
        Some(provider) => models
            .iter()
            .find(|row| row.id == format!("{provider}:{id}")),
        None => {
            let mut same = models.iter().filter(|row| row.model == id);
            let of_own = same.clone().find(|row| Some(&row.provider) == own.as_ref());
            of_own.or_else(|| same.next().filter(|_| same.next().is_none()))
        }
    };
    let is_described = |name: &String| models.iter().any(|row| row.provider == *name);
    let provider = match (found, provider) {
        (Some(row), _) => row.provider.clone(),
        (None, Some(provider)) if !is_described(&provider) && !provider.is_empty() => provider,
        (None, provider) => return Err(unknown(models, provider.as_ref(), name)),
    };
    Ok(ChangeModel {
        provider: Some(provider),
        model_id: found.map_or(id, |row| row.model.clone()),
        base_url: None,
    })
}

fn unknown(models: &[ModelRow], provider: Option<&String>, name: &str) -> UsageError {
    let same = models.iter().filter(|row| row.model == name);
    let same: Vec<&str> = same.map(|row| row.id.as_str()).collect();
    if provider.is_none() && !same.is_empty() {
        let names = same.join(", ");
        return UsageError(format!(
            "several providers have `{name}`; write one of {names}"
        ));
    }
    let known = models
        .iter()
        .filter(|row| provider.is_none_or(|provider| row.provider == *provider));
    let names = known.map(|row| match provider {
        Some(_) => row.id.as_str(),
        None => row.model.as_str(),
    });
    let hint =
        did_you_mean(name, names).unwrap_or_else(|| "/model lists those that are.".to_owned());
    UsageError(format!(
        "no model `{name}` is known; {hint} Another one is described under `models.entries`, or named with --model"
    ))
}

fn row(model: &ModelRow) -> Vec<String> {
    let price = |of: fn(&planck_common::command::Prices) -> f64| {
        model
            .prices
            .as_ref()
            .map_or("–".into(), |prices| format!("{:.2}", of(prices)))
    };
    vec![
        model.id.clone(),
        count(model.context_window),
        count(model.max_output),
        price(|prices| prices.input),
        price(|prices| prices.output),
        if model.standard {
            "standard".into()
        } else {
            String::new()
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models() -> Vec<ModelRow> {
        let names = [
            "openai:gpt-5",
            "openai:gpt-5-mini",
            "azure:gpt-5",
            "google:gemini-3",
        ];
        let row = |name: &&str| {
            let (provider, model) = name.split_once(':').unwrap();
            let row = serde_json::json!({
                "id": name, "provider": provider, "model": model, "context_window": 1, "max_output": 1, "prices": null,
            });
            serde_json::from_value(row).unwrap()
        };
        names.iter().map(row).collect()
    }

    #[test]
    fn only_a_known_model_is_chosen() {
        for (current, name, chosen) in [
            ("openai:gpt-5", "openai:gpt-5-mini", "openai:gpt-5-mini"),
            ("openai:gpt-5", "gpt-5-mini", "openai:gpt-5-mini"),
            ("azure:gpt-5", "gpt-5", "azure:gpt-5"),
            ("azure:gpt-5", "gemini-3", "google:gemini-3"),
            ("openai:gpt-5", "ollama:qwen3:8b", "ollama:qwen3:8b"),
        ] {
            let change = choose(&models(), current, name).unwrap();
            let chose = format!("{}:{}", change.provider.unwrap(), change.model_id);
            assert_eq!(chose, chosen, "{name}");
        }
        for (name, hint) in [
            ("openai:gpt-5-mni", "did you mean `openai:gpt-5-mini`?"),
            ("gemini3", "did you mean `gemini-3`?"),
            ("gpt-5", "write one of openai:gpt-5, azure:gpt-5"),
            ("bogus", "/model lists"),
            ("openai:", "no model `openai:`"),
            (":x", "no model `:x`"),
        ] {
            let refused = choose(&models(), "google:gemini-3", name).unwrap_err();
            assert!(refused.to_string().contains(hint), "{name}: {refused}");
        }
    }
}
