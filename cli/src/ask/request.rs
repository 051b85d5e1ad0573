//! Renders what a wait asks, so that a person can decide about it: a change as a diff, a command as
//! it runs, other arguments by name.

use planck_common::{
    command::WaitRow,
    wait::{ChangeKind, ProtectedChange, WaitKind},
};
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use crate::render::{
    Style,
    diff::{self, FIRST_LINES, LineMark, MarkedLine as Line},
    style::{Paint, counted, one_line},
};
use planck_host::terminal::Drawing;

/// The tool call that a request is about.
#[derive(Debug, Deserialize)]
pub struct RequestedCall<'a> {
    pub tool: String,
    #[serde(borrow)]
    pub args: &'a RawValue,
    #[serde(default)]
    pub why: Option<String>,
}

/// The changed files that a request is about.
#[derive(Debug, Deserialize)]
pub struct RequestedChanges {
    pub changes: Vec<ProtectedChange>,
}

/// Returns the line that names a changed file.
pub fn head_of(change: &ProtectedChange) -> String {
    let what = match change.change {
        ChangeKind::Added => "new",
        ChangeKind::Changed => "changed",
        ChangeKind::Removed => "removed",
    };
    format!("{what}: {}", change.path)
}

/// Renders a wait. `args` are arguments that replace those of the wait, and `agent` is the name of
/// the agent that waits, if the session has several.
pub fn block(
    wait: &WaitRow,
    args: Option<&RawValue>,
    agent: Option<&str>,
    style: Style,
) -> Drawing {
    let call: Option<RequestedCall<'_>> = serde_json::from_str(wait.request.get()).ok();
    let (head, why, lines) = match (wait.kind, &call) {
        (WaitKind::Approval | WaitKind::ClientTool, Some(call)) => {
            let args = args.unwrap_or(call.args);
            let (subject, lines) = described(&call.tool, args);
            let place = match leaves_sandbox(&call.tool, args) {
                true => "OUTSIDE of the sandbox ",
                false => "",
            };
            (
                format!("{} {place}{subject}", call.tool),
                call.why.as_deref(),
                lines,
            )
        }
        (WaitKind::Question, _) => (wait.title.clone(), None, question(wait, call.as_ref())),
        (WaitKind::Change, _) => (wait.title.clone(), None, changes(wait)),
        (WaitKind::Approval | WaitKind::ClientTool | WaitKind::Budget, _) => {
            (wait.title.clone(), None, Vec::new())
        }
    };
    let who = agent.map_or(String::new(), |agent| format!(" · {agent}"));
    let mut drawing = style.paint(
        Paint::Warning,
        &format!("  ? {}{who}", one_line(head.trim_end(), usize::MAX)),
    ) + "\n";
    if let Some(why) = why {
        drawing += &(style.paint(Paint::Dim, &format!("    {}", one_line(why, usize::MAX))) + "\n");
    }
    let hidden = lines.len().saturating_sub(FIRST_LINES);
    for line in lines.iter().take(FIRST_LINES) {
        drawing += &draw(line, style);
    }
    if hidden > 0 {
        let more = format!("… {} more; ? shows all", counted(hidden, "line"));
        drawing += &draw(&(LineMark::Note, more), style);
    }
    drawing
}

/// Returns whether a call asks to leave the sandbox.
pub fn leaves_sandbox(tool: &str, args: &RawValue) -> bool {
    let args: Option<Map<String, Value>> = serde_json::from_str(args.get()).ok();
    let asked = args.and_then(|args| args.get("unsandboxed").cloned());
    tool == "bash" && asked.is_some_and(|asked| asked != Value::Bool(false))
}

