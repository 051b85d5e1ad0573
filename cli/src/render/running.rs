//! The tools that run, and the line that shows them with the time that has passed.

use planck_common::{AgentId, CallId, Timestamp};

use super::style::{Paint, Style, cut};
use planck_host::terminal::Drawing;

/// The number of tools that are remembered. An agent runs few at once, and this bounds a session
/// with many agents, of which only the oldest tool is shown anyway.
const MOST: usize = 1_000;

/// A tool call that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningTool {
    pub call: CallId,
    /// The call on one line.
    pub what: String,
    pub began: Timestamp,
}

/// The tools that run, the oldest first.
#[derive(Debug)]
pub struct RunningTools {
    style: Style,
    tools: Vec<(AgentId, String, RunningTool)>,
}

impl RunningTools {
    pub fn new(style: Style) -> Self {
        Self {
            style,
            tools: Vec::new(),
        }
    }

    pub fn begin(&mut self, agent: &AgentId, name: &str, tool: RunningTool) {
        self.end(&tool.call);
        if self.tools.len() < MOST {
            self.tools.push((agent.clone(), name.into(), tool));
        }
    }

    pub fn end(&mut self, call: &CallId) {
        self.tools.retain(|(_, _, tool)| tool.call != *call);
    }

    /// Forgets the tools of an agent whose turn is over.
    pub fn end_all(&mut self, agent: &AgentId) {
        self.tools.retain(|(of, _, _)| of != agent);
    }

    /// Returns the line about the tool that runs longest. It fits on one row of the terminal, which
    /// is overwritten. `with_names` says whether the agent is named.
    pub fn line(&self, now: Timestamp, with_names: bool) -> Option<Drawing> {
        let (_, name, tool) = self.tools.first()?;
        let who = if with_names {
            format!("{name}: ")
        } else {
            String::new()
        };
        let more = match self.tools.len() - 1 {
            0 => String::new(),
            others => format!(" · {others} more"),
        };
        let end = format!("{}{more}", elapsed(now.millis_since(tool.began)));
        let room = self.style.width.saturating_sub(5 + end.chars().count());
        let what = cut(&format!("{who}{}", tool.what), room);
        Some(self.style.paint(Paint::Dim, &format!("  ▸ {what}{end}")))
    }
}

/// Formats whole seconds, which change once in a second. The first one is not shown.
fn elapsed(millis: u64) -> String {
    match millis / 1_000 {
        0 => String::new(),
        seconds @ 1..60 => format!("  {seconds} s"),
        seconds => format!("  {} m {:02} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_tool_is_shown_with_its_time() {
        let mut tools = RunningTools::new(Style::plain(40));
        let (lead, coder) = (AgentId::parse("a1").unwrap(), AgentId::parse("a2").unwrap());
        let tool = |call: &str, what: &str| RunningTool {
            call: CallId::parse(call).unwrap(),
            what: what.into(),
            began: Timestamp::from_millis(1_000),
        };
        let line = |tools: &RunningTools, at, with_names| {
            let line = tools.line(Timestamp::from_millis(at), with_names);
            line.map(|line| line.as_str().to_owned())
        };
        assert_eq!(line(&tools, 0, false), None);
        tools.begin(&lead, "lead", tool("c1", "bash make"));
        let shown = |at| line(&tools, at, false).unwrap();
        assert_eq!(shown(500), "  ▸ bash make");
        assert_eq!(shown(1_900), "  ▸ bash make");
        assert_eq!(shown(4_100), "  ▸ bash make  3 s");
        assert_eq!(shown(126_000), "  ▸ bash make  2 m 05 s");
        tools.begin(&coder, "coder", tool("c2", &"x".repeat(60)));
        tools.begin(&coder, "coder", tool("c3", "read a"));
        assert_eq!(
            line(&tools, 4_000, true).unwrap(),
            "  ▸ lead: bash make  3 s · 2 more"
        );
        tools.end(&CallId::parse("c1").unwrap());
        let wide = line(&tools, 4_000, true).unwrap();
        assert!(
            wide.ends_with("x…  3 s · 1 more") && wide.chars().count() < 40,
            "{wide}"
        );
        tools.end_all(&coder);
        assert_eq!(line(&tools, 4_000, true), None);
    }
}
