//! The place of one client in a feed.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use planck_client::Client;
use planck_common::{
    Seq,
    command::ReadEvents,
    reply::{Code, Refusal},
};
use serde::Deserialize;
use tokio::sync::watch;

use super::{Feed, FeedEvent, FeedItem, FeedStanding, Found};
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
    passed: Passed,
    /// The log has at least this many events. The feed may know fewer.
    least: Seq,
    /// Whether the reader has all that it wants, so that the feed need not wait for it.
    is_done: bool,
    items: VecDeque<FeedItem>,
}

/// The place up to which items were passed on.
#[derive(Debug, Default)]
struct Passed {
    /// The number of the last durable event.
    sent: Seq,
    /// The number of the last durable event that was read from the log.
    logged: Seq,
    is_caught_up: bool,
}

/// The part of an event that the cursor needs.
#[derive(Deserialize)]
struct EventSeq {
    seq: Option<Seq>,
}

impl Cursor {
    /// Creates a cursor of the events after number `sent`. Fails if the session cannot be followed,
    /// or if its log is shorter.
    pub async fn after(sent: Seq, client: Client, feed: Arc<Feed>) -> Result<Self, Problem> {
        let cursor = Self::in_log(sent, 0, client, feed).await?;
        let mut head = cursor.feed.state().head;
        if sent > head {
            // The feed may be behind the log, which another front has read further.
            head = cursor.client.session(&cursor.feed.session).await?.head;
        }
        if sent > head {
            return Err(Problem::bad_request(format!(
                "session `{}` has {head} events; the place {sent} is beyond them",
                cursor.feed.session
            )));
        }
        Ok(cursor)
    }

    /// Creates a cursor of the events after number `sent` of a log with at least `least` events. All
    /// of these are returned before [`FeedItem::CaughtUp`], even if the feed does not have them yet.
    /// Fails if the session cannot be followed.
    pub async fn in_log(
        sent: Seq,
        least: Seq,
        client: Client,
        feed: Arc<Feed>,
    ) -> Result<Self, Problem> {
        let mut changes = feed.changes.subscribe();
        loop {
            match &feed.state().standing {
                FeedStanding::Starting => {}
                FeedStanding::Following => break,
                FeedStanding::Ended(problem) => return Err(problem.clone()),
            }
            let stopped = |_| Problem::from(Refusal::unavailable("the front stops"));
            changes.changed().await.map_err(stopped)?;
        }
        Ok(Self {
            client,
            feed,
            changes,
            place: None,
            passed: Passed {
                sent,
                ..Passed::default()
            },
            least,
            is_done: false,
            items: VecDeque::new(),
        })
    }

    /// Records that the reader has all that it wants and will not connect again.
    pub fn done(&mut self) {
        self.is_done = true;
    }

    /// Waits for the next item. The first error is final. The method is cancel safe: dropping the
    /// future loses nothing.
    pub async fn next(&mut self) -> Result<FeedItem, Problem> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Ok(item);
            }
            self.items = self.next_items().await?.into();
        }
    }

    /// Waits for the next items, and returns all that there are. The first error is final. The
    /// method is cancel safe.
    pub async fn next_items(&mut self) -> Result<Vec<FeedItem>, Problem> {
        loop {
            self.changes.mark_unchanged();
            let found = self
                .feed
                .state()
                .find(self.place, self.passed.sent, self.least);
            match found {
                Found::Items(mut items, place) => {
                    self.place = Some(place);
                    items.retain(|item| self.passed.take(item));
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

    /// Reads a page of the log.
    async fn page(&mut self) -> Result<Vec<FeedItem>, Problem> {
        let read = ReadEvents {
            from: Some(self.passed.sent + 1),
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
            let seq = serde_json::from_str::<EventSeq>(event.get()).ok()?.seq?;
            let event = FeedEvent::new(Some(seq), event.into());
            Some(FeedItem::Event(Arc::new(event)))
        };
        let mut items: Vec<_> = page.events.into_iter().filter_map(item).collect();
        items.retain(|item| self.passed.take(item));
        // Rows that this version cannot number are skipped.
        self.passed.sent = self.passed.sent.max(page.next - 1);
        self.passed.logged = self.passed.sent;
        if page.next > page.head {
            self.least = 0;
        }
        Ok(items)
    }
}

impl Passed {
    /// Records an item as passed on. Returns `false` if it was before: an event that the log had
    /// before the feed, and every `CaughtUp` but the first.
    fn take(&mut self, item: &FeedItem) -> bool {
        match item {
            FeedItem::Event(event) => match event.seq {
                Some(seq) if seq <= self.sent => return false,
                Some(seq) => self.sent = seq,
                None => {}
            },
            // The log's own event with this number was passed on.
            FeedItem::Retracted(retracted) if retracted.seq <= self.logged => return false,
            // The log's own event with this number follows.
            FeedItem::Retracted(retracted) => self.sent = self.sent.min(retracted.seq - 1),
            FeedItem::CaughtUp => return !std::mem::replace(&mut self.is_caught_up, true),
            FeedItem::Retrying => {}
        }
        true
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        if !self.is_done {
            self.feed.linger();
        }
    }
}

#[cfg(test)]
mod tests {
    use planck_client::Retracted;
    use planck_common::AgentId;

    use super::*;

    fn event(seq: Option<Seq>) -> FeedItem {
        FeedItem::Event(Arc::new(FeedEvent::new(seq, "{}".into())))
    }

    fn retracted(seq: Seq) -> FeedItem {
        FeedItem::Retracted(Retracted {
            seq,
            kind: "message".into(),
            agent_id: AgentId::parse("a").unwrap(),
        })
    }

    #[test]
    fn durable_events_are_passed_on_once_and_in_order() {
        let mut passed = Passed {
            sent: 5,
            logged: 5,
            is_caught_up: false,
        };
        for (item, is_due, sent) in [
            (event(Some(5)), false, 5),
            (event(None), true, 5),
            (event(Some(6)), true, 6),
            (FeedItem::CaughtUp, true, 6),
            (FeedItem::CaughtUp, false, 6),
            (FeedItem::Retrying, true, 6),
            (event(Some(7)), true, 7),
            // This event was read from the log, so the client has the right one.
            (retracted(5), false, 7),
            (retracted(6), true, 5),
            (event(Some(6)), true, 6),
        ] {
            assert_eq!(passed.take(&item), is_due, "{item:?}");
            assert_eq!(passed.sent, sent, "{item:?}");
        }
    }
}
