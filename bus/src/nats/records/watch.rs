//! A watch that is restarted whenever it breaks. The client library's own watch continues after
//! some of its errors and stays silent after others, so this module restarts the watch after any
//! error.

use std::time::Duration;

use async_nats::jetstream::{
    self,
    kv::{Entry, Operation, Watch},
};
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use tokio::time::{sleep, timeout};

use super::NatsRecords;
use crate::records::{DEADLINE, Hint, Record};

/// The pause after a failed attempt to start a watch.
const PAUSE: Duration = Duration::from_millis(500);

struct Watching {
    records: NatsRecords,
    pattern: String,
    watch: Option<Watch>,
}

pub(super) fn hints(records: NatsRecords, pattern: String) -> BoxStream<'static, Hint> {
    let watching = Watching {
        records,
        pattern,
        watch: None,
    };
    stream::unfold(watching, |mut watching| async move {
        Some((watching.next().await, watching))
    })
    .boxed()
}

impl Watching {
    async fn next(&mut self) -> Hint {
        loop {
            match &mut self.watch {
                Some(watch) => match watch.next().await {
                    Some(Ok(entry)) => return changed(entry),
                    Some(Err(error)) => self.broke(&error.to_string()),
                    None => self.broke("it ended"),
                },
                None => match timeout(DEADLINE, begin(&self.records, &self.pattern)).await {
                    Ok(Ok(watch)) => {
                        self.watch = Some(watch);
                        return Hint::Restarted;
                    }
                    Ok(Err(error)) => pause(&self.records.bucket, &error).await,
                    Err(_) => pause(&self.records.bucket, "no answer").await,
                },
            }
        }
    }

    fn broke(&mut self, why: &str) {
        tracing::debug!(
            bucket = self.records.bucket,
            why,
            "restarting a watch of the registry"
        );
        self.watch = None;
    }
}

async fn begin(records: &NatsRecords, pattern: &str) -> Result<Watch, String> {
    let client = records.link.client.clone();
    let jetstream = jetstream::context::ContextBuilder::new()
        .timeout(DEADLINE)
        .build(client);
    let bucket = jetstream
        .get_key_value(&records.bucket)
        .await
        .map_err(|error| error.to_string())?;
    bucket
        .watch_with_history(pattern)
        .await
        .map_err(|error| error.to_string())
}

async fn pause(bucket: &str, why: &str) {
    tracing::debug!(bucket, why, "cannot watch the registry");
    sleep(PAUSE).await;
}

fn changed(entry: Entry) -> Hint {
    let value = match entry.operation {
        Operation::Put => Some(entry.value),
        Operation::Delete | Operation::Purge => None,
    };
    Hint::Changed(Record {
        key: entry.key,
        revision: entry.revision,
        value,
    })
}
