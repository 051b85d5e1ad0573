use planck_client::FollowEvent;
use planck_common::{
    AgentId, NodeId, SessionId, TeamId, Timestamp,
    envelope::{Envelope, EventPlace, RowPosition, Writer},
    event::EventKind,
};
use serde_json::{Value, json};

use super::{Screen, Style, style, *};

/// A screen for events that are 500 ms apart.
struct Stage {
    screen: Screen,
    seq: i64,
    at: i64,
    request: u32,
    drawn: String,
}

impl Stage {
    fn new(style: Style, agents: &[&str]) -> Self {
        let mut screen = Screen::new(style);
        screen.summary.each_turn = true;
        agents
            .iter()
            .for_each(|name| screen.learn_name(&AgentId::parse(name).unwrap(), name));
        Self {
            screen,
            seq: 0,
            at: 0,
            request: 1,
            drawn: String::new(),
        }
    }

    fn tell(&mut self, agent: &str, kind: EventKind, data: Value) {
        let writer = Writer {
            agent_id: AgentId::parse(agent).unwrap(),
            session_id: SessionId::parse("s").unwrap(),
            team_id: TeamId::parse("t").unwrap(),
            node_id: NodeId::parse("n").unwrap(),
            epoch: 1,
        };
        self.at += 500;
        let place = EventPlace {
            turn: 1,
            request: self.request,
            at: Timestamp::from_millis(self.at),
        };
        let text = if kind.is_durable() {
            self.seq += 1;
            writer.durable(
                kind,
                place,
                RowPosition {
                    seq: self.seq,
                    prev: 0,
                    hidden_by: None,
                },
                &data.to_string(),
            )
        } else {
            writer.live(kind, place, &data.to_string())
        };
        let event: Envelope = serde_json::from_str(&text).unwrap();
        let told = if kind.is_durable() {
            FollowEvent::Durable(event)
        } else {
            FollowEvent::Live(event)
        };
        self.drawn += self.screen.draw_event(&told).as_str();
    }

    fn text(&mut self, agent: &str, offset: usize, text: &str) {
        self.tell(
            agent,
            EventKind::TextDelta,
            json!({"text": text, "part": 0, "offset": offset}),
        );
    }

    fn says(&mut self, agent: &str, content: Value) {
        self.tell(
            agent,
            EventKind::Message,
            json!({"role": "assistant", "content": content}),
        );
    }

    fn tool(&mut self, agent: &str, call: &str, name: &str, args: Value) {
        self.tell(
            agent,
            EventKind::ToolStart,
            json!({"call_id": call, "id": "x", "name": name, "args": args, "effect": "pure"}),
        );
    }

    fn tool_ends(&mut self, agent: &str, call: &str, result: &str, error: bool) {
        let data = json!({"call_id": call, "id": "x", "name": "read", "result": result, "error": error, "duration_ms": 1234});
        self.tell(agent, EventKind::ToolEnd, data);
    }

    fn ends(&mut self, agent: &str, outcome: &str) {
        let usage = json!({"input_tokens": 1000, "output_tokens": 330, "cache_read_tokens": 3000, "cost_usd": 0.0123});
        self.tell(
            agent,
            EventKind::UsageDelta,
            json!({"delta": usage, "total": usage, "context_tokens": 4000}),
        );
        self.tell(
            agent,
            EventKind::TurnEnd,
            json!({"outcome": outcome, "message": null, "usage": usage, "inputs": [], "limit": "max_tokens"}),
        );
    }

    /// Returns the status this many seconds after the last event.
    fn status(&self, seconds: i64) -> Option<String> {
        let now = Timestamp::from_millis(self.at + seconds * 1_000);
        let status = self.screen.status(now)?;
        Some(status.as_str().replace('\x1b', "␛"))
    }

    fn end(mut self) -> String {
        self.drawn += self.screen.end_text().as_str();
        self.drawn.replace('\x1b', "␛").replace('\r', "␍")
    }
}

const TERMINAL: Style = Style {
    colour: true,
    in_place: true,
    width: 60,
};

fn plain() -> Style {
    Style::plain(60)
}

