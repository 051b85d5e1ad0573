//! Decides which agent may write to the terminal. While the text of one agent is streamed, the
//! output of the others is buffered, so that no line mixes the output of two agents.

use std::collections::VecDeque;

use planck_common::{AgentId, CallId};

use super::{
    markdown::Markdown,
    style::{ERASE_LINE, Paint, RESET, Style},
};
use planck_host::terminal::Drawing;

/// A part of an agent's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputPiece {
    /// Text that the next part may continue.
    Flow {
        thinking: bool,
        text: String,
    },
    /// The end of the text.
    Rest,
    Line(Drawing),
    ToolBegins {
        call: CallId,
        line: Drawing,
    },
    ToolEnds {
        call: CallId,
        line: Drawing,
    },
}

/// The number of buffered bytes above which the text of the current agent is interrupted.
const WAITING: usize = 64 * 1024;

/// The buffered output of the agents that have to wait.
#[derive(Debug, Default)]
struct Waiting {
    pieces: VecDeque<(AgentId, String, OutputPiece)>,
    bytes: usize,
}

#[derive(Debug)]
pub struct Floor {
    style: Style,
    /// Whether more than one agent is known. Only then are names shown.
    pub many: bool,
    /// The agents in the order of their first output, which determines their colours.
    agents: Vec<AgentId>,
    speaker: Option<AgentId>,
    holder: Option<AgentId>,
    waiting: Waiting,
    /// The renderer for the Markdown of the current agent's text, or `None` if the output has no
    /// colours or its lines cannot be overwritten.
    markdown: Option<Markdown>,
    mid_line: bool,
    /// The number of line ends that were received but are written only if more text follows.
    held_back: usize,
    thinking: bool,
    open_tool: Option<CallId>,
}

impl Floor {
    pub fn new(style: Style) -> Self {
        Self {
            style,
            many: false,
            agents: Vec::new(),
            speaker: None,
            holder: None,
            waiting: Waiting::default(),
            markdown: (style.colour && style.in_place).then(|| Markdown::new(style)),
            mid_line: false,
            held_back: 0,
            thinking: false,
            open_tool: None,
        }
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

    fn hand_over(&mut self, out: &mut Drawing) {
        self.end_line(out);
        self.holder = None;
        for (agent, name, piece) in std::mem::take(&mut self.waiting).pieces {
            self.take(&agent, &name, piece, out);
        }
    }

    fn write(&mut self, agent: &AgentId, name: &str, piece: OutputPiece, out: &mut Drawing) {
        match piece {
            OutputPiece::Flow { thinking, text } => self.flow(agent, name, thinking, &text, out),
            OutputPiece::Rest if self.holder.is_some() => self.hand_over(out),
            OutputPiece::Rest => {}
            OutputPiece::Line(line) => self.line(agent, name, &line, out),
            OutputPiece::ToolBegins { call, line } => {
                self.tool_begins(agent, name, call, &line, out)
            }
            OutputPiece::ToolEnds { call, line } => self.tool_ends(agent, name, &call, &line, out),
        }
    }

    fn flow(&mut self, agent: &AgentId, name: &str, thinking: bool, text: &str, out: &mut Drawing) {
        if self.holder.is_none() || self.thinking != thinking {
            self.end_line(out);
        }
        if !thinking && self.markdown.is_some() {
            return self.draw_markdown(agent, name, text, out);
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
        *out += "\n"
            .repeat(std::mem::replace(&mut self.held_back, ends))
            .as_str();
        *out += shown;
        self.mid_line = true;
        self.thinking = thinking;
        self.holder = Some(agent.clone());
    }

    fn draw_markdown(&mut self, agent: &AgentId, name: &str, text: &str, out: &mut Drawing) {
        if !text.trim().is_empty() {
            self.header(agent, name, out);
        }
        (self.thinking, self.holder) = (false, Some(agent.clone()));
        *out += &self
            .markdown
            .as_mut()
            .map(|markdown| markdown.push(text))
            .unwrap_or_default();
    }

    fn line(&mut self, agent: &AgentId, name: &str, line: &Drawing, out: &mut Drawing) {
        self.end_line(out);
        self.header(agent, name, out);
        *out += line;
        *out += "\n";
    }

    fn tool_begins(
        &mut self,
        agent: &AgentId,
        name: &str,
        call: CallId,
        line: &Drawing,
        out: &mut Drawing,
    ) {
        if !self.style.in_place {
            return;
        }
        self.end_line(out);
        self.header(agent, name, out);
        *out += line;
        self.mid_line = true;
        self.open_tool = Some(call);
    }

    fn tool_ends(
        &mut self,
        agent: &AgentId,
        name: &str,
        call: &CallId,
        line: &Drawing,
        out: &mut Drawing,
    ) {
        if self.open_tool.as_ref() == Some(call) {
            self.open_tool = None;
            self.mid_line = false;
            *out += &Drawing::control(ERASE_LINE);
        }
        self.line(agent, name, line, out);
    }

    fn end_line(&mut self, out: &mut Drawing) {
        *out += &self
            .markdown
            .as_mut()
            .map(Markdown::finish)
            .unwrap_or_default();
        if self.mid_line {
            if self.thinking && self.style.colour {
                *out += &Drawing::control(RESET);
            }
            *out += "\n";
        }
        self.mid_line = false;
        self.held_back = 0;
        self.thinking = false;
        self.open_tool = None;
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
            Self::Flow { text, .. } => text.len(),
            Self::Line(line) | Self::ToolBegins { line, .. } | Self::ToolEnds { line, .. } => {
                line.size()
            }
            Self::Rest => 1,
        }
    }
}
