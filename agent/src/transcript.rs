//! The model's view: the latest summary and what came after it, each message kept once and measured
//! once.

use std::{borrow::Cow, sync::Arc};

use planck_common::{Seq, message::Body};

use crate::compact::{Line, shorten};

/// A line as it is packed: its id, its tokens, the message.
type Packed<'a> = (Seq, u64, Cow<'a, Body>);

#[derive(Debug, Default)]
pub(super) struct Transcript {
    lines: Vec<Line>,
    /// The lines while the agent rests; then there are none above.
    packed: Option<Box<[u8]>>,
    /// How many lines have their id; the others are being saved.
    settled: usize,
    /// The id of the latest message, in view or not.
    last: Seq,
    version: u64,
    meter: Meter,
    /// Messages added since the agent was made or restored.
    said: u64,
}

/// A running estimate of the context's size in tokens.
#[derive(Debug, Default)]
struct Meter {
    /// System prompt and tools.
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

    /// Changes whenever the view changed other than by a message at its end.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn last_id(&self) -> Seq {
        self.last
    }

    pub(super) fn said(&self) -> u64 {
        self.said
    }

    /// Keeps the lines as one run of bytes, less than half of what they take otherwise, until
    /// [`Self::unpack`]. After an error they are as they were.
    pub(super) fn pack(&mut self) -> Result<(), serde_json::Error> {
        if self.packed.is_some() {
            return Ok(());
        }
        let lines: Vec<Packed<'_>> = self
            .lines
            .iter()
            .map(|line| (line.id, line.tokens, Cow::Borrowed(&*line.body)))
            .collect();
        self.packed = Some(serde_json::to_vec(&lines)?.into());
        self.lines = Vec::new();
        Ok(())
    }

    pub(super) fn unpack(&mut self) -> Result<(), serde_json::Error> {
        let Some(bytes) = self.packed.take() else {
            return Ok(());
        };
        let lines: Vec<Packed<'_>> = serde_json::from_slice(&bytes)?;
        self.lines = lines
            .into_iter()
            .map(|(id, tokens, body)| Line {
                id,
                tokens,
                body: Arc::new(body.into_owned()),
            })
            .collect();
        Ok(())
    }

    /// Adds a message that is being saved; [`Self::settle`] gives it its id.
    pub(super) fn push(&mut self, body: Arc<Body>) {
        let line = Line::new(0, body);
        self.meter.total += line.tokens;
        self.said += 1;
        self.lines.push(line);
    }

    /// The oldest messages without ids get theirs.
    pub(super) fn settle(&mut self, ids: &[Seq]) {
        for (line, id) in self.lines.iter_mut().skip(self.settled).zip(ids) {
            line.id = *id;
            self.last = *id;
            self.settled += 1;
        }
    }

    /// Adds a message of the log.
    pub(super) fn replay(&mut self, id: Seq, body: Arc<Body>) {
        self.push(body);
        self.settle(&[id]);
    }

    /// Puts a saved summary before what it does not cover.
    pub(super) fn summarise(&mut self, id: Seq, summary: Arc<Body>) {
        self.drop_through(summary.metadata.covers.unwrap_or(self.last));
        if let Some(length) = summary.metadata.cut_results {
            self.shorten_results(length);
        }
        self.lines.insert(0, Line::new(id, summary));
        self.last = self.last.max(id);
        self.start_over();
    }

    /// Begins with an empty view after the message `covers`, unless the summary that stands for it
    /// is there.
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

    /// Drops the summary and what stands up to and with that message. Ids rise, but for the
    /// summary's at the front.
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
        self.settled = self.lines.iter().filter(|line| line.id > 0).count();
        self.meter.total =
            self.meter.fixed + self.lines.iter().map(|line| line.tokens).sum::<u64>();
        self.version += 1;
    }

    /// The provider's own count of what the view holds now.
    pub(super) fn correct(&mut self, tokens: u64) {
        self.meter.total = tokens;
    }

    /// System prompt and tools have another size now, and every request begins with them.
    pub(super) fn change_fixed(&mut self, fixed: u64) {
        self.meter.total = (self.meter.total + fixed).saturating_sub(self.meter.fixed);
        self.meter.fixed = fixed;
        self.version += 1;
    }
}
