//! A file with the user's own table of models.

use std::{fs, path::PathBuf};

use super::{InvalidValue, Setting};
use crate::config::values::{Raw, ValueContext};
use planck_providers::ModelTable;

/// The maximum size of a table in bytes. The built-in table has 6 KB.
const MOST_BYTES: u64 = 1 << 20;

/// A valid file of models, together with its contents.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelsFile {
    path: PathBuf,
    pub table: ModelTable,
}

impl Setting for ModelsFile {
    fn kind() -> String {
        "the path of a file of models".into()
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        let path = PathBuf::parse(raw, world)?;
        let refused = |what: String| InvalidValue {
            what: format!("{}: {what}", path.display()),
            remedy: "name a file of the form that docs/models.md describes, or take the key out"
                .into(),
        };
        let status = fs::metadata(&path).map_err(|error| refused(error.to_string()))?;
        if !status.is_file() || status.len() > MOST_BYTES {
            return Err(refused(format!(
                "it is no regular file of at most {MOST_BYTES} bytes"
            )));
        }
        let text = fs::read_to_string(&path).map_err(|error| refused(error.to_string()))?;
        let table = text
            .parse()
            .map_err(|error: planck_providers::BadTable| refused(error.to_string()))?;
        Ok(Self { path, table })
    }

    fn show(&self) -> Option<String> {
        Some(self.path.display().to_string())
    }
}