/// Returns the changed files with their present text.
fn changes(wait: &WaitRow) -> Vec<Line> {
    let Ok(RequestedChanges { changes }) = serde_json::from_str(wait.request.get()) else {
        return Vec::new();
    };
    let lines = changes.into_iter().flat_map(|change| {
        let head = (LineMark::Note, head_of(&change));
        let text = change.text.unwrap_or_default();
        let text = text.lines().map(|line| (LineMark::Added, line.to_owned()));
        std::iter::once(head).chain(text).collect::<Vec<_>>()
    });
    lines.collect()
}

/// Renders the complete request as it is stored.
pub fn whole(wait: &WaitRow, args: Option<&RawValue>, style: Style) -> Drawing {
    let text = |raw: &RawValue| {
        let value: Option<Value> = serde_json::from_str(raw.get()).ok();
        let pretty = value.and_then(|value| serde_json::to_string_pretty(&value).ok());
        pretty.unwrap_or_else(|| raw.get().to_owned())
    };
    let shown = args.map_or_else(|| text(&wait.request), text);
    shown
        .lines()
        .map(|line| draw(&(LineMark::Plain, line.into()), style))
        .collect()
}

/// Returns the text that follows the tool's name, and the lines below it.
fn described(tool: &str, args: &RawValue) -> (String, Vec<Line>) {
    let Ok(Value::Object(args)) = serde_json::from_str(args.get()) else {
        return (String::new(), plain(args.get()));
    };
    let text = |name: &str| args.get(name).and_then(Value::as_str);
    match (tool, text("path"), text("command")) {
        ("edit", Some(path), _) => {
            let (old, new) = (text("old_string"), text("new_string"));
            let lines = diff::hunks(old.unwrap_or_default(), new.unwrap_or_default());
            let rest = others(&args, &["path", "old_string", "new_string"]);
            (path.into(), [lines, rest].concat())
        }
        ("write", Some(path), _) => {
            let content = text("content").unwrap_or_default();
            let size = counted(content.lines().count(), "line");
            let lines = content
                .lines()
                .map(|line| (LineMark::Added, line.to_owned()));
            let rest = others(&args, &["path", "content"]);
            (format!("{path} · {size}"), lines.chain(rest).collect())
        }
        (_, _, Some(command)) => {
            let rest = others(&args, &["command"]);
            (String::new(), [plain(command), rest].concat())
        }
        _ => (String::new(), others(&args, &[])),
    }
}

/// Returns the lines of the arguments that are not in `shown`.
fn others(args: &Map<String, Value>, shown: &[&str]) -> Vec<Line> {
    let rest = args
        .iter()
        .filter(|(name, _)| !shown.contains(&name.as_str()));
    rest.flat_map(|(name, value)| match value {
        Value::String(text) if text.contains('\n') => {
            let head = (LineMark::Note, format!("{name}:"));
            std::iter::once(head).chain(plain(text)).collect()
        }
        Value::String(text) => vec![(LineMark::Plain, format!("{name}: {text}"))],
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            vec![(LineMark::Plain, format!("{name}: {value}"))]
        }
    })
    .collect()
}

/// Returns the lines of a question after its first one, and the suggested answers.
fn question(wait: &WaitRow, call: Option<&RequestedCall<'_>>) -> Vec<Line> {
    let args =
        call.and_then(|call| serde_json::from_str::<Map<String, Value>>(call.args.get()).ok());
    let text = args
        .as_ref()
        .and_then(|args| args.get("question")?.as_str())
        .unwrap_or_default();
    // The title is the question on one line, so it is repeated only if that line does not show all.
    let is_in_title = one_line(text, usize::MAX) == one_line(&wait.title, usize::MAX);
    let mut lines = if is_in_title { Vec::new() } else { plain(text) };
    let options = wait.options.iter().flatten().enumerate();
    lines.extend(options.map(|(at, option)| {
        let option = one_line(option, usize::MAX);
        (LineMark::Plain, format!("{}  {option}", at + 1))
    }));
    lines
}

fn plain(text: &str) -> Vec<Line> {
    text.lines()
        .map(|line| (LineMark::Plain, line.into()))
        .collect()
}

