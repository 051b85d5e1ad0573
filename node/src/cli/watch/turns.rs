//! Whether a team is done with a prompt: its turn has ended, and so has all work that came of it.

use std::collections::BTreeSet;

use planck_common::{
    AgentId, InputId,
    envelope::Envelope,
    event::{Event, TurnOutcome},
};

use crate::cli::exit::Exit;

/// The open turns of a session, as its events tell.
#[derive(Debug)]
pub struct Turns {
    prompt: InputId,
    /// The agent the prompt went to.
    lead: Option<AgentId>,
    open: BTreeSet<AgentId>,
    /// How the lead's latest turn ended, once the prompt's has.
    ended: Option<Exit>,
}

impl Turns {
    pub fn of(prompt: InputId) -> Self {
        Self { prompt, lead: None, open: BTreeSet::new(), ended: None }
    }

    pub fn hear(&mut self, envelope: &Envelope) {
        let agent = &envelope.agent_id;
        match envelope.event().and_then(Result::ok) {
            Some(Event::TurnStart(start)) => {
                if start.inputs.iter().any(|input| input.id == self.prompt) {
                    self.lead = Some(agent.clone());
                }
                self.open.insert(agent.clone());
            }
            Some(Event::TurnEnd(end)) => {
                let exit = if end.outcome == TurnOutcome::Completed { Exit::Done } else { Exit::Failed };
                self.close(agent, &end.inputs, exit);
            }
            Some(Event::Error(error)) => self.close(agent, &error.inputs, Exit::Failed),
            Some(Event::AgentStopped(_)) => {
                self.open.remove(agent);
            }
            Some(Event::SessionClosed(_)) => {
                self.open.clear();
                self.ended.get_or_insert(Exit::Failed);
            }
            Some(_) | None => {}
        }
    }

    /// What was heard of an agent was not the log's, which is heard next.
    pub fn forget(&mut self, agent: &AgentId) {
        self.open.remove(agent);
    }

    fn close(&mut self, agent: &AgentId, inputs: &[InputId], exit: Exit) {
        self.open.remove(agent);
        if inputs.contains(&self.prompt) || (self.ended.is_some() && self.lead.as_ref() == Some(agent)) {
            self.ended = Some(exit);
        }
    }

    /// How it went, when nothing more is known to run.
    pub fn at_rest(&self) -> Option<Exit> {
        self.ended.filter(|_| self.open.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use planck_common::{
        NodeId, SessionId, TeamId, Timestamp,
        envelope::{Place, Row, Writer},
        event::{EventKind, TurnEnd, TurnStart},
        usage::Usage,
    };

    use super::*;

    fn event(agent: &str, event: &Event) -> Envelope {
        let writer = Writer {
            agent_id: AgentId::parse(agent).unwrap(),
            session_id: SessionId::parse("s").unwrap(),
            team_id: TeamId::parse("t").unwrap(),
            node_id: NodeId::parse("n").unwrap(),
            epoch: 1,
        };
        let place = Place { turn: 1, request: 1, at: Timestamp::from_millis(0) };
        let text = writer.durable(event.kind(), place, Row { seq: 1, prev: 0, hidden_by: None }, &event.data());
        serde_json::from_str(&text).unwrap()
    }

    fn start(agent: &str, inputs: &[&str]) -> Envelope {
        let inputs = inputs.iter().map(|id| planck_common::event::TurnInput {
            id: InputId::parse(id).unwrap(),
            kind: planck_common::event::InputKind::Prompt,
            from: None,
        });
        event(agent, &Event::TurnStart(TurnStart { index: 1, inputs: inputs.collect() }))
    }

    fn end(agent: &str, outcome: TurnOutcome, inputs: &[&str]) -> Envelope {
        let inputs = inputs.iter().map(|id| InputId::parse(id).unwrap()).collect();
        event(agent, &Event::TurnEnd(TurnEnd { outcome, message: None, usage: Usage::default(), limit: None, inputs }))
    }

    fn heard(events: &[Envelope]) -> Option<Exit> {
        let mut turns = Turns::of(InputId::parse("p").unwrap());
        events.iter().for_each(|event| turns.hear(event));
        turns.at_rest()
    }

    #[test]
    fn a_prompt_is_done_with_when_all_that_came_of_it_is() {
        let (done, failed) = (TurnOutcome::Completed, TurnOutcome::Aborted);
        let table: [(&[Envelope], Option<Exit>); 5] = [
            (&[start("lead", &["p"])], None),
            (&[start("lead", &["p"]), end("lead", done, &["p"])], Some(Exit::Done)),
            (&[start("lead", &["p"]), start("worker", &["t"]), end("lead", done, &["p"])], None),
            (
                &[start("lead", &["p"]), start("worker", &[]), end("lead", done, &["p"]), end("worker", failed, &[])],
                Some(Exit::Done),
            ),
            (
                &[start("lead", &["p"]), end("lead", done, &["p"]), start("lead", &["r"]), end("lead", failed, &["r"])],
                Some(Exit::Failed),
            ),
        ];
        for (events, expected) in table {
            assert_eq!(heard(events), expected, "{events:?}");
        }
        assert_eq!(EventKind::TurnEnd.name(), "turn_end");
    }
}
