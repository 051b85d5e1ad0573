//! The place of one client in a feed.

use std::{sync::Arc, time::Duration};

use planck_client::Client;
use planck_common::{Seq, command::ReadEvents, reply::Code};
use serde::Deserialize;
use tokio::sync::watch;

use super::{Feed, FeedItem, Found, Standing};
use crate::problem::Problem;

/// The number of events in one page of the log.
const PAGE: u32 = 500;
/// The pause before the log is read again after a failure.
const PAUSE: Duration = Duration::from_secs(2);

/// Reads the events of a session from a place in its log on: first the log, as far as the feed no
/// longer has it, and then the feed.
pub struct Cursor {
    client: Client,
    feed: Arc<Feed>,
    changes: watch::Receiver<u64>,
    /// The place in the feed, or `None` until the cursor has joined it.
    place: Option<u64>,
    /// The number of the last durable event that was passed on.
    sent: Seq,
    is_caught_up: bool,
}

/// The part of an event that the cursor needs.
#[derive(Deserialize)]
struct Numbered {
    seq: Option<Seq>,
}

impl Cursor {
    /// Creates a cursor of the events after number `sent`. Fails if the session cannot be followed,
    /// or if its log is shorter.
    pub async fn after(sent: Seq, client: Client, feed: Arc<Feed>) -> Result<Self, Problem> {
        let mut changes = feed.changes.subscribe();
        loop {
            match &feed.state().standing {
                Standing::Starting => {}
                Standing::Following => break,
                Standing::Ended(problem) => return Err(problem.clone()),
            }
            let ended = |_| {
                Problem::from(planck_common::reply::Refusal::unavailable(
                    "the front stops",
                ))
            };
            changes.changed().await.map_err(ended)?;
        }
        let mut head = feed.state().head;
        if sent > head {
            // The feed may be behind the log, which another front has read further.
            head = client.session(&feed.session).await?.head;
        }
        if sent > head {
            return Err(Problem::bad_request(format!(
                "session `{}` has {head} events; the place {sent} is beyond them",
                feed.session
            )));
        }
        Ok(Self {
            client,
            feed,
            changes,
            place: None,
            sent,
            is_caught_up: false,
        })
    }

    /// Waits for the next items. The first error is final.
    pub async fn next(&mut self) -> Result<Vec<FeedItem>, Problem> {
        loop {
            self.changes.mark_unchanged();
            let found = self.feed.state().find(self.place, self.sent);
            match found {
                Found::Items(items, place) => {
                    self.place = Some(place);
                    let items = self.due(items);
                    if !items.is_empty() {
                        return Ok(items);
                    }
                }
                Found::Behind => return self.page().await,
                Found::Ended(problem) => return Err(problem),
                Found::Nothing => {
                    let stopped = self.changes.changed().await;
                    stopped.map_err(|_| Problem::not_found("the front stops"))?;
                }
            }
        }
    }

    /// Records the places of durable events, and leaves out what was passed on before: events that
    /// the log had before the feed, and every `CaughtUp` but the first.
    fn due(&mut self, items: Vec<FeedItem>) -> Vec<FeedItem> {
        let mut due = Vec::with_capacity(items.len());
        for item in items {
            match &item {
                FeedItem::Durable { seq, .. } if *seq <= self.sent => continue,
                FeedItem::Durable { seq, .. } => self.sent = *seq,
                // The log's own event with this number follows.
                FeedItem::Retracted { seq } => self.sent = self.sent.min(seq - 1),
                FeedItem::CaughtUp if self.is_caught_up => continue,
                FeedItem::CaughtUp => self.is_caught_up = true,
                FeedItem::Live { .. } | FeedItem::Retrying => {}
            }
            due.push(item);
        }
        due
    }

    /// Reads a page of the log.
    async fn page(&mut self) -> Result<Vec<FeedItem>, Problem> {
        let read = ReadEvents {
            from: Some(self.sent + 1),
            limit: Some(PAGE),
            agent: None,
        };
        let page = match self.client.events(&self.feed.session, &read).await {
            Ok(page) => page,
            Err(planck_client::ClientError::Refused(refusal))
                if matches!(refusal.code, Code::NotFound | Code::Denied) =>
            {
                return Err(refusal.into());
            }
            Err(error) => {
                tracing::debug!(%error, "a front reads a page of the log again");
                tokio::time::sleep(PAUSE).await;
                return Ok(vec![FeedItem::Retrying]);
            }
        };
        let item = |event: Box<serde_json::value::RawValue>| {
            let seq = serde_json::from_str::<Numbered>(event.get()).ok()?.seq?;
            Some(FeedItem::durable(
                seq,
                String::from(Box::<str>::from(event)),
            ))
        };
        let items = page.events.into_iter().filter_map(item).collect();
        let items = self.due(items);
        // Rows that this version cannot number are skipped.
        self.sent = self.sent.max(page.next - 1);
        Ok(items)
    }
}
