//! The command `planck model ls`.

use clap::Subcommand;
use planck_common::command::{ModelRow, Models};

use super::{
    exit::Exit,
    link::ConnectedClient,
    output::{Format, Output, say},
    place::ConfigPlace,
    render::style::count,
};

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  planck model ls
  planck model ls -o json | jq -r '.[].id'")]
pub enum Model {
    /// List the models that can be used
    Ls {
        #[command(flatten)]
        output: Output,
    },
}

impl Model {
    pub async fn perform(self, place: &ConfigPlace) -> anyhow::Result<Exit> {
        let Self::Ls { output } = self;
        let config = place.config()?;
        let link = ConnectedClient::look(&config).await?;
        let models = link.client.models().await;
        link.close().await;
        let Models { models, date } = models?;
        let rows = models.iter().map(row).collect();
        output.list(
            &models,
            &["id", "context", "answer", "$ in", "$ out", ""],
            rows,
        )?;
        if let (Some(date), Format::Table) = (date, output.output) {
            say(&format!(
                "\nUS dollars per million tokens, looked up {date}. `standard`: used where no model is named.\n"
            ))?;
        }
        Ok(Exit::Done)
    }
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
