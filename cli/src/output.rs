//! Writes tables, JSON, text and drawings to standard output and standard error.
//!
//! All output of the commands goes through this module, which cleans text for a terminal with
//! [`planck_host::terminal`]. Exceptions are the line editor, and clap's help and errors. A test checks
//! that no other module under `cli` names these streams or the macros that print.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Write},
    os::{fd::AsFd, unix::fs::MetadataExt as _},
};

use anstream::{AutoStream, ColorChoice};
use clap::ValueEnum;
use serde::Serialize;
use unicode_width::UnicodeWidthStr as _;

use crate::exit::UsageError;
use planck_host::terminal::{Drawing, clean, clean_json, clean_line};

/// Standard output or standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

impl Stream {
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Out => io::stdout().is_terminal(),
            Self::Err => io::stderr().is_terminal(),
        }
    }

    /// Returns whether both streams are the same file, as after `2>&1`.
    pub fn are_one() -> bool {
        let identity = |output: &dyn AsFd| {
            let file = File::from(output.as_fd().try_clone_to_owned().ok()?);
            let about = file.metadata().ok()?;
            Some((about.dev(), about.ino()))
        };
        let out = identity(&io::stdout());
        out.is_some() && out == identity(&io::stderr())
    }

    /// Returns whether the stream may have colours: whether it is a terminal with colours, unless
    /// `NO_COLOR`, `CLICOLOR` or `CLICOLOR_FORCE` decides otherwise.
    pub fn has_colours(self) -> bool {
        let choice = match self {
            Self::Out => AutoStream::choice(&io::stdout()),
            Self::Err => AutoStream::choice(&io::stderr()),
        };
        choice != ColorChoice::Never
    }

    /// Writes a drawing, which may contain Planck's own colours and cursor movements.
    pub fn draw(self, drawing: &Drawing) -> io::Result<()> {
        match self {
            Self::Out => write(io::stdout().lock(), drawing.as_str()),
            Self::Err => write(io::stderr().lock(), drawing.as_str()),
        }
    }
}

/// The format of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
}

/// The format of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum EventFormat {
    #[default]
    Text,
    /// As they are published, one per line
    Jsonl,
}

/// The option `-o text|jsonl`.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct EventOutput {
    /// The format of the events
    #[arg(short, long, value_enum, default_value_t)]
    pub output: EventFormat,
}

/// The option `-o table|json`.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Output {
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// Writes text to standard output and flushes it. Control and invisible characters, except line
/// ends and tabs, are replaced with visible symbols.
pub fn say(text: &str) -> io::Result<()> {
    write(io::stdout().lock(), &clean(text))
}

/// Writes a drawing to standard output.
pub fn draw(drawing: &Drawing) -> io::Result<()> {
    Stream::Out.draw(drawing)
}

/// Writes data that another program may read. Control characters are replaced only if standard
/// output is a terminal.
pub fn data(text: &str) -> io::Result<()> {
    match Stream::Out.is_terminal() {
        true => say(text),
        false => write(io::stdout().lock(), text),
    }
}

/// Returns an error that says what to do if a person has started a command that speaks with a
/// program.
pub fn refuse_terminal(way_out: &str) -> Result<(), UsageError> {
    match Stream::Out.is_terminal() {
        true => Err(UsageError(format!(
            "this command speaks with a program: {way_out}"
        ))),
        false => Ok(()),
    }
}

/// Returns standard output for a protocol that a program reads. It must be no terminal, because
/// nothing is cleaned.
pub fn for_program() -> io::Result<tokio::fs::File> {
    let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    Ok(tokio::fs::File::from_std(file))
}

/// Writes JSON, in whose strings invisible and control characters are escaped.
pub fn json_text(text: &str) -> io::Result<()> {
    write(io::stdout().lock(), &clean_json(text))
}

/// Writes a value as JSON.
pub fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    Ok(json_text(&(serde_json::to_string_pretty(value)? + "\n"))?)
}

/// Writes a line to standard error, with control characters replaced. A failure is ignored, because
/// there is nowhere to report it.
pub fn warn(text: &str) {
    let _nobody_reads = write(io::stderr().lock(), &format!("{}\n", clean(text)));
}

/// Writes a question to standard error without a line end, with control characters replaced.
pub fn question(text: &str) -> io::Result<()> {
    write(io::stderr().lock(), &clean(text))
}

fn write(mut to: impl Write, text: &str) -> io::Result<()> {
    to.write_all(text.as_bytes())?;
    to.flush()
}

impl Output {
    /// Writes `rows` as a table, or `value`, from which the rows were made, as JSON.
    pub fn list<T: Serialize>(
        self,
        value: &T,
        columns: &[&str],
        rows: Vec<Vec<String>>,
    ) -> anyhow::Result<()> {
        match self.output {
            Format::Json => json(value),
            Format::Table => Ok(say(&table(columns, &rows))?),
        }
    }

    /// Writes `pairs` of names and texts one below the other, or `value`, from which the pairs were
    /// made, as JSON.
    pub fn pairs<T: Serialize>(self, value: &T, pairs: &[(&str, String)]) -> anyhow::Result<()> {
        let width = pairs
            .iter()
            .map(|(name, _)| name.chars().count())
            .max()
            .unwrap_or(0);
        let lines = pairs
            .iter()
            .map(|(name, text)| format!("{name:<width$}  {}\n", clean_line(text)));
        match self.output {
            Format::Json => json(value),
            Format::Table => Ok(say(&lines.collect::<String>())?),
        }
    }
}

/// Formats a table whose columns are as wide as their widest cell.
pub fn table(columns: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = columns.iter().map(|column| column.to_uppercase()).collect();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            row.iter()
                .map(|cell| clean_line(cell).into_owned())
                .collect()
        })
        .collect();
    let all: Vec<&Vec<String>> = std::iter::once(&head).chain(&rows).collect();
    let width = |at: usize| {
        let cells = all.iter().filter_map(|row| row.get(at));
        cells.map(|cell| cell.width()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |row: &&Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| {
            let blanks = width.saturating_sub(cell.width());
            format!("{cell}{}", " ".repeat(blanks))
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    all.iter().map(line).collect()
}

/// Returns the value as text, or a dash for `None`.
pub fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "–".into(), |value| value.to_string())
}
