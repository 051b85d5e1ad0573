//! The schema that the migrations of this version create: the content of a new file, and the check
//! of an existing one. A file with a damaged or foreign schema is refused before any of its tables
//! is read, because its views and triggers would run with the store's statements, and because sqlx
//! panics on a declared type that is not UTF-8.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use planck_migrations::Migration;
use sqlx::{Row as _, query, sqlite::SqliteRow};

use super::{
    db::{Db, DbOptions, SqliteStatement},
    fault::{self, SqliteFault},
};

/// The query for the version and the objects. It is one statement, so that another process's
/// migration is seen completely or not at all. Its columns have no declared type, and text is read
/// as bytes, so sqlx cannot panic. A valid schema has fewer objects than the limit.
const READ: &str =
    "SELECT v.user_version, CAST(o.type AS BLOB), CAST(o.name AS BLOB), CAST(o.tbl_name AS BLOB), CAST(o.sql AS BLOB)
    FROM pragma_user_version v LEFT JOIN sqlite_schema o ON true LIMIT 200";

/// The prefixes of the tables that SQLite's `.recover` and `ANALYZE` create. The store does not
/// read these tables.
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
        if Migrated::by(path, opening, &steps).await?.objects == self.objects {
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

/// The result of running migrations on an empty database in memory. It is kept for the life of the
/// process.
#[derive(Debug)]
pub struct Migrated {
    objects: Vec<Object>,
    /// The database in memory, which has no rows between two calls.
    db: Db,
}

/// The results that were already computed, each with the statements of its migrations.
type KnownSchemas = Vec<(Vec<&'static str>, Arc<Migrated>)>;

impl Migrated {
    /// Returns the result of the migrations `steps`. Errors name the file at `path`, for which the
    /// result is needed.
    pub async fn by(
        path: &Path,
        opening: DbOptions,
        steps: &[Migration],
    ) -> Result<Arc<Self>, SqliteFault> {
        static KNOWN: Mutex<KnownSchemas> = Mutex::new(Vec::new());
        let lock = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let statements: Vec<&'static str> = steps.iter().map(|migration| migration.sql).collect();
        let known = lock()
            .iter()
            .find(|(by, _)| *by == statements)
            .map(|(_, migrated)| Arc::clone(migrated));
        if let Some(known) = known {
            return Ok(known);
        }
        let db = Db::in_memory(path, opening, steps).await?;
        let objects = FileSchema::read(&db).await?.objects;
        let migrated = Arc::new(Self { objects, db });
        lock().push((statements, Arc::clone(&migrated)));
        Ok(migrated)
    }

    /// Returns the content of a file with this schema, in WAL mode, to which these statements were
    /// applied.
    pub async fn image_with(&self, rows: Vec<SqliteStatement<'_>>) -> Result<Vec<u8>, SqliteFault> {
        let mut image = self.db.image_with(rows).await?;
        // These two bytes of the file header are the write and the read version. The value 2 stands
        // for WAL.
        if let Some(versions) = image.get_mut(18..20) {
            versions.fill(2);
        }
        Ok(image)
    }
}
