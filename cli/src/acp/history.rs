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

/// What was said in a session before it was loaded.
pub struct History {
    lead: AgentId,
    /// The running turn. It is told when it is followed, but for its prompt.
    pub running: Option<u32>,
    /// The number of the first event of the running turn.
    pub from: Option<Seq>,
    steps: StepReader,
    translator: Translator,
}

impl History {
    pub fn new(lead: AgentId, translator: Translator) -> Self {
        Self {
            lead,
            running: None,
            from: None,
            steps: StepReader::default(),
            translator,
        }
    }

    /// Takes an event of the log, and returns its updates.
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
        if let Event::Message(saved) = &event
            && let (MessageRole::User, None) = (saved.message.role, &saved.message.metadata.from)
            && let Some(input) = saved.message.metadata.inputs.first()
        {
            self.translator.user_said();
            return vec![said(input.as_str(), &text_of(&saved.message.content))];
        }
        if self.running == Some(envelope.turn) {
            self.from = self.from.or(envelope.seq);
            return Vec::new();
        }
        let events = self.steps.take(&envelope, &event);
        let updates = events.iter().flat_map(|event| self.translator.take(event));
        updates.collect()
    }
}
