//! Compaction within the loop: when it is due, what the compactor gets, and how its answer changes
//! the view.

use std::sync::Arc;

use planck_common::{
    Seq,
    command::AgentState,
    event::{Checkpoint, Compacted, Compacting, Event, Warning},
    message::{Body, Custom, Metadata, Part, Role},
    usage::Usage,
};

use super::{
    Agent, Effect, Moment, Ticket,
    input::CompactionResult,
    phase::{Activity, Phase, Turn},
    saves::{Rows, Then},
    turn::Ending,
};
use crate::{
    compact::{Cut, Line, Material, Replacement},
    nul,
};

impl Agent {
    /// Returns the input for a compactor, or `None` if compaction would gain nothing.
    pub fn compaction(&self) -> Option<Material> {
        let (rules, context_window) = (&self.settings.compaction, self.charter.card.context_window);
        let lines = self.transcript.lines();
        let (fixed, tokens) = (self.transcript.fixed(), self.transcript.tokens());
        let cut = Cut::find(lines, rules, rules.threshold(context_window).min(tokens))?;
        Some(Material {
            lines: lines.to_vec(),
            fixed,
            tokens,
            context_window,
            cut,
        })
    }

    /// Whether the context is full once `more` tokens are added. Returns false after a compaction
    /// without effect until a message is added.
    pub(super) fn is_compaction_due(&self, more: u64) -> bool {
        let threshold = self
            .settings
            .compaction
            .threshold(self.charter.card.context_window);
        self.transcript.tokens() + more >= threshold && (more > 0 || !self.is_futile())
    }

    pub(super) fn compaction_if(&self, wanted: bool) -> Option<Material> {
        wanted.then(|| self.compaction()).flatten()
    }

    pub(super) fn is_futile(&self) -> bool {
        self.plans.futile == Some(self.transcript.said())
    }

    /// Asks for a summary of the older part. If there is no older part, only shortens long results.
    pub(super) fn compact(&mut self, turn: Box<Turn>, material: &Material, moment: &mut Moment) {
        let tokens_before = material.tokens;
        moment.tell(
            self.place(moment.now),
            Event::Compacting(Compacting { tokens_before }),
        );
        if material.has_older() {
            let ticket = self.counters.ticket();
            self.phase = Phase::Working(turn, Activity::Compacting { ticket });
            return moment.act(Effect::Compact { ticket });
        }
        let rows = Rows::at(self.place(moment.now));
        match material.without_summary() {
            Ok(replacement) => self.replace(turn, material, replacement, "local", rows, moment),
            Err(fault) => self.futile(turn, Some(fault.to_string()), rows, moment),
        }
    }

    pub(super) fn compacted(
        &mut self,
        ticket: Ticket,
        result: CompactionResult,
        moment: &mut Moment,
    ) {
        let Some((mut turn, _)) = self
            .phase
            .take_if(|activity| activity.is_compacting(ticket))
        else {
            return;
        };
        let mut rows = Rows::at(self.place(moment.now));
        let material = self.compaction();
        match (result, material) {
            (
                CompactionResult::Summary {
                    text,
                    keep_from,
                    by,
                    usage,
                },
                Some(material),
            ) => {
                let text = nul::replaced(text);
                let answer = material.check(&text, keep_from);
                let tokens = answer
                    .as_ref()
                    .map_or(material.tokens, |replacement| replacement.tokens);
                self.account_compaction(&mut turn, usage, &mut rows, tokens);
                match answer {
                    Ok(replacement) => {
                        self.replace(turn, &material, replacement, &by, rows, moment)
                    }
                    Err(fault) => self.futile(turn, Some(fault.to_string()), rows, moment),
                }
            }
            (CompactionResult::Failed(reason), _) => self.futile(turn, Some(reason), rows, moment),
            (CompactionResult::Skipped, _) | (CompactionResult::Summary { .. }, None) => {
                self.futile(turn, None, rows, moment)
            }
        }
    }

    fn account_compaction(
        &mut self,
        turn: &mut Turn,
        usage: Usage,
        rows: &mut Rows,
        context_tokens: u64,
    ) {
        let usage = self.priced(usage);
        if usage != Usage::default() {
            self.account(turn, usage, rows, context_tokens);
        }
    }

