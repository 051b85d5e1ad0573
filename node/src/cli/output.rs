//! Text to standard output: tables, JSON, plain text.

use std::io::{self, Write as _};

use clap::ValueEnum;
use serde::Serialize;

/// How a list is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
}

/// `-o table|json`
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Output {
    /// How to write it
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// Writes text as it is, at once.
pub fn say(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Writes a value as JSON.
pub fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    Ok(say(&(serde_json::to_string_pretty(value)? + "\n"))?)
}

impl Output {
    /// Writes rows as a table, or the value they were made of as JSON.
    pub fn list<T: Serialize>(self, value: &T, columns: &[&str], rows: Vec<Vec<String>>) -> anyhow::Result<()> {
        match self.output {
            Format::Json => json(value),
            Format::Table => Ok(say(&table(columns, &rows))?),
        }
    }

    /// Writes pairs below each other, or the value they were made of as JSON.
    pub fn pairs<T: Serialize>(self, value: &T, pairs: &[(&str, String)]) -> anyhow::Result<()> {
        let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let lines = pairs.iter().map(|(name, text)| format!("{name:<width$}  {text}\n"));
        match self.output {
            Format::Json => json(value),
            Format::Table => Ok(say(&lines.collect::<String>())?),
        }
    }
}

/// Columns as wide as their widest cell.
pub fn table(columns: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = columns.iter().map(|column| column.to_uppercase()).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&head).chain(rows).collect();
    let width = |at: usize| all.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |row: &&Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    all.iter().map(line).collect()
}

/// A dash for what is not there.
pub fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "–".into(), |value| value.to_string())
}
