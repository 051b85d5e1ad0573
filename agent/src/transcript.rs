//! The model's context: the latest summary and the messages after it. Each message is stored once and
//! measured once.

use std::sync::Arc;

use planck_common::{
    Seq,
    message::{MessageBody, MessageRole},
};

use crate::{
    compact::{Line, shorten},
    search::NamedTools,
};

#[derive(Debug, Default)]
pub(super) struct Transcript {
    lines: Vec<Line>,
    /// The number of lines that have their id. The other lines are being saved.
    settled: usize,
    /// The id of the latest message, in context or not.
    last: Seq,
    version: u64,
    meter: Meter,
    named: NamedTools,
    /// Whether tools were named since the latest results.
    has_named_more: bool,
    /// The number of messages added since the agent was created or restored.
    added: u64,
}

/// A running estimate of the context's size in tokens.
#[derive(Debug, Default)]
struct Meter {
    /// Tokens of the system prompt and the listed tools.
    fixed: u64,
    total: u64,
}

impl Transcript {
    pub(super) fn new(fixed: u64) -> Self {
        Self {
            meter: Meter {
                fixed,
                total: fixed,
            },
            ..Self::default()
        }
    }

    pub(super) fn lines(&self) -> &[Line] {
        &self.lines
    }

    pub(super) fn fixed(&self) -> u64 {
        self.meter.fixed
    }

    pub(super) fn tokens(&self) -> u64 {
        self.meter.total
    }

    /// Returns a number that changes with every change to the context, except when a message is
    /// appended.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn last_id(&self) -> Seq {
        self.last
    }

    pub(super) fn added(&self) -> u64 {
        self.added
    }

    /// Returns the tools that the messages name.
    pub(super) fn named(&self) -> &NamedTools {
        &self.named
    }

    /// Adds a message that is being saved. [`Self::settle`] sets its id. Returns whether the message
    /// ends a round that named further tools.
    pub(super) fn push(&mut self, body: Arc<MessageBody>) -> bool {
        let before = self.lines.last().map(|line| &*line.body);
        self.has_named_more |= self.named.read(&body, before);
        let ends_round = body.role == MessageRole::ToolResult;
        let line = Line::new(0, body);
        self.meter.total += line.tokens;
        self.added += 1;
        self.lines.push(line);
        ends_round && std::mem::take(&mut self.has_named_more)
    }

    /// Sets the ids of the oldest messages that have no id yet.
    pub(super) fn settle(&mut self, ids: &[Seq]) {
        for (line, id) in self.lines.iter_mut().skip(self.settled).zip(ids) {
            line.id = *id;
            self.last = *id;
            self.settled += 1;
        }
    }

    /// Adds a message that is row `id` of the log. Returns the same as [`Self::push`].
    pub(super) fn replay(&mut self, id: Seq, body: Arc<MessageBody>) -> bool {
        let has_named_more = self.push(body);
        self.settle(&[id]);
        has_named_more
    }

    /// Replaces the messages that a saved summary covers, and an earlier summary, by the saved one.
    /// Shortens the results in the other messages if the summary says so.
    pub(super) fn summarise(&mut self, id: Seq, summary: Arc<MessageBody>) {
        self.drop_through(summary.metadata.covers.unwrap_or(self.last));
        if let Some(length) = summary.metadata.cut_results {
            self.shorten_results(length);
        }
        self.lines.insert(0, Line::new(id, summary));
        self.last = self.last.max(id);
        self.start_over();
    }

    /// Clears the context up to and including the message `covers`, unless the context begins with a
    /// summary that covers exactly these messages.
    pub(super) fn forget(&mut self, covers: Seq) {
        if self
            .lines
            .first()
            .is_some_and(|line| line.is_summary() && line.body.metadata.covers == Some(covers))
        {
            return;
        }
        self.drop_through(covers);
        self.last = self.last.max(covers);
        self.start_over();
    }

    /// Drops the summary and the messages up to and including `covers`. The ids of the lines rise,
    /// except that the summary at the front has a higher id than the lines after it.
    fn drop_through(&mut self, covers: Seq) {
        let summaries = usize::from(self.lines.first().is_some_and(Line::is_summary));
        let covered = self
            .lines
            .iter()
            .skip(summaries)
            .take_while(|line| line.id > 0 && line.id <= covers)
            .count();
        self.lines.drain(..summaries + covered);
    }

    fn shorten_results(&mut self, length: usize) {
        for line in &mut self.lines {
            if let Some(shorter) = shorten(&line.body, length) {
                *line = Line::new(line.id, Arc::new(shorter));
            }
        }
    }

    fn start_over(&mut self) {
        self.named = NamedTools::of(self.lines.iter().map(|line| &*line.body));
        self.settled = self.lines.iter().filter(|line| line.id > 0).count();
        self.meter.total =
            self.meter.fixed + self.lines.iter().map(|line| line.tokens).sum::<u64>();
        self.version += 1;
    }

    /// Replaces the estimate by the provider's own count, or by the estimate of a compaction.
    pub(super) fn correct(&mut self, tokens: u64) {
        self.meter.total = tokens;
    }

    /// Sets the size of the system prompt and the listed tools, with which every request begins.
    pub(super) fn change_fixed(&mut self, fixed: u64) {
        self.meter.total = (self.meter.total + fixed).saturating_sub(self.meter.fixed);
        self.meter.fixed = fixed;
        self.version += 1;
    }
}
