//! The section `[store]`.

use std::path::PathBuf;

use crate::config::{
    ProjectPlace,
    setting::{ConfiguredUrl, Period, StoreKind, Synchronous},
};

section! {
    /// The store of the sessions.
    Store {
        /// `sqlite:DIR`, a folder of session files for one host, or `postgres://…` for any number
        /// of hosts. By default, each folder that planck is started in has its own place in the
        /// user's data directory.
        url: ConfiguredUrl = ConfiguredUrl::of_project();
        /// What SQLite's commits survive: the death of every process (`normal`), or also the loss
        /// of power (`full`).
        synchronous: Synchronous = Synchronous::Normal;
        /// The maximum number of connections to Postgres, or of open session files of SQLite.
        pool: Option<u32> = None;
        /// How long one statement of Postgres may take.
        statement_timeout: Period = Period::seconds(5);
        /// How long closed sessions are kept after the last write to them. Unset: forever.
        retention: Option<Period> = None;
    }
}

impl Store {
    /// Returns the kind of store that the address names, or `None` if its scheme is not that of a
    /// store.
    pub fn kind(&self) -> Option<StoreKind> {
        match self.url.scheme() {
            "sqlite" => Some(StoreKind::Sqlite),
            "postgres" | "postgresql" => Some(StoreKind::Postgres),
            _ => None,
        }
    }

    /// Returns the folder of session files. Returns `None` if the store does not consist of files,
    /// or if the default place is unknown because neither a data directory nor a home folder is
    /// known.
    pub fn folder(&self) -> Option<PathBuf> {
        if self.url.is_of_project() {
            return Some(self.project()?.folder());
        }
        let rest = self.url.reveal().strip_prefix("sqlite:")?;
        Some(rest.strip_prefix("//").unwrap_or(rest).into())
    }

    /// Returns the address of the store, without passwords.
    pub fn address(&self) -> String {
        self.folder().map_or_else(
            || self.url.to_string(),
            |folder| format!("sqlite:{}", folder.display()),
        )
    }

    /// Returns the default place. Returns `None` if a store is configured, or if the default place
    /// is unknown.
    pub fn project(&self) -> Option<&ProjectPlace> {
        self.url.project()
    }
}
