//! The origin of a value, and the reports of mistakes in values.

use std::{fmt, path::PathBuf, sync::Arc};

use super::key::KeyPath;

/// The source of a value. Later variants take precedence over earlier ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueOrigin {
    Default,
    File {
        path: Arc<PathBuf>,
        line: usize,
    },
    Environment(String),
    Flag(String),
    /// A setting from the program that embeds the runtime.
    Program,
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
            Self::Program => f.write_str("the program"),
        }
    }
}

/// One mistake: where it is, which key it concerns, what is wrong, and how to correct it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    pub origin: ValueOrigin,
    pub key: Option<KeyPath>,
    pub what: String,
    pub remedy: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            origin,
            key,
            what,
            remedy,
        } = self;
        match key {
            Some(key) => write!(f, "{origin}: `{key}`: {what}; {remedy}"),
            None => write!(f, "{origin}: {what}; {remedy}"),
        }
    }
}

/// All mistakes. They are shown one per line, after a line with their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<ConfigProblem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        write!(
            f,
            "the configuration has {count} problem{}",
            if count == 1 { "" } else { "s" }
        )?;
        self.0
            .iter()
            .try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Problems {}
