//! Renders what agents wait for, and how each wait ended.

use std::collections::{HashMap, HashSet};

use planck_common::{
    CallId,
    event::Event,
    wait::{WaitClosed, WaitDecision, WaitKind, WaitOpened},
};

use super::style::{Paint, Style, one_line};
use planck_host::terminal::Drawing;

#[derive(Debug, Default)]
pub struct WaitLines {
    /// The titles of the open waits.
    titles: HashMap<CallId, String>,
    /// Whether a person is asked at this terminal. Then a line about a wait that a person can answer
    /// would say everything twice.
    pub are_asked_here: bool,
    /// The calls about which a person was asked at this terminal, and whose end is not known yet.
    asked: HashSet<CallId>,
}

impl WaitLines {
    /// Stores a wait about which a person is asked at this terminal, and its title. It may have been
    /// opened before the first event that is shown.
    pub fn learn(&mut self, wait: &CallId, title: &str) {
        self.titles.insert(wait.clone(), title.into());
        self.asked.insert(wait.clone());
    }

    /// Forgets that a person was asked about a call, which has ended. Returns whether that was so.
    pub fn was_asked(&mut self, call: &CallId) -> bool {
        self.asked.remove(call)
    }

    /// Returns the line for an event. It is not cut to the width, because the way to answer is at
    /// its end.
    pub fn line(&mut self, event: &Event, style: Style) -> Option<Drawing> {
        let (paint, text) = if let Event::WaitOpened(wait) = event {
            self.titles.insert(wait.id.clone(), wait.title.clone());
            let is_shown = !self.are_asked_here || wait.kind == WaitKind::ClientTool;
            (Paint::Warning, is_shown.then(|| asked(wait))?)
        } else if let Event::WaitClosed(wait) = event {
            let title = self.titles.remove(&wait.id);
            (Paint::Dim, ended(wait, title.as_deref()))
        } else {
            // A rewind withdraws every open wait without an event for each.
            if let Event::Rewound(_) = event {
                self.titles.clear();
                self.asked.clear();
            }
            return None;
        };
        Some(style.paint(paint, &format!("  {}", one_line(&text, usize::MAX))))
    }
}

fn asked(wait: &WaitOpened) -> String {
    let how = match wait.kind {
        WaitKind::Approval | WaitKind::Change => "allow|deny",
        WaitKind::Question | WaitKind::ClientTool => "TEXT",
        WaitKind::Budget => "NEW-LIMIT|deny",
    };
    let id: String = wait.id.chars().take(8).collect();
    format!("? {} · planck answer {id} {how}", wait.title)
}

/// Returns a text that says how a wait ended, by which person or program, and what it was about.
pub fn ended(wait: &WaitClosed, title: Option<&str>) -> String {
    let how = match wait.decision {
        WaitDecision::Allow => "allowed",
        WaitDecision::Deny => "denied",
        WaitDecision::Answer => "answered",
        WaitDecision::Error => "failed",
        WaitDecision::Expired => "expired",
        WaitDecision::Withdrawn => "withdrawn",
    };
    let by = wait.by.as_deref();
    let by = by.map_or(String::new(), |by| format!(" by {by}"));
    let title = title.map_or(String::new(), |title| format!(": {title}"));
    let reason = wait.reason.as_deref();
    let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
    format!("{how}{by}{title}{reason}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn opened(id: &str, kind: WaitKind) -> Event {
        let data =
            json!({ "id": id, "kind": kind, "title": "bash: ls", "request": {}, "digest": "d" });
        Event::WaitOpened(serde_json::from_value(data).unwrap())
    }

    fn closed(id: &str, decision: &str, by: Option<&str>, reason: Option<&str>) -> Event {
        let data = json!({ "id": id, "decision": decision, "by": by, "reason": reason });
        Event::WaitClosed(serde_json::from_value(data).unwrap())
    }

    #[test]
    fn lines_say_what_waits_and_how_it_ended() {
        let mut lines = WaitLines::default();
        for (event, line) in [
            (
                opened("67f260c4-0a57", WaitKind::Approval),
                "? bash: ls · planck answer 67f260c4 allow|deny",
            ),
            (
                closed("67f260c4-0a57", "deny", Some("ann"), Some("not now")),
                "denied by ann: bash: ls (not now)",
            ),
            (
                opened("w2", WaitKind::Budget),
                "? bash: ls · planck answer w2 NEW-LIMIT|deny",
            ),
            (closed("w2", "expired", None, None), "expired: bash: ls"),
            (closed("w3", "allow", Some("ann"), None), "allowed by ann"),
        ] {
            let drawn = lines.line(&event, Style::plain(20)).unwrap();
            assert_eq!(drawn.as_str(), format!("  {line}"));
        }
        assert!(lines.titles.is_empty());
    }

    #[test]
    fn wait_that_is_asked_about_here_has_no_line() {
        let mut lines = WaitLines {
            are_asked_here: true,
            ..WaitLines::default()
        };
        assert!(
            lines
                .line(&opened("w1", WaitKind::Question), Style::plain(80))
                .is_none()
        );
        assert!(
            lines
                .line(&opened("w2", WaitKind::ClientTool), Style::plain(80))
                .is_some()
        );
        let closed = lines.line(&closed("w1", "answer", Some("ann"), None), Style::plain(80));
        assert_eq!(closed.unwrap().as_str(), "  answered by ann: bash: ls");
    }
}
