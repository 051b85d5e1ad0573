//! Reads the columns of rows by name. Both stores read rows with it, so they accept the same values.

mod decode;

use std::{fmt::Display, path::Path, str::FromStr};

use planck_common::{Timestamp, usage::Usage};
use serde::de::DeserializeOwned;
use sqlx::{ColumnIndex, Decode, Row, Type};

use super::StoreError;

/// A row whose columns are read by name. A value that cannot be read means that the database is
/// damaged.
pub struct RowReader<'a, R> {
    pub row: &'a R,
    /// The file that has the row, if the database is a file.
    pub file: Option<&'a Path>,
}

impl<R> Clone for RowReader<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for RowReader<'_, R> {}

/// Returns the message about damaged content of the file at `path`.
pub fn damaged_file(path: &Path, what: impl Display) -> String {
    format!(
        "cannot use {}: it is damaged: {what}; put it aside, or recover it with `sqlite3 FILE .recover`",
        path.display()
    )
}

impl<'a, R> RowReader<'a, R>
where
    R: Row,
    for<'c> &'c str: ColumnIndex<R>,
    &'a str: Decode<'a, R::Database> + Type<R::Database>,
    bool: Decode<'a, R::Database> + Type<R::Database>,
    i32: Decode<'a, R::Database> + Type<R::Database>,
    i64: Decode<'a, R::Database> + Type<R::Database>,
    f64: Decode<'a, R::Database> + Type<R::Database>,
{
    pub fn get<T>(&self, column: &str) -> Result<T, StoreError>
    where
        T: Decode<'a, R::Database> + Type<R::Database>,
    {
        self.row
            .try_get(column)
            .map_err(|error| self.malformed(column, error))
    }

    /// Returns the error for a column that cannot be read. It names the record by its id or number,
    /// and its session if the row has it.
    fn malformed(&self, column: &str, error: impl Display) -> StoreError {
        let text = |column| self.row.try_get::<&str, _>(column).ok();
        let mut what = format!("malformed {column}");
        if let Some(id) = text("id") {
            what += &format!(" of {id}");
        } else if let Ok(seq) = self.row.try_get::<i64, _>("seq") {
            what += &format!(" of row {seq}");
        }
        if let Some(session) = text("session_id") {
            what += &format!(" in session {session}");
        }
        let what = format!("{what}: {error}");
        StoreError::Broken(match self.file {
            Some(path) => damaged_file(path, what),
            None => format!("cannot use the database: it is damaged: {what}"),
        })
    }

    pub fn text(&self, column: &str) -> Result<String, StoreError> {
        self.get::<&str>(column).map(str::to_owned)
    }

    fn optional_text(&self, column: &str) -> Result<Option<String>, StoreError> {
        Ok(self.get::<Option<&str>>(column)?.map(str::to_owned))
    }

    /// Parses a text column.
    pub fn parse<T: FromStr<Err: Display>>(&self, column: &str) -> Result<T, StoreError> {
        let text: &str = self.get(column)?;
        text.parse().map_err(|error| self.malformed(column, error))
    }

    pub fn parse_optional<T: FromStr<Err: Display>>(
        &self,
        column: &str,
    ) -> Result<Option<T>, StoreError> {
        let text: Option<&str> = self.get(column)?;
        text.map(str::parse)
            .transpose()
            .map_err(|error| self.malformed(column, error))
    }

    /// Converts a text column to a value of a closed set with `find`. Fails for an unknown name,
    /// which a newer version may have written.
    pub fn named<T>(
        &self,
        column: &str,
        find: impl Fn(&str) -> Option<T>,
    ) -> Result<T, StoreError> {
        let text: &str = self.get(column)?;
        find(text).ok_or_else(|| self.malformed(column, format!("unknown `{text}`")))
    }

    fn json<T: DeserializeOwned>(&self, column: &str) -> Result<T, StoreError> {
        let text: &str = self.get(column)?;
        serde_json::from_str(text).map_err(|error| self.malformed(column, error))
    }

    /// Reads a count or a row number. Fails if the number is negative, or too large to be exact in
    /// JSON.
    pub fn number(&self, column: &str) -> Result<i64, StoreError> {
        const LARGEST: i64 = 1 << 53;
        let number = self.get(column)?;
        if (0..=LARGEST).contains(&number) {
            Ok(number)
        } else {
            Err(self.malformed(column, format!("{number} is no count")))
        }
    }

    pub fn amount(&self, column: &str) -> Result<u64, StoreError> {
        Ok(self.number(column)?.unsigned_abs())
    }

    /// Reads a number of a column that has 32 bits.
    pub fn small(&self, column: &str) -> Result<u32, StoreError> {
        let number: i32 = self.get(column)?;
        u32::try_from(number).map_err(|error| self.malformed(column, error))
    }

    fn optional_small(&self, column: &str) -> Result<Option<u32>, StoreError> {
        let number: Option<i32> = self.get(column)?;
        number
            .map(u32::try_from)
            .transpose()
            .map_err(|error| self.malformed(column, error))
    }

    pub fn timestamp(&self, column: &str) -> Result<Timestamp, StoreError> {
        // 9999-12-31T23:59:59.999Z, the latest time that can be formatted as text.
        const LATEST: i64 = 253_402_300_799_999;
        let millis = self.number(column)?;
        if millis <= LATEST {
            Ok(Timestamp::from_millis(millis))
        } else {
            Err(self.malformed(column, format!("{millis} is no time")))
        }
    }

    pub fn usage(&self) -> Result<Usage, StoreError> {
        let cost_usd: f64 = self.get("cost_usd")?;
        if !cost_usd.is_finite() {
            return Err(self.malformed("cost_usd", "it is no number"));
        }
        Ok(Usage {
            input_tokens: self.amount("input_tokens")?,
            output_tokens: self.amount("output_tokens")?,
            cache_read_tokens: self.amount("cache_read_tokens")?,
            cache_write_tokens: self.amount("cache_write_tokens")?,
            cost_usd,
        })
    }
}
