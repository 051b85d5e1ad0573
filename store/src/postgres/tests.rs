//! Runs the conformance suite against Postgres.

use std::sync::Arc;

use async_trait::async_trait;
use planck_common::NodeId;

use super::{PostgresOptions, PostgresStore, SessionStore};
use crate::conformance::{World, suite};

mod faults;
mod stress;

struct Private(planck_tests::postgres::Database);

impl Private {
    async fn create() -> Self {
        Self(planck_tests::postgres::Database::create().await.unwrap())
    }

    async fn store(&self) -> PostgresStore {
        PostgresStore::connect(PostgresOptions {
            connections: 4,
            ..PostgresOptions::new(self.0.url())
        })
        .await
        .unwrap()
    }
}

#[async_trait]
impl World for Private {
    async fn open(&self, _node: &NodeId) -> Arc<dyn SessionStore> {
        Arc::new(self.store().await)
    }
}

suite!(Private::create().await);