    fn replace(
        &mut self,
        turn: Box<Turn>,
        material: &Material,
        replacement: Replacement,
        by: &str,
        mut rows: Rows,
        moment: &mut Moment,
    ) {
        let Replacement {
            cut,
            content,
            tokens,
        } = replacement;
        let covers = material.covers(cut);
        rows.message(summary(content, covers, material.cut_results(cut)));
        rows.event(&Event::Checkpoint(Checkpoint { covers }));
        let kept = material.lines.len().saturating_sub(cut.at);
        let (tokens_before, tokens_after) = (material.tokens, tokens);
        rows.event(&Event::Compacted(Compacted {
            tokens_before,
            tokens_after,
            by: by.into(),
            kept,
        }));
        self.phase = Phase::Working(turn, Activity::Saving);
        self.save_then(
            rows,
            AgentState::Streaming,
            Then::Summarise {
                tokens: Some(tokens),
            },
            moment,
        );
    }

    /// Handles a compaction without effect: the history is unchanged, and no other attempt is made
    /// until messages are added.
    fn futile(
        &mut self,
        turn: Box<Turn>,
        reason: Option<String>,
        mut rows: Rows,
        moment: &mut Moment,
    ) {
        self.plans.futile = Some(self.transcript.said());
        let message = reason.unwrap_or_else(|| "the compactor left the context as it is".into());
        if turn.overflowed {
            let reason = format!("the context is full: {message}");
            return self.end_turn(
                &turn,
                rows,
                Ending::Failed {
                    reason,
                    for_agents: "the context is full".into(),
                    code: "context_full",
                    retryable: false,
                },
                moment,
            );
        }
        rows.event(&Event::Warning(Warning {
            code: "not_compacted".into(),
            message,
        }));
        self.go_on(turn, rows, moment);
    }

    /// Starts the context again from a summary. The agent must have no open turn.
    pub(super) fn checkpoint(&mut self, text: &str, moment: &mut Moment) {
        let covers = self.transcript.last_id();
        let mut rows = Rows::at(self.place(moment.now));
        rows.message(summary(vec![Part::text(text)], covers, None));
        rows.event(&Event::Checkpoint(Checkpoint { covers }));
        self.save_then(
            rows,
            AgentState::Idle,
            Then::Summarise { tokens: None },
            moment,
        );
    }

    pub(super) fn summarised(
        &mut self,
        message: Option<(Arc<Body>, Seq)>,
        tokens: Option<u64>,
        moment: &mut Moment,
    ) {
        if let Some((body, id)) = message {
            self.transcript.summarise(id, body);
        }
        if let Some(tokens) = tokens {
            self.transcript.correct(tokens);
        }
        match self.phase.take_if(Activity::is_saving) {
            Some((turn, _)) => self.go_on(turn, Rows::at(self.place(moment.now)), moment),
            None => self.settle_down(moment),
        }
    }
}

fn summary(content: Vec<Part>, covers: Seq, cut_results: Option<usize>) -> Body {
    let metadata = Metadata {
        covers: Some(covers),
        cut_results,
        ..Metadata::default()
    };
    Body {
        role: Role::Custom,
        custom: Some(Custom::Summary),
        content,
        metadata,
    }
}

impl Material {
    /// The id of the last message that a summary at this cut replaces.
    fn covers(&self, cut: Cut) -> Seq {
        let older = self.lines.get(..cut.at).unwrap_or_default();
        let said = older
            .iter()
            .rev()
            .find(|line| !line.is_summary())
            .map(|line| line.id);
        let before = || older.iter().find_map(|line| line.body.metadata.covers);
        said.or_else(before)
            .unwrap_or_else(|| self.lines.first().map_or(0, |line| line.id - 1))
    }

    /// The length to which results are shortened; `None` if they are not. Results that an earlier
    /// summary shortened stay shortened.
    fn cut_results(&self, cut: Cut) -> Option<usize> {
        cut.results.or_else(|| {
            self.lines
                .first()
                .filter(|line: &&Line| line.is_summary())?
                .body
                .metadata
                .cut_results
        })
    }
}
