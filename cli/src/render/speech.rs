//! Renders the text and the tool calls of one agent. Text is written while it arrives and is
//! compared with the saved message at the end.

use std::collections::{BTreeMap, HashMap};

use planck_common::{
    CallId,
    envelope::Envelope,
    event::{Delta, Event, ToolEnd, ToolStart},
    message::{Message, MessageRole, Part},
};

use unicode_width::UnicodeWidthStr as _;

use super::{
    diff::{MarkedLine, below_its_call},
    floor::OutputPiece,
    names::AgentNames,
    running::RunningTool,
    style::{Paint, Style, cut, duration, one_line},
    tool,
};
use planck_host::terminal::{Drawing, clean, clean_line};

#[derive(Debug, Default)]
pub struct SpeechRenderer {
    /// The epoch, turn and request number of the current reply.
    request: (i64, u32, u32),
    /// The text that was written for each part of the reply.
    shown: BTreeMap<usize, ShownText>,
    tools: HashMap<CallId, BegunCall>,
}

/// A tool call whose end is not known yet.
#[derive(Debug, Default)]
struct BegunCall {
    what: String,
    /// The lines that the call changes, if it edits a file.
    change: Vec<MarkedLine>,
}

/// The text of a part that was written, and the number of characters before it that were missed.
#[derive(Debug, Default)]
struct ShownText {
    from: usize,
    text: String,
}

impl ShownText {
    fn flow(&mut self, delta: &Delta) {
        if self.text.is_empty() {
            self.from = delta.offset;
        }
        self.text.push_str(&delta.text);
    }

    /// Returns the part of the saved text that was not written yet, or `None` if the written text
    /// differs from the saved one.
    fn rest<'a>(&self, saved: &'a str) -> Option<&'a str> {
        let from = saved
            .char_indices()
            .nth(self.from)
            .map_or(saved.len(), |(at, _)| at);
        saved.get(from..)?.strip_prefix(self.text.as_str())
    }
}

impl SpeechRenderer {
    pub fn apply(
        &mut self,
        envelope: &Envelope,
        event: &Event,
        names: &AgentNames,
        style: Style,
    ) -> Vec<OutputPiece> {
        match event {
            Event::TextDelta(delta) => self.flow(envelope, delta, false, style),
            Event::ThinkingDelta(delta) => self.flow(envelope, delta, true, style),
            Event::Message(saved) if saved.message.role == MessageRole::Assistant => {
                self.settle(envelope, &saved.message, style)
            }
            Event::ToolStart(tool) => self.tool_begins(envelope, tool, names),
            Event::ToolEnd(tool) => self.tool_ends(tool, style),
            Event::Retry(_) => {
                self.shown.clear();
                vec![OutputPiece::Rest]
            }
            Event::TurnEnd(_) | Event::Error(_) | Event::AgentStopped(_) => {
                self.shown.clear();
                self.tools.clear();
                vec![OutputPiece::Rest, OutputPiece::Over]
            }
            Event::Message(_)
            | Event::TurnStart(_)
            | Event::UsageDelta(_)
            | Event::ToolProgress(_)
            | Event::WaitOpened(_)
            | Event::WaitClosed(_)
            | Event::MessageQueued(_)
            | Event::Compacting(_)
            | Event::Compacted(_)
            | Event::WorkerSpawned(_)
            | Event::WorkerExit(_)
            | Event::AgentStarted(_)
            | Event::SessionStarted(_)
            | Event::SessionResumed(_)
            | Event::SessionClosed(_)
            | Event::Rewound(_)
            | Event::Checkpoint(_)
            | Event::ToolsChanged(_)
            | Event::ModelChanged(_)
            | Event::Warning(_) => Vec::new(),
        }
    }

    /// Begins a reply. If text of the previous request was written but its message was never saved,
    /// ends that text and returns a line that says that the reply broke off.
    fn begin(&mut self, envelope: &Envelope, style: Style) -> Vec<OutputPiece> {
        let request = (envelope.epoch, envelope.turn, envelope.request);
        let superseded = request != self.request && !self.shown.is_empty();
        if request != self.request {
            self.shown.clear();
            self.request = request;
        }
        if !superseded {
            return Vec::new();
        }
        vec![
            OutputPiece::Rest,
            OutputPiece::Line(style.paint(Paint::Dim, "  (the reply broke off; it starts again)")),
        ]
    }

