//! Renders the text and the tool calls of one agent. Text is written while it arrives and is
//! compared with the saved message at the end.

use std::collections::HashMap;

use planck_client::turn::{StepReader, TurnEvent};
use planck_common::{
    CallId,
    envelope::Envelope,
    event::{Event, ToolEnd, ToolStart},
};

use unicode_width::UnicodeWidthStr as _;

use super::{
    diff::{MarkedLine, below_its_call},
    line::AgentNames,
    style::{Paint, Style, cut, duration, one_line},
    terminal_lock::OutputPiece,
    tool::{self, RunningTool},
};
use planck_host::terminal::{Drawing, clean, clean_line};

#[derive(Debug, Default)]
pub struct SpeechRenderer {
    steps: StepReader,
    /// The epoch and number of the request whose text was written last.
    written: (i64, u32),
    tools: HashMap<CallId, BegunCall>,
}

/// A tool call whose end is not known yet.
#[derive(Debug, Default)]
struct BegunCall {
    what: String,
    /// The lines that the call changes, if it edits a file.
    change: Vec<MarkedLine>,
}

impl SpeechRenderer {
    pub fn apply(
        &mut self,
        envelope: &Envelope,
        event: &Event,
        names: &AgentNames,
        style: Style,
    ) -> Vec<OutputPiece> {
        let mut pieces = Vec::new();
        if let Event::ToolStart(tool) = event {
            pieces = self.tool_begins(envelope, tool, names);
        } else if let Event::ToolEnd(tool) = event {
            pieces = self.tool_ends(tool, style);
        } else if let Event::TurnEnd(_) | Event::Error(_) | Event::AgentStopped(_) = event {
            self.tools.clear();
            pieces = vec![OutputPiece::TextEnds, OutputPiece::Over];
        }
        for part in self.steps.take(envelope, event) {
            self.say(part, envelope, event, style, &mut pieces);
        }
        pieces
    }

    fn say(
        &mut self,
        part: TurnEvent,
        envelope: &Envelope,
        event: &Event,
        style: Style,
        pieces: &mut Vec<OutputPiece>,
    ) {
        let request = (envelope.epoch, envelope.request);
        let (thinking, text) = match part {
            TurnEvent::Text { text, .. } => (false, text),
            TurnEvent::Reasoning { text, .. } => (true, text),
            TurnEvent::StepEnded { .. } => return pieces.push(OutputPiece::TextEnds),
            TurnEvent::StepReset => {
                pieces.push(OutputPiece::TextEnds);
                let line = reset_line(event, request == self.written, style);
                return pieces.extend(line.map(OutputPiece::Line));
            }
            TurnEvent::Started { .. }
            | TurnEvent::StepStarted
            | TurnEvent::ToolCalled { .. }
            | TurnEvent::ToolStarted { .. }
            | TurnEvent::ToolProgress { .. }
            | TurnEvent::ToolEnded { .. }
            | TurnEvent::WaitOpened(_)
            | TurnEvent::WaitClosed(_)
            | TurnEvent::Worker(_)
            | TurnEvent::Compacting
            | TurnEvent::Compacted { .. }
            | TurnEvent::Warning { .. }
            | TurnEvent::CaughtUp
            | TurnEvent::Ended { .. }
            | TurnEvent::Failed { .. } => return,
        };
        self.written = request;
        pieces.push(OutputPiece::Text {
            thinking,
            text: clean(&text).into_owned(),
        });
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
        vec![OutputPiece::TextEnds, OutputPiece::ToolBegins(running)]
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

/// Returns the line that says why the text above is void, unless another line about the event says it.
/// Streamed text is not in the log, so anyone who may publish can forge it. `is_saved` says whether
/// the event is about the request whose text was written.
fn reset_line(event: &Event, is_saved: bool, style: Style) -> Option<Drawing> {
    if let Event::Retry(_) | Event::TurnEnd(_) | Event::Error(_) | Event::AgentStopped(_) = event {
        return None;
    }
    if matches!(event, Event::Message(_)) && is_saved {
        let warning = "warning: disregard the reply above: it is not what the agent said, which is";
        return Some(style.paint(Paint::Warning, warning));
    }
    Some(style.paint(Paint::Dim, "  (the reply broke off; it starts again)"))
}
