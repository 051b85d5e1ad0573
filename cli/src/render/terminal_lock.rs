//! Decides which agent may write to the terminal. While the text of one agent is streamed, the
//! output of the others is buffered, so that no line mixes the output of two agents.

use std::collections::VecDeque;

use planck_common::{AgentId, CallId};

use super::{
    prose::LiveText,
    style::{Paint, RESET, Style},
    tool::{RunningTool, RunningTools},
};
use planck_host::terminal::Drawing;

/// A part of an agent's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputPiece {
    /// Text that the next part may continue.
    Text {
        thinking: bool,
        text: String,
    },
    /// The end of the text.
    TextEnds,
    /// The end of the agent's turn. None of its tools runs any more.
    Over,
    Line(Drawing),
    ToolBegins(RunningTool),
    ToolEnds {
        call: CallId,
        line: Drawing,
    },
}

/// The number of buffered bytes above which the text of the current agent is interrupted.
const WAITING: usize = 64 * 1024;

/// The buffered output of the agents that have to wait.
#[derive(Debug, Default)]
struct BufferedOutput {
    pieces: VecDeque<(AgentId, String, OutputPiece)>,
    bytes: usize,
}

#[derive(Debug)]
pub struct TerminalLock {
    style: Style,
    /// Whether more than one agent is known. Only then are names shown.
    pub many: bool,
    pub running: RunningTools,
    /// The agents in the order of their first output, which determines their colours.
    agents: Vec<AgentId>,
    speaker: Option<AgentId>,
    holder: Option<AgentId>,
    waiting: BufferedOutput,
    /// Shows the open text. If lines cannot be overwritten, it is `None`, and text is written as it
    /// arrives.
    live_text: Option<LiveText>,
    /// The lines that belong below the end of the current line of text.
    notices: Vec<Drawing>,
    mid_line: bool,
    /// The number of line ends that were received but are written only if more text follows.
    held_back: usize,
    thinking: bool,
}

impl TerminalLock {
    pub fn new(style: Style) -> Self {
        Self {
            style,
            many: false,
            running: RunningTools::new(style),
            agents: Vec::new(),
            speaker: None,
            holder: None,
            waiting: BufferedOutput::default(),
            live_text: style.in_place.then(|| LiveText::new(style)),
            notices: Vec::new(),
            mid_line: false,
            held_back: 0,
            thinking: false,
        }
    }

    /// Returns whether no text is open, so that a line may be written.
    pub fn is_free(&self) -> bool {
        self.holder.is_none() && !self.mid_line
    }

    /// Writes a part of an agent's output, or buffers it until the current agent's text has ended
    /// or more than [`WAITING`] bytes are buffered.
    pub fn take(&mut self, agent: &AgentId, name: &str, piece: OutputPiece, out: &mut Drawing) {
        if self.holder.as_ref().is_some_and(|holder| holder != agent) {
            self.waiting.bytes += piece.weight();
            self.waiting
                .pieces
                .push_back((agent.clone(), name.into(), piece));
            if self.waiting.bytes > WAITING {
                self.hand_over(out);
            }
            return;
        }
        self.write(agent, name, piece, out);
    }

    /// Ends the open text. Returns the end of its line and the buffered output.
    pub fn close(&mut self) -> Drawing {
        let mut out = Drawing::default();
        while self.holder.is_some() || !self.waiting.pieces.is_empty() {
            self.hand_over(&mut out);
        }
        self.end_line(&mut out);
        out
    }

    /// Writes a line that is not about an agent. An open text is not cut within a line.
    pub fn notice(&mut self, line: Drawing, out: &mut Drawing) {
        match (self.is_free(), &mut self.live_text) {
            (true, _) => *out += &(line + "\n"),
            (false, Some(live_text)) => *out += &live_text.interject(&line),
            (false, None) => self.notices.push(line),
        }
    }

    fn hand_over(&mut self, out: &mut Drawing) {
        self.end_line(out);
        self.holder = None;
        for (agent, name, piece) in std::mem::take(&mut self.waiting).pieces {
            self.take(&agent, &name, piece, out);
        }
    }

