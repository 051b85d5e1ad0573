//! Helpers for tests in the form of a script.

use std::time::Duration;

use planck_common::{
    InputId, Timestamp,
    command::InputMode,
    event::{Event, InputKind, json},
    message::{Part, StopReason},
    usage::Usage,
};

use super::{
    super::{Input, InputOutcome, NewInput},
    world::{World, sender, setup},
};
use crate::{
    model::{Chunk, Failure, FailureKind, Finish},
    outcome::ToolOutcome,
};

pub fn arrival(id: &str, kind: InputKind, text: &str) -> NewInput {
    let from = (kind != InputKind::Prompt).then(sender);
    let id = InputId::parse(id).unwrap();
    NewInput {
        id,
        agent: setup().agent,
        kind,
        mode: InputMode::Queue,
        sender: from,
        by: None,
        reply_to: None,
        content: json(&[Part::text(text)]),
        fresh: false,
        output: None,
        at: Timestamp::from_millis(0),
    }
}

pub fn prompt(id: &str) -> NewInput {
    arrival(id, InputKind::Prompt, "please")
}

pub fn text(text: &str) -> Chunk {
    Chunk::Text {
        part: 0,
        text: text.into(),
    }
}

pub fn call(part: usize, name: &str, args: &str) -> [Chunk; 2] {
    [
        Chunk::Call {
            part,
            id: "c".into(),
            name: name.into(),
        },
        Chunk::Args {
            part,
            json: args.into(),
        },
    ]
}

impl World {
    pub fn answer(&mut self, chunks: Vec<Chunk>, stop: StopReason) {
        let ticket = self.model.expect("no request runs");
        self.step(Input::Chunks { ticket, chunks });
        self.model = None;
        let usage = Usage {
            input_tokens: 100,
            output_tokens: 10,
            ..Usage::default()
        };
        self.step(Input::Answered {
            ticket,
            chunks: Vec::new(),
            result: Ok(Finish::new(stop, usage)),
            jitter: 0.0,
        });
    }

    pub fn say(&mut self, words: &str) {
        self.answer(vec![text(words)], StopReason::End);
    }

    pub fn call_tool(&mut self, name: &str, args: &str) {
        self.answer(call(0, name, args).into(), StopReason::ToolUse);
    }

    pub fn fail(&mut self, kind: FailureKind) {
        let ticket = self.model.take().expect("no request runs");
        let failure = Failure {
            kind,
            message: "overloaded".into(),
            public: None,
            retry_after: None,
        };
        self.step(Input::Answered {
            ticket,
            chunks: Vec::new(),
            result: Err(failure),
            jitter: 1.0,
        });
    }

    pub fn tool_done(&mut self, outcome: ToolOutcome) {
        let ticket = self.tools.remove(0).ticket;
        self.step(Input::ToolDone {
            ticket,
            outcome,
            elapsed: Duration::from_millis(7),
        });
    }

    pub fn commit_all(&mut self) {
        while let Some(effects) = self.commit_next() {
            self.perform(effects);
        }
    }

    /// Returns the log as text, with one line for each row.
    pub fn log(&self) -> String {
        let lines = self.rows.iter().map(|row| {
            let body: serde_json::Value = serde_json::from_str(&row.body).unwrap();
            format!(
                "{} {}/{} {} {body}\n",
                row.seq,
                row.place.turn,
                row.place.request,
                row.kind.name()
            )
        });
        lines.collect()
    }

    pub fn ends(&self) -> Vec<Event> {
        let ends = self.rows.iter().filter(|row| row.kind.is_terminal());
        ends.map(|row| Event::parse(row.kind, &row.body).unwrap())
            .collect()
    }

    pub fn outcome(&self, id: &str) -> Option<&str> {
        self.inputs
            .iter()
            .find(|row| &*row.input.id == id)?
            .outcome
            .as_ref()
            .map(InputOutcome::name)
    }

    /// Returns the text that the asker of a question gets.
    pub fn answer_of(&self, id: &str) -> Option<&str> {
        let row = self.inputs.iter().find(|row| &*row.input.id == id)?;
        row.answer.as_deref()
    }

    pub fn results(&self) -> Vec<String> {
        let parts = self.messages().into_iter().flat_map(|body| body.content);
        let texts = parts.filter_map(|part| {
            if let Part::ToolResult { text, .. } = part {
                Some(text)
            } else {
                None
            }
        });
        texts.collect()
    }
}

pub fn world() -> World {
    World::new(setup())
}