/// Draws a line on as many rows as it needs.
fn draw((mark, text): &Line, style: Style) -> Drawing {
    diff::whole(*mark, text, style)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wait(kind: WaitKind, title: &str, request: &Value, options: &[&str]) -> WaitRow {
        let row = json!({
            "id": "w1", "session_id": "s1", "agent_id": "a1", "seq": 1, "kind": kind, "state": "open",
            "title": title, "request": request, "digest": "d", "options": options,
            "opened_at": "2026-01-01T00:00:00.000Z",
        });
        serde_json::from_value(row).unwrap()
    }

    fn call(tool: &str, args: &Value) -> WaitRow {
        let request =
            json!({ "tool": tool, "args": args, "effect": "mutating", "why": "the mode asks" });
        wait(WaitKind::Approval, &format!("{tool}: …"), &request, &[])
    }

    fn shown(wait: &WaitRow) -> String {
        block(wait, None, None, Style::plain(60))
            .as_str()
            .to_owned()
    }

    #[test]
    fn requests_are_readable() {
        let long = "x".repeat(70);
        let edit = json!({
            "path": "a.rs", "old_string": "1\n2\n3\n4\nold\n5\n6\n7\n8", "new_string": "1\n2\n3\n4\nnew\nnewer\n5\n6\n7\n8",
        });
        let cases = [
            call(
                "bash",
                &json!({ "command": "git push\necho \u{1b}[2J", "timeout": 5 }),
            ),
            call("bash", &json!({ "command": long })),
            call("edit", &edit),
            call(
                "edit",
                &json!({ "path": "a.rs", "old_string": "x", "new_string": "" }),
            ),
            call(
                "write",
                &json!({ "path": "b.txt", "content": "\tone\ntwo\n" }),
            ),
            call(
                "deploy",
                &json!({ "to": "here", "text": "a\nb", "force": true }),
            ),
            call("odd", &json!([1])),
            wait(
                WaitKind::Question,
                "Which colour?",
                &json!({ "tool": "ask_user", "args": { "question": "Which\ncolour?" } }),
                &["blue", "red\nish"],
            ),
            wait(
                WaitKind::Question,
                "Long…",
                &json!({ "tool": "ask_user", "args": { "question": "Long and\nlonger?" } }),
                &[],
            ),
            wait(
                WaitKind::Budget,
                "max_cost_usd is reached: 1 of 1",
                &json!({ "limit": "max_cost_usd" }),
                &[],
            ),
        ];
        insta::assert_snapshot!(cases.iter().map(shown).collect::<Vec<_>>().join("---\n"));
    }

    #[test]
    fn long_request_says_how_much_is_hidden_and_is_shown_on_demand() {
        let content = (1..=30).map(|n| format!("{n}\n")).collect::<String>();
        let wait = call("write", &json!({ "path": "b.txt", "content": content }));
        assert!(
            shown(&wait).ends_with("+ 24\n  │   … 6 lines more; ? shows all\n"),
            "{}",
            shown(&wait)
        );
        assert!(
            whole(&wait, None, Style::plain(200))
                .as_str()
                .contains("29\\n30")
        );
    }

    #[test]
    fn changed_arguments_are_shown_in_place_of_the_models() {
        let wait = call("bash", &json!({ "command": "rm -r /" }));
        let args = RawValue::from_string(r#"{"command":"ls"}"#.into()).unwrap();
        let drawn = block(&wait, Some(&args), Some("coder"), Style::plain(60));
        assert!(
            drawn.as_str().starts_with("  ? bash · coder\n"),
            "{drawn:?}"
        );
        assert!(
            drawn.as_str().contains("ls") && !drawn.as_str().contains("rm"),
            "{drawn:?}"
        );
        assert!(
            !whole(&wait, Some(&args), Style::plain(60))
                .as_str()
                .contains("rm")
        );
    }
}