    fn write(&mut self, agent: &AgentId, name: &str, piece: OutputPiece, out: &mut Drawing) {
        match piece {
            OutputPiece::Text { thinking, text } => self.flow(agent, name, thinking, &text, out),
            OutputPiece::TextEnds if self.holder.is_some() => self.hand_over(out),
            OutputPiece::TextEnds => {}
            OutputPiece::Over => self.running.end_all(agent),
            OutputPiece::Line(line) if self.holder.is_some() => self.notice(line, out),
            OutputPiece::Line(line) => self.line(agent, name, &line, out),
            OutputPiece::ToolBegins(tool) => self.running.begin(agent, name, tool),
            OutputPiece::ToolEnds { call, line } => {
                self.running.end(&call);
                self.line(agent, name, &line, out);
            }
        }
    }

    fn flow(&mut self, agent: &AgentId, name: &str, thinking: bool, text: &str, out: &mut Drawing) {
        if self.holder.is_none() || self.thinking != thinking {
            self.end_line(out);
        }
        if self.live_text.is_some() {
            return self.flow_in_lines(agent, name, thinking, text, out);
        }
        // Models often put empty lines at the beginning and the end of a text. These are removed.
        let text = if self.mid_line {
            text
        } else {
            text.trim_start_matches('\n')
        };
        let shown = text.trim_end_matches('\n');
        let ends = text.len() - shown.len();
        if shown.is_empty() {
            self.held_back += if self.mid_line { ends } else { 0 };
            return;
        }
        self.header(agent, name, out);
        if thinking && !self.mid_line && self.style.colour {
            *out += &Drawing::control(Paint::Dim.code());
        }
        if self.held_back > 0 && !self.notices.is_empty() {
            *out += "\n";
            self.held_back -= 1;
            self.write_notices(out);
        }
        *out += "\n"
            .repeat(std::mem::replace(&mut self.held_back, ends))
            .as_str();
        *out += shown;
        self.mid_line = true;
        self.thinking = thinking;
        self.holder = Some(agent.clone());
    }

    fn flow_in_lines(
        &mut self,
        agent: &AgentId,
        name: &str,
        thinking: bool,
        text: &str,
        out: &mut Drawing,
    ) {
        if !text.trim().is_empty() {
            self.header(agent, name, out);
        }
        (self.thinking, self.holder) = (thinking, Some(agent.clone()));
        if let Some(live_text) = &mut self.live_text {
            *out += &live_text.push(thinking, text);
        }
    }

    fn line(&mut self, agent: &AgentId, name: &str, line: &Drawing, out: &mut Drawing) {
        self.end_line(out);
        self.header(agent, name, out);
        *out += line;
        *out += "\n";
    }

    fn write_notices(&mut self, out: &mut Drawing) {
        for line in std::mem::take(&mut self.notices) {
            *out += &(line + "\n");
        }
    }

    fn end_line(&mut self, out: &mut Drawing) {
        if let Some(live_text) = &mut self.live_text {
            *out += &live_text.finish();
        }
        if self.mid_line {
            if self.thinking && self.style.colour {
                *out += &Drawing::control(RESET);
            }
            *out += "\n";
        }
        self.mid_line = false;
        self.held_back = 0;
        self.thinking = false;
        self.write_notices(out);
    }

    fn header(&mut self, agent: &AgentId, name: &str, out: &mut Drawing) {
        if !self.many || self.speaker.as_ref() == Some(agent) {
            return;
        }
        let known = self.agents.iter().position(|known| known == agent);
        let number = known.unwrap_or_else(|| {
            self.agents.push(agent.clone());
            self.agents.len() - 1
        });
        let gap = if self.speaker.is_some() { "\n" } else { "" };
        *out += &(Drawing::text(gap)
            + self.style.paint(Paint::Agent(number), &format!("● {name}"))
            + "\n");
        self.speaker = Some(agent.clone());
    }
}

impl OutputPiece {
    fn weight(&self) -> usize {
        match self {
            Self::Text { text, .. } => text.len(),
            Self::Line(line) | Self::ToolEnds { line, .. } => line.size(),
            Self::ToolBegins(tool) => tool.what.len(),
            Self::TextEnds | Self::Over => 1,
        }
    }
}
