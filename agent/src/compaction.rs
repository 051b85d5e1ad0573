//! Compaction within the loop: when it is due, what the compactor gets, and how its answer changes
//! the context.

use std::sync::Arc;

use planck_common::{
    Seq,
    command::AgentState,
    event::{Checkpoint, Compacted, Compacting, Event, Warning},
    message::{Custom, MessageBody, MessageMetadata, MessageRole, Part},
    usage::Usage,
};

use super::{
    Agent, Effect, StepEffects, Ticket,
    input::CompactionResult,
    phase::{Phase, Turn, TurnActivity, TurnEnding},
    saves::{OnCommit, Rows},
};
use crate::{
    compact::{Cut, Line, Material, Replacement},
    storable,
};

impl Agent {
    /// Returns the input for a compactor, or `None` if there is nothing to summarise or to shorten.
    pub fn compaction(&self) -> Option<Material> {
        let (rules, context_window) = (&self.settings.compaction, self.config.card.context_window);
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

    /// Returns whether the context reaches the threshold of compaction once `more` tokens are
    /// added. After a compaction without effect, returns false until a message is added.
    pub(super) fn is_compaction_due(&self, more: u64) -> bool {
        let threshold = self
            .settings
            .compaction
            .threshold(self.config.card.context_window);
        self.transcript.tokens() + more >= threshold && (more > 0 || !self.is_futile())
    }

    pub(super) fn compaction_if(&self, wanted: bool) -> Option<Material> {
        wanted.then(|| self.compaction()).flatten()
    }

    pub(super) fn is_futile(&self) -> bool {
        self.deferred.futile == Some(self.transcript.added())
    }

    /// Publishes `compacting`, and requests a summary of the older part of the context. If that part
    /// has no message besides an earlier summary, only shortens long results.
    pub(super) fn compact(&mut self, turn: Box<Turn>, material: &Material, step: &mut StepEffects) {
        let tokens_before = material.tokens;
        step.publish(
            self.place(step.now),
            Event::Compacting(Compacting { tokens_before }),
        );
        if material.has_older() {
            let ticket = self.counters.ticket();
            self.phase = Phase::Working(turn, TurnActivity::Compacting { ticket });
            return step.act(Effect::Compact { ticket });
        }
        let rows = Rows::at(self.place(step.now));
        match material.without_summary() {
            Ok(replacement) => self.replace(turn, material, replacement, "local", rows, step),
            Err(fault) => self.futile(turn, Some(fault.to_string()), rows, step),
        }
    }

    pub(super) fn compacted(
        &mut self,
        ticket: Ticket,
        result: CompactionResult,
        step: &mut StepEffects,
    ) {
        let Some((mut turn, _)) = self
            .phase
            .take_if(|activity| activity.is_compacting(ticket))
        else {
            return;
        };
        let mut rows = Rows::at(self.place(step.now));
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
                let text = storable::text(text);
                let answer = material.check(&text, keep_from);
                let tokens = answer
                    .as_ref()
                    .map_or(material.tokens, |replacement| replacement.tokens);
                self.account_compaction(&mut turn, usage, &mut rows, tokens);
                match answer {
                    Ok(replacement) => self.replace(turn, &material, replacement, &by, rows, step),
                    Err(fault) => self.futile(turn, Some(fault.to_string()), rows, step),
                }
            }
            (CompactionResult::Failed(reason), _) => self.futile(turn, Some(reason), rows, step),
            (CompactionResult::Skipped, _) | (CompactionResult::Summary { .. }, None) => {
                self.futile(turn, None, rows, step)
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
        step: &mut StepEffects,
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
        self.phase = Phase::Working(turn, TurnActivity::Saving);
        self.save_then(
            rows,
            AgentState::Streaming,
            OnCommit::Summarise {
                tokens: Some(tokens),
            },
            step,
        );
    }

    /// Handles a compaction without effect. The history is unchanged, and the agent does not
    /// compact it again until a message is added. If the provider has refused the context as full,
    /// the turn ends, otherwise it continues with a warning.
    fn futile(
        &mut self,
        turn: Box<Turn>,
        reason: Option<String>,
        mut rows: Rows,
        step: &mut StepEffects,
    ) {
        self.deferred.futile = Some(self.transcript.added());
        let message = reason.unwrap_or_else(|| "the compactor left the context as it is".into());
        if turn.overflowed {
            let reason = format!("the context is full: {message}");
            return self.end_turn(
                &turn,
                rows,
                TurnEnding::Failed {
                    reason,
                    for_agents: "the context is full".into(),
                    code: "context_full",
                    retryable: false,
                },
                step,
            );
        }
        rows.event(&Event::Warning(Warning::new("not_compacted", message)));
        self.go_on(turn, rows, step);
    }

    /// Starts the context again from a summary. The agent must have no open turn.
    pub(super) fn checkpoint(&mut self, text: &str, step: &mut StepEffects) {
        let covers = self.transcript.last_id();
        let mut rows = Rows::at(self.place(step.now));
        rows.message(summary(vec![Part::text(text)], covers, None));
        rows.event(&Event::Checkpoint(Checkpoint { covers }));
        self.save_then(
            rows,
            AgentState::Idle,
            OnCommit::Summarise { tokens: None },
            step,
        );
    }

    pub(super) fn summarised(
        &mut self,
        message: Option<(Arc<MessageBody>, Seq)>,
        tokens: Option<u64>,
        step: &mut StepEffects,
    ) {
        if let Some((body, id)) = message {
            self.transcript.summarise(id, body);
        }
        if let Some(tokens) = tokens {
            self.transcript.correct(tokens);
        }
        self.list_tools();
        match self.phase.take_if(TurnActivity::is_saving) {
            Some((turn, _)) => self.go_on(turn, Rows::at(self.place(step.now)), step),
            None => self.settle_down(step),
        }
    }
}

fn summary(content: Vec<Part>, covers: Seq, cut_results: Option<usize>) -> MessageBody {
    let metadata = MessageMetadata {
        covers: Some(covers),
        cut_results,
        ..MessageMetadata::default()
    };
    MessageBody {
        role: MessageRole::Custom,
        custom: Some(Custom::Summary),
        content,
        metadata,
    }
}

impl Material {
    /// Returns the id of the last message that a summary at this cut covers: the last one before
    /// the cut, or else the last one that an earlier summary covers, or else the id before the
    /// first message of the context.
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

    /// Returns the length in characters to which results are shortened, or `None` if they are not.
    /// Results that an earlier summary shortened stay shortened.
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