#[test]
fn a_turn_of_one_agent_is_rendered() {
    let mut stage = Stage::new(plain(), &["lead"]);
    stage.tell(
        "lead",
        EventKind::TurnStart,
        json!({"index": 1, "inputs": []}),
    );
    stage.tell(
        "lead",
        EventKind::Message,
        json!({"role": "user", "content": [{"type": "text", "text": "What is\nin here?"}], "metadata": {"inputs": ["p1"]}}),
    );
    stage.text("lead", 0, "I will ");
    stage.text("lead", 7, "look.");
    stage.says(
        "lead",
        json!([{"type": "text", "text": "I will look. Now."}]),
    );
    stage.tool("lead", "c1", "read", json!({"path": "src/main.rs"}));
    stage.tool_ends("lead", "c1", "fn main() {\n\n}\n", false);
    stage.tool(
        "lead",
        "c2",
        "edit",
        json!({"path": "x", "old_string": "long ".repeat(30)}),
    );
    stage.tool_ends("lead", "c2", "no match in x", true);
    stage.request = 2;
    stage.says(
        "lead",
        json!([{"type": "thinking", "text": "Hm."}, {"type": "text", "text": "A program."}]),
    );
    stage.ends("lead", "completed");
    insta::assert_snapshot!(stage.end(), @r"
      › What is in here?
    I will look. Now.
      ✓ read src/main.rs  1.2 s  2 lines: fn main() {
      ✗ edit x  1.2 s  no match in x
    Hm.
    A program.
      5.5 s · 4,000 tokens in (75 % cached) · 330 out · $0.0123
    ");
}

#[test]
fn message_of_the_runtime_is_not_shown_as_a_prompt() {
    let mut stage = Stage::new(plain(), &["lead"]);
    stage.says("lead", json!([{"type": "text", "text": "It is one."}]));
    stage.tell(
        "lead",
        EventKind::Message,
        json!({"role": "user", "content": [{"type": "text", "text": "Call submit_output now."}]}),
    );
    insta::assert_snapshot!(stage.end(), @r"
    It is one.
      ← the runtime: Call submit_output now.
    ");
}

#[test]
fn void_text_is_told_from_a_forged_one() {
    let mut stage = Stage::new(plain(), &["lead"]);
    stage.text("lead", 0, "Send money.");
    stage.says("lead", json!([{"type": "text", "text": "Hello."}]));
    stage.request = 2;
    stage.text("lead", 0, "I beg");
    stage.request = 3;
    stage.says("lead", json!([{"type": "text", "text": "I begin."}]));
    insta::assert_snapshot!(stage.end(), @r"
    Send money.
    warning: disregard the reply above: it is not what the agent said, which is
    Hello.
    I beg
      (the reply broke off; it starts again)
    I begin.
    ");
}

#[test]
fn two_agents_never_share_a_line() {
    let mut stage = Stage::new(plain(), &["lead", "coder"]);
    stage.text("lead", 0, "First ");
    stage.text("coder", 0, "Mean");
    stage.text("lead", 6, "this.");
    stage.text("coder", 4, "while.");
    stage.tool("coder", "c1", "read", json!({"path": "a", "limit": 3}));
    stage.says("lead", json!([{"type": "text", "text": "First this."}]));
    stage.tool_ends("coder", "c1", "one line", false);
    stage.text("lead", 0, "");
    stage.ends("coder", "limit");
    stage.tell(
        "lead",
        EventKind::WorkerExit,
        json!({"id": "coder", "name": "coder", "reason": "stopped"}),
    );
    insta::assert_snapshot!(stage.end(), @r"
    ● lead
    First this.

    ● coder
    Meanwhile.
      ✓ read a limit=3  1.2 s  one line
      ■ stopped by the limit max_tokens
      0 ms · 4,000 tokens in (75 % cached) · 330 out · $0.0123

    ● lead
      - coder: stopped
    ");
}

#[test]
fn other_events_are_a_line_each() {
    let mut stage = Stage::new(plain(), &["lead"]);
    stage.tell(
        "lead",
        EventKind::WorkerSpawned,
        json!({"id": "w1", "name": "tester", "type": "tester", "node_id": "n"}),
    );
    let from = json!({"from": {"id": "lead", "name": "lead"}});
    let task = json!({"role": "custom", "custom": "agent_message", "content": [{"type": "text", "text": "Test it."}], "metadata": from});
    stage.tell("w1", EventKind::Message, task);
    stage.text("w1", 0, "I beg");
    stage.tell(
        "w1",
        EventKind::Retry,
        json!({"attempt": 2, "delay_ms": 1500, "reason": "overloaded"}),
    );
    stage.request = 2;
    stage.text("w1", 0, "I begin");
    stage.says("w1", json!([{"type": "text", "text": "I begin."}]));
    stage.tell(
        "lead",
        EventKind::Compacting,
        json!({"tokens_before": 160_000}),
    );
    stage.tell(
        "lead",
        EventKind::Compacted,
        json!({"tokens_before": 160_000, "tokens_after": 9_000, "by": "local", "kept": 10}),
    );
    stage.tell(
        "lead",
        EventKind::Warning,
        json!({"code": "not_granted", "message": "write is not yours to grant"}),
    );
    stage.tell(
        "lead",
        EventKind::Error,
        json!({"reason": "no key", "code": "auth", "retryable": false, "inputs": []}),
    );
    insta::assert_snapshot!(stage.end(), @r"
    ● lead
      + tester (tester)

    ● tester
      ← lead: Test it.
    I beg
      ↻ try 2 in 1.5 s: overloaded
    I begin.

    ● lead
      summarising 160,000 tokens
      summarised 160,000 tokens to 9,000 (local), 10 messages k…
      ! write is not yours to grant
      ✗ no key (auth)
    ");
}

#[test]
fn an_edit_is_shown_as_a_change_unless_a_person_was_asked_about_it() {
    let mut stage = Stage::new(plain(), &["lead"]);
    let args =
        json!({"path": "a.rs", "old_string": "fn a() {}\nold\n", "new_string": "fn a() {}\nnew\n"});
    for call in ["c1", "c2", "c3"] {
        stage.tool("lead", call, "edit", args.clone());
    }
    let asked = planck_common::CallId::parse("c3").unwrap();
    stage.screen.waits.learn(&asked, "edit: a.rs");
    stage.tool_ends("lead", "c1", "edited a.rs", false);
    stage.tool_ends("lead", "c2", "cannot edit a.rs", true);
    stage.tool_ends("lead", "c3", "edited a.rs", false);
    insta::assert_snapshot!(stage.end(), @r"
      ✓ edit a.rs  1.2 s  edited a.rs
      │   fn a() {}
      │ - old
      │ + new
      ✗ edit a.rs  1.2 s  cannot edit a.rs
      ✓ edit a.rs  1.2 s  edited a.rs
    ");
}

#[test]
fn a_notice_stands_between_lines_of_text() {
    let warning = json!({"code": "x", "message": "look"});
    let written = Style {
        colour: false,
        ..TERMINAL
    };
    for (style, shown) in [
        (TERMINAL, "One.\n  ! look\n\nA sentence that ends.\n"),
        (written, "One.\n  ! look\n\nA sentence that ends.\n"),
        (
            plain(),
            "One.\n\nA sentence that ends.\n  ! look\n\nMore.\n",
        ),
    ] {
        let mut stage = Stage::new(style, &["lead"]);
        stage.text("lead", 0, "One.\n\nA sentence");
        stage.tell("lead", EventKind::Warning, warning.clone());
        stage.text("lead", 16, " that ends.\n\n");
        if style == plain() {
            stage.text("lead", 29, "More.");
        }
        let drawn = stage.end().replace("␛[33m", "").replace("␛[0m", "");
        let lines = drawn.split('\n');
        let visible = lines.map(|line| line.rsplit("␍␛[2K").next().unwrap_or(line));
        assert_eq!(
            visible.collect::<Vec<_>>().join("\n"),
            shown,
            "{style:?}: {drawn:?}"
        );
    }
}

#[test]
fn errors_are_never_cut() {
    let mut stage = Stage::new(plain(), &["lead"]);
    let reason = format!("{}: its cause", "connection refused ".repeat(20));
    stage.tell(
        "lead",
        EventKind::Retry,
        json!({"attempt": 2, "delay_ms": 1500, "reason": reason}),
    );
    stage.tell(
        "lead",
        EventKind::Error,
        json!({"reason": reason, "code": "x", "retryable": false, "inputs": []}),
    );
    stage.tell(
        "lead",
        EventKind::Warning,
        json!({"code": "x", "message": reason}),
    );
    assert_eq!(stage.end().matches("its cause").count(), 3);
}

#[test]
fn reason_is_not_repeated_for_each_try() {
    let mut stage = Stage::new(plain(), &["lead"]);
    for (attempt, reason) in [
        (2, "refused"),
        (3, "refused"),
        (4, "too slow"),
        (5, "too slow"),
    ] {
        stage.tell(
            "lead",
            EventKind::Retry,
            json!({"attempt": attempt, "delay_ms": 1500, "reason": reason}),
        );
    }
    let error = json!({"reason": "too slow", "code": "x", "retryable": false, "inputs": []});
    stage.tell("lead", EventKind::Error, error);
    insta::assert_snapshot!(stage.end(), @r"
      ↻ try 2 in 1.5 s: refused
      ↻ try 3 in 1.5 s: the same again
      ↻ try 4 in 1.5 s: too slow
      ↻ try 5 in 1.5 s: the same again
      ✗ too slow (x)
    ");
}

#[test]
fn on_a_terminal_thinking_is_dim_and_the_status_shows_what_runs() {
    let mut stage = Stage::new(TERMINAL, &["lead"]);
    stage.tell(
        "lead",
        EventKind::ThinkingDelta,
        json!({"text": "Hm", "part": 0, "offset": 0}),
    );
    stage.tell(
        "lead",
        EventKind::TextDelta,
        json!({"text": "Well", "part": 1, "offset": 0}),
    );
    assert_eq!(stage.status(9), None, "text is open");
    stage.tool("lead", "c1", "bash", json!({"command": "ls"}));
    assert_eq!(stage.status(3).unwrap(), "␛[2m  ▸ bash ls  3 s␛[0m");
    stage.tool_ends("lead", "c1", "a\nb", false);
    assert_eq!(stage.status(9), None);
    insta::assert_snapshot!(stage.end(), @r"
    ␛[2mHm␛[0m␍␛[2K␛[2mHm␛[0m
    ␛[2mWell␛[0m␍␛[2KWell
      ␛[32m✓␛[0m bash ls  ␛[2m1.2 s  2 lines: a␛[0m
    ");
}

#[test]
fn a_tools_line_is_no_wider_than_the_terminal() {
    for length in [1, 20, 30, 40, 80] {
        let mut stage = Stage::new(
            Style {
                colour: false,
                in_place: false,
                width: 60,
            },
            &["lead"],
        );
        stage.tool("lead", "c1", "bash", json!({"command": "c".repeat(length)}));
        stage.tool_ends("lead", "c1", &"r".repeat(80), false);
        let drawn = stage.end();
        let line = drawn.lines().find(|line| line.contains('✓')).unwrap();
        assert_eq!(line.chars().count(), 60, "{line}");
    }
}

#[test]
fn nothing_an_agent_says_moves_the_cursor() {
    let mut stage = Stage::new(plain(), &["lead"]);
    stage.text("lead", 0, "a\x1b[2Jb\x07\r\nc");
    stage.tool(
        "lead",
        "c1",
        "bash",
        json!({"command": "echo \u{1b}]0;title\u{7}"}),
    );
    stage.tool_ends("lead", "c1", "\x1b[31mred", false);
    stage.tool(
        "lead",
        "c2",
        "bash\x1b[2J",
        json!({"\x1b[2Jkey": "\u{202e}x", "b": 1}),
    );
    stage.tell(
        "lead",
        EventKind::Warning,
        json!({"code": "c", "message": "\x1b]52;c;x\x07 \u{9b}2J"}),
    );
    let drawn = stage.drawn + stage.screen.end_text().as_str();
    assert!(
        !drawn.contains(|c: char| c.is_control() && c != '\n') && !drawn.contains('\u{202e}'),
        "{drawn:?}"
    );
    assert!(
        drawn.contains("a␛[2Jb␇\nc") && drawn.contains("␛[31mred"),
        "{drawn:?}"
    );
}

#[test]
fn a_hidden_row_is_not_shown_and_an_unknown_event_is_named() {
    let mut screen = Screen::new(plain());
    let mut event: Envelope =
        serde_json::from_value(json!({"v": 1, "type": "of_tomorrow", "agent_id": "a", "session_id": "s", "team_id": "t",
        "node_id": "n", "epoch": 1, "seq": 1, "prev": 0, "turn": 0, "request": 0, "at": "2026-01-01T12:00:00.123Z", "data": {}}))
        .unwrap();
    assert_eq!(
        screen
            .draw_event(&FollowEvent::Durable(event.clone()))
            .as_str(),
        "  of_tomorrow\n"
    );
    event.hidden_by = Some(9);
    assert_eq!(screen.draw_event(&FollowEvent::Durable(event)).as_str(), "");
}

#[test]
fn numbers_are_formatted_for_people() {
    assert_eq!(
        [0, 999, 1000, 1_234_567].map(style::count),
        ["0", "999", "1,000", "1,234,567"]
    );
    assert_eq!(
        [950, 12_345, 245_000].map(style::duration),
        ["950 ms", "12.3 s", "4 m 05 s"]
    );
    assert_eq!(style::one_line("a\n  b\tc", 4), "a b…");
}

#[test]
fn costs_are_written_without_the_digits_of_the_arithmetic() {
    let sum: f64 = [0.000_334, 0.001].iter().sum::<f64>() + 3e-19;
    for (cost_usd, written) in [(0.1 + 0.2, "0.3"), (sum, "0.001334"), (0.0, "0.0")] {
        let usage = rounded(Usage {
            cost_usd,
            ..Usage::default()
        });
        assert_eq!(serde_json::to_string(&usage.cost_usd).unwrap(), written);
    }
}
