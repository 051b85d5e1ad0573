//! `[store]`

use std::path::PathBuf;

use crate::config::{
    ProjectPlace,
    setting::{Address, Period, StoreKind, Synchronous},
};

section! {
    /// Where sessions are kept.
    Store {
        /// `sqlite:DIR`, a folder of session files for one host, or `postgres://…` for any number
        /// of hosts. By default each folder that planck is started in has a place of its own in the
        /// user's data directory.
        url: Address = Address::of_project();
        /// What SQLite's commits survive: the death of every process (`normal`), the loss of power
        /// too (`full`).
        synchronous: Synchronous = Synchronous::Normal;
        /// Connections to Postgres, or open session files of SQLite.
        pool: Option<u32> = None;
        /// How long one statement of Postgres may take.
        statement_timeout: Period = Period::seconds(5);
        /// Closed sessions not written to for so long are removed; kept for ever unless said.
        retention: Option<Period> = None;
    }
}

impl Store {
    /// What its address names; `None` for an address of neither kind.
    pub fn kind(&self) -> Option<StoreKind> {
        match self.url.scheme() {
            "sqlite" => Some(StoreKind::Sqlite),
            "postgres" | "postgresql" => Some(StoreKind::Postgres),
            _ => None,
        }
    }

    /// The folder of session files; `None` for another kind of store, and where the default place
    /// is unknown because the user has no home folder.
    pub fn folder(&self) -> Option<PathBuf> {
        if self.url.is_of_project() {
            return Some(self.project()?.folder());
        }
        let rest = self.url.reveal().strip_prefix("sqlite:")?;
        Some(rest.strip_prefix("//").unwrap_or(rest).into())
    }

    /// Where the store is, without passwords.
    pub fn address(&self) -> String {
        self.folder().map_or_else(
            || self.url.to_string(),
            |folder| format!("sqlite:{}", folder.display()),
        )
    }

    /// The default place, where nobody named a store.
    pub fn project(&self) -> Option<&ProjectPlace> {
        self.url.project()
    }
}
