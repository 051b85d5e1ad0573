//! Checks that the schema of a file is the one that the migrations of this version create. A file
//! with a damaged or foreign schema is refused before any of its tables is read, because its views
//! and triggers would run with the store's statements, and because sqlx panics on a declared type
//! that is not UTF-8.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use planck_migrations::Migration;
use sqlx::{Row as _, query, sqlite::SqliteRow};

use super::{
    db::{Db, DbOptions},
    fault::{self, SqliteFault},
};

/// Reads the version and the objects with one statement, so that another process's migration is
/// seen completely or not at all. The columns of this query have no declared type, and text is read
/// as bytes, so sqlx cannot panic. A valid schema has fewer objects than the limit.
const READ: &str =
    "SELECT v.user_version, CAST(o.type AS BLOB), CAST(o.name AS BLOB), CAST(o.tbl_name AS BLOB), CAST(o.sql AS BLOB)
    FROM pragma_user_version v LEFT JOIN sqlite_schema o ON true LIMIT 200";

/// The beginnings of table names that SQLite's own tools create: `.recover` and `ANALYZE`. The
/// store does not read these tables.
const TOOLS: [&[u8]; 2] = [b"lost_and_found", b"sqlite_stat"];

/// A table, index, view or trigger: its type, its name, its table and its SQL text.
type Object = [Option<Vec<u8>>; 4];

/// The schema of a file.
pub struct FileSchema {
    pub version: u32,
    objects: Vec<Object>,
}

impl FileSchema {
    pub async fn read(db: &Db) -> Result<Self, SqliteFault> {
        let rows = db.rows(query(READ)).await?;
        let damaged = |error: sqlx::Error| fault::sort(&error, db.path());
        let version = rows
            .first()
            .map_or(Ok(0), |row| row.try_get(0))
            .map_err(damaged)?;
        let mut objects: Vec<Object> = rows
            .iter()
            .map(object)
            .collect::<Result<_, _>>()
            .map_err(damaged)?;
        objects.retain(|object| !is_of_tool(object));
        objects.sort();
        Ok(Self { version, objects })
    }

    /// Returns an error if the schema does not match its version.
    pub async fn check(
        &self,
        path: &Path,
        opening: DbOptions,
        schema: &[Migration],
    ) -> Result<(), SqliteFault> {
        let steps: Vec<Migration> = schema
            .iter()
            .filter(|migration| migration.version <= self.version)
            .copied()
            .collect();
        if *made_by(path, opening, &steps).await? == self.objects {
            return Ok(());
        }
        Err(fault::damaged(
            path,
            format!("its tables are not those of schema {}", self.version),
        ))
    }
}

fn object(row: &SqliteRow) -> Result<Object, sqlx::Error> {
    Ok([
        row.try_get(1)?,
        row.try_get(2)?,
        row.try_get(3)?,
        row.try_get(4)?,
    ])
}

/// Returns whether an object is a table that a tool of SQLite created, or is empty because the
/// schema has no objects.
fn is_of_tool([r#type, name, ..]: &Object) -> bool {
    let is_named = |name: &Vec<u8>| TOOLS.iter().any(|tool| name.starts_with(tool));
    match (r#type, name) {
        (None, None) => true,
        (r#type, name) => {
            r#type.as_deref() == Some(b"table") && name.as_ref().is_some_and(is_named)
        }
    }
}

/// The objects of each schema that was already created for comparison, by its migrations.
type Made = Vec<(Vec<&'static str>, Arc<Vec<Object>>)>;

/// Returns the objects that migrations create. The result is cached for the life of the process.
async fn made_by(
    path: &Path,
    opening: DbOptions,
    steps: &[Migration],
) -> Result<Arc<Vec<Object>>, SqliteFault> {
    static MADE: Mutex<Made> = Mutex::new(Vec::new());
    if steps.is_empty() {
        return Ok(Arc::default());
    }
    let statements: Vec<&'static str> = steps.iter().map(|migration| migration.sql).collect();
    let known = |made: &Made| {
        made.iter()
            .find(|(of, _)| *of == statements)
            .map(|(_, objects)| objects.clone())
    };
    if let Some(objects) = known(&MADE.lock().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(objects);
    }
    let objects = Arc::new(
        FileSchema::read(&Db::in_memory(path, opening, steps).await?)
            .await?
            .objects,
    );
    MADE.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push((statements, objects.clone()));
    Ok(objects)
}