    fn flow(
        &mut self,
        envelope: &Envelope,
        delta: &Delta,
        thinking: bool,
        style: Style,
    ) -> Vec<OutputPiece> {
        let mut pieces = self.begin(envelope, style);
        self.shown.entry(delta.part).or_default().flow(delta);
        pieces.push(OutputPiece::Flow {
            thinking,
            text: clean(&delta.text).into_owned(),
        });
        pieces
    }

    /// Returns the part of a saved reply that was not written yet. If the written text of a part
    /// differs from the saved one, returns a warning and the whole part. Streamed text is not in
    /// the log, so anyone who may publish can forge it.
    fn settle(&mut self, envelope: &Envelope, message: &Message, style: Style) -> Vec<OutputPiece> {
        let mut pieces = self.begin(envelope, style);
        for (at, part) in message.content.iter().enumerate() {
            let (thinking, text) = match part {
                Part::Text { text, .. } => (false, text),
                Part::Thinking { text, .. } => (true, text),
                Part::ToolCall { .. }
                | Part::ToolResult { .. }
                | Part::Image { .. }
                | Part::File { .. } => continue,
            };
            let rest = self
                .shown
                .get(&at)
                .map_or(Some(text.as_str()), |shown| shown.rest(text));
            if rest.is_none() {
                let warning =
                    "warning: disregard the reply above: it is not what the agent said, which is";
                pieces.extend([
                    OutputPiece::Rest,
                    OutputPiece::Line(style.paint(Paint::Warning, warning)),
                ]);
            }
            let rest = rest.unwrap_or(text);
            if !rest.is_empty() {
                pieces.push(OutputPiece::Flow {
                    thinking,
                    text: clean(rest).into_owned(),
                });
            }
        }
        pieces.push(OutputPiece::Rest);
        self.shown.clear();
        pieces
    }

    /// Leaves out the lines that a call changes, because they were shown already.
    pub fn forget_change(&mut self, call: &CallId) {
        if let Some(begun) = self.tools.get_mut(call) {
            begun.change.clear();
        }
    }

    fn tool_begins(
        &mut self,
        envelope: &Envelope,
        tool: &ToolStart,
        names: &AgentNames,
    ) -> Vec<OutputPiece> {
        let args = tool.args.get();
        let begun = BegunCall {
            what: tool::call(&tool.name, args, names),
            change: tool::change(&tool.name, args),
        };
        let running = RunningTool {
            call: tool.call_id.clone(),
            what: begun.what.clone(),
            began: envelope.at,
        };
        self.tools.insert(tool.call_id.clone(), begun);
        vec![OutputPiece::Rest, OutputPiece::ToolBegins(running)]
    }

    fn tool_ends(&mut self, tool: &ToolEnd, style: Style) -> Vec<OutputPiece> {
        let begun = self.tools.remove(&tool.call_id);
        let BegunCall { what, change } = begun.unwrap_or_else(|| BegunCall {
            what: clean_line(&tool.name).into_owned(),
            change: Vec::new(),
        });
        let (mark, paint) = if tool.error {
            ("✗", Paint::Bad)
        } else {
            ("✓", Paint::Good)
        };
        let took = duration(tool.duration_ms);
        let between = "  ✓ ".width() + "  ".width() * 2;
        let room = style.width.saturating_sub(took.width() + between);
        let result = if tool.error {
            one_line(&tool.result, style.width)
        } else {
            tool::result(&tool.name, &tool.result)
        };
        // The call's arguments are shortened to make room for its result, but they keep at least
        // half of the line.
        let what = one_line(&what, room.saturating_sub(result.width()).max(room / 2));
        let result = cut(&result, room.saturating_sub(what.width()));
        let rest = style.paint(
            if tool.error { Paint::Bad } else { Paint::Dim },
            format!("{took}  {result}").trim_end(),
        );
        let mut line = Drawing::text("  ") + style.paint(paint, mark) + format!(" {what}  ") + rest;
        if !tool.error {
            line += &below_its_call(&change, style);
        }
        vec![OutputPiece::ToolEnds {
            call: tool.call_id.clone(),
            line,
        }]
    }
}
