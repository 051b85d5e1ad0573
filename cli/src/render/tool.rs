//! Renders a tool call on one line. Calls between agents become a sentence, changes to files name
//! the file, and other calls are shown with all their arguments. Another line shows the tools that
//! run, with the time that has passed.

use std::borrow::Cow;

use planck_common::{AgentId, CallId, Timestamp};
use planck_host::terminal::{Drawing, clean_line};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    diff::{MarkedLine, hunks},
    line::AgentNames,
    style::{Paint, Style, cut, one_line},
};

/// The maximum number of characters of an argument or a result that are used.
const MOST: usize = 400;

/// The arguments whose values identify a call, in order of preference. The first of them that a
/// call has is shown first and without its name.
const SUBJECTS: [&str; 3] = ["path", "command", "name"];

/// Renders the name and the arguments of a call.
pub fn call(name: &str, args: &str, names: &AgentNames) -> String {
    let name = clean_line(name);
    let Ok(Value::Object(args)) = serde_json::from_str(args) else {
        return format!("{name} {}", one_line(args, MOST));
    };
    describe_call(&name, &args, names)
        .unwrap_or_else(|| format!("{name} {}", arguments(&args)).trim_end().to_owned())
}

/// Renders calls between agents and changes to files. Returns `None` for other calls, and if a
/// necessary argument is missing.
fn describe_call(tool: &str, args: &Map<String, Value>, names: &AgentNames) -> Option<String> {
    let text = |key: &str| {
        args.get(key)
            .and_then(Value::as_str)
            .map(|text| one_line(text, MOST))
    };
    let whom = || text("agent").map(|agent| names.of_target(&agent));
    match tool {
        "delegate_task" | "send_agent" => Some(format!("task for {}: {}", whom()?, text("task")?)),
        "ask_agent" | "call_agent" => Some(format!("asks {}: {}", whom()?, text("question")?)),
        "send_response" | "respond_agent" => Some(format!("answers: {}", text("response")?)),
        "spawn_agent" => {
            let about = text("task")
                .or_else(|| text("description"))
                .map_or(String::new(), |about| format!(": {about}"));
            Some(format!(
                "spawns {}{about}",
                text("name").or_else(|| text("type"))?
            ))
        }
        "destroy_agent" => Some(format!("dismisses {}", whom()?)),
        "interrupt_agent" => Some(format!("interrupts {}", whom()?)),
        "write" | "edit" => Some(format!("{tool} {}", text("path")?)),
        _ => None,
    }
}

/// Returns the lines that a call of `edit` changes. Another call has none.
pub fn change(name: &str, args: &str) -> Vec<MarkedLine> {
    #[derive(Deserialize)]
    struct Edit<'a> {
        #[serde(borrow)]
        old_string: Cow<'a, str>,
        #[serde(borrow)]
        new_string: Cow<'a, str>,
    }
    let edit = (name == "edit").then(|| serde_json::from_str::<Edit<'_>>(args).ok());
    edit.flatten()
        .map_or_else(Vec::new, |edit| hunks(&edit.old_string, &edit.new_string))
}

/// Returns a summary of the result, or an empty text if the line of the call says enough.
pub fn result(tool: &str, text: &str) -> String {
    match tool {
        "delegate_task" | "send_agent" | "send_response" | "respond_agent" | "spawn_agent"
        | "edit" => String::new(),
        _ => match serde_json::from_str(text) {
            Ok(Value::Array(entries)) => format!("{} entries", entries.len()),
            Ok(_) | Err(_) => lines(text),
        },
    }
}

/// Renders the value of the only argument, or all arguments with their names. The argument that
/// identifies the call comes first and without its name.
fn arguments(args: &Map<String, Value>) -> String {
    if args.len() == 1 {
        return args.values().map(value).collect();
    }
    let subject = SUBJECTS
        .into_iter()
        .find(|key| args.get(*key).is_some_and(Value::is_string));
    let first = subject.and_then(|key| args.get(key)).map(value);
    let others = args
        .iter()
        .filter(|(name, _)| Some(name.as_str()) != subject);
    let words = first
        .into_iter()
        .chain(others.map(|(name, of)| format!("{}={}", clean_line(name), value(of))));
    words.collect::<Vec<_>>().join(" ")
}

fn value(value: &Value) -> String {
    match value {
        Value::String(text) => one_line(text, MOST),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            one_line(&value.to_string(), MOST)
        }
    }
}

/// Returns the result if it is one line, and otherwise its first line with the number of lines.
/// Empty lines do not count.
fn lines(text: &str) -> String {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let first = one_line(lines.next().unwrap_or_default(), MOST);
    match lines.count() {
        0 => first,
        more => format!("{} lines: {first}", more + 1),
    }
}

/// The number of tools that are remembered. An agent runs few at once, and this bounds a session
/// with many agents, of which only the oldest tool is shown anyway.
const MOST_RUNNING: usize = 1_000;

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
        if self.tools.len() < MOST_RUNNING {
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
    use planck_common::AgentId;

    use super::*;

    #[test]
    fn a_call_is_rendered_by_what_it_does() {
        let mut names = AgentNames::default();
        names.learn(&AgentId::parse("a1").unwrap(), "coder");
        for (tool, args, line) in [
            (
                "delegate_task",
                r#"{"agent":"a1","task":"Write it.\nNow."}"#,
                "task for coder: Write it. Now.",
            ),
            (
                "ask_agent",
                r#"{"agent":"tester","question":"Well?"}"#,
                "asks tester: Well?",
            ),
            (
                "send_response",
                r#"{"response":"Done.","task_id":"t"}"#,
                "answers: Done.",
            ),
            (
                "spawn_agent",
                r#"{"type":"scout","task":"Look."}"#,
                "spawns scout: Look.",
            ),
            ("destroy_agent", r#"{"agent":"a1"}"#, "dismisses coder"),
            ("ask_agent", r#"{"agent":"a1"}"#, "ask_agent a1"),
            ("list_team", "{}", "list_team"),
            ("bash", r#"{"command":"ls"}"#, "bash ls"),
            ("write", r#"{"content":"a\nb","path":"x.sh"}"#, "write x.sh"),
            (
                "patch",
                r#"{"content":"a\nb","path":"x.sh"}"#,
                "patch x.sh content=a b",
            ),
            ("grep", r#"{"deep":true,"for":"x"}"#, "grep deep=true for=x"),
            (
                "edit",
                r#"{"path":"x","old_string":"a","new_string":"b"}"#,
                "edit x",
            ),
            ("bash", "{broken", "bash {broken"),
        ] {
            assert_eq!(call(tool, args, &names), line);
        }
    }

    #[test]
    fn a_result_is_rendered_as_its_first_line() {
        for (tool, text, line) in [
            ("bash", "one\n\n", "one"),
            ("bash", "one\ntwo\n", "2 lines: one"),
            ("list_team", "[{},{}]", "2 entries"),
            ("delegate_task", r#"{"task_id":"x"}"#, ""),
        ] {
            assert_eq!(result(tool, text), line);
        }
    }

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
