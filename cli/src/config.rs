//! The command `planck config show`.

use clap::Subcommand;
use serde::Serialize;

use super::{
    args::GlobalArgs,
    exit::Exit,
    output::{Output, or_dash},
};
use planck_node::config::{ShownValue, ValueOrigin};

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  planck config show --changed               # what differs from the defaults
  planck config show --origin                # where each value comes from")]
pub enum Show {
    /// Print every value in force; secrets are only shown as set
    #[command(
        after_help = "Examples:\n  planck config show --changed\n  planck config show --origin"
    )]
    Show {
        /// Add where each value came from
        #[arg(long)]
        origin: bool,
        /// Only values that differ from the defaults
        #[arg(long)]
        changed: bool,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Serialize)]
struct ConfigRow {
    key: String,
    value: Option<String>,
    origin: String,
}

impl ConfigRow {
    fn of(shown: ShownValue) -> Self {
        Self {
            key: shown.key.to_string(),
            value: shown.value,
            origin: shown.origin.to_string(),
        }
    }

    fn cells(&self, origin: bool) -> Vec<String> {
        let origin = origin.then(|| self.origin.clone());
        [self.key.clone(), or_dash(self.value.as_ref())]
            .into_iter()
            .chain(origin)
            .collect()
    }
}

impl Show {
    pub fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let Self::Show {
            origin,
            changed,
            output,
        } = self;
        let loaded = global.load()?;
        let wanted = loaded
            .shown()
            .into_iter()
            .filter(|shown| !changed || shown.origin != ValueOrigin::Default);
        let rows: Vec<ConfigRow> = wanted.map(ConfigRow::of).collect();
        let columns: &[&str] = if origin {
            &["key", "value", "origin"]
        } else {
            &["key", "value"]
        };
        output.list(
            &rows,
            columns,
            rows.iter().map(|row| row.cells(origin)).collect(),
        )?;
        Ok(Exit::Done)
    }
}
