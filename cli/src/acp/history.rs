//! Translates what was said in a session before the client loads it, without I/O.

use planck_client::turn::StepReader;
use planck_common::{
    AgentId, Seq,
    envelope::Envelope,
    event::Event,
    message::{MessageRole, text_of},
};

use super::{
    updates::{Translator, said},
    wire::Update,
};

/// Reads the log of a session from before it was loaded.
pub struct History {
    lead: AgentId,
    steps: StepReader,
    translator: Translator,
    latest: Option<LatestTurn>,
}

/// The latest turn of the lead. While agents work, it is followed from its beginning, also if the lead
/// rests until another agent has a result.
struct LatestTurn {
    number: u32,
    /// The number of its first event.
    from: Seq,
    updates: Vec<Update>,
}

impl History {
    pub fn new(lead: AgentId, translator: Translator) -> Self {
        Self {
            lead,
            steps: StepReader::default(),
            translator,
            latest: None,
        }
    }

    /// Takes an event of the log, and returns the updates of what is before the latest turn.
    pub fn take(&mut self, json: &str) -> Vec<Update> {
        // An event that this version cannot read says nothing that this version could show.
        let Ok(envelope) = serde_json::from_str::<Envelope>(json) else {
            return Vec::new();
        };
        if envelope.hidden_by.is_some() || envelope.agent_id != self.lead {
            return Vec::new();
        }
        let Some(Ok(event)) = envelope.event() else {
            return Vec::new();
        };
        let mut updates = self.updates(&envelope, &event);
        if let (Event::TurnStart(start), Some(from)) = (&event, envelope.seq) {
            let over = self.latest.replace(LatestTurn {
                number: start.index,
                from,
                updates: std::mem::take(&mut updates),
            });
            return over.map_or_else(Vec::new, |over| over.updates);
        }
        match &mut self.latest {
            Some(latest) => latest.updates.append(&mut updates),
            None => return updates,
        }
        Vec::new()
    }

    fn updates(&mut self, envelope: &Envelope, event: &Event) -> Vec<Update> {
        if let Event::Message(saved) = event
            && let (MessageRole::User, None) = (saved.message.role, &saved.message.metadata.from)
            && let Some(input) = saved.message.metadata.inputs.first()
        {
            self.translator.user_said();
            return vec![said(input.as_str(), &text_of(&saved.message.content))];
        }
        let events = self.steps.take(envelope, event);
        let updates = events.iter().flat_map(|event| self.translator.take(event));
        updates.collect()
    }

    /// Ends the history. Returns the last updates. If agents work, also returns the number of the latest
    /// turn and that of its first event, and of this turn only the messages of the user, because the
    /// rest is followed.
    pub fn end(self, is_working: bool) -> (Vec<Update>, Option<(u32, Seq)>) {
        let Some(mut latest) = self.latest else {
            return (Vec::new(), None);
        };
        if !is_working {
            return (latest.updates, None);
        }
        latest
            .updates
            .retain(|update| matches!(update, Update::UserMessageChunk(_)));
        (latest.updates, Some((latest.number, latest.from)))
    }
}
