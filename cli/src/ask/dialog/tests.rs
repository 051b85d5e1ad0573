//! Tables of keys and their meanings.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::ask::line::KeyDecoder;

fn wait(kind: WaitKind, options: &[&str], rule: bool) -> WaitRow {
    let rule = rule.then(|| json!({ "tool": "bash", "command": "ls", "action": "allow" }));
    let row = json!({
        "id": "w1", "session_id": "s1", "agent_id": "a1", "seq": 1, "kind": kind, "state": "open", "title": "bash: ls",
        "request": { "tool": "bash", "args": { "command": "ls" }, "effect": "mutating" }, "digest": "d1",
        "options": options, "rule": rule, "opened_at": "2026-01-01T00:00:00.000Z",
    });
    serde_json::from_value(row).unwrap()
}

fn dialog(kind: WaitKind) -> Dialog {
    let options: &[&str] = if kind == WaitKind::Question {
        &["blue", "red"]
    } else {
        &[]
    };
    Dialog::of(wait(kind, options, true), Some("ann".into())).unwrap()
}

fn said(step: &DialogStep) -> String {
    match step {
        DialogStep::Prompt => "prompt".into(),
        DialogStep::Say(_) => "say".into(),
        DialogStep::Help => "help".into(),
        DialogStep::Request => "request".into(),
        DialogStep::Edit(text) => format!("edit {text}"),
        DialogStep::Leave => "leave".into(),
        DialogStep::Send(answer) => {
            assert_eq!(
                (answer.wait.as_str(), answer.digest.as_deref()),
                ("w1", Some("d1"))
            );
            assert_eq!(answer.by.as_deref(), Some("ann"));
            let mut words = vec![answer.decision.name().to_owned()];
            words.extend(answer.args.as_ref().map(|args| args.get().to_owned()));
            words.extend(answer.value.as_ref().map(|value| value.get().to_owned()));
            words.extend(answer.reason.clone());
            words.extend(answer.scope.map(|scope| scope.name().to_owned()));
            words.join(" ")
        }
    }
}

/// Passes each text as the bytes of one read, and returns what the last one leads to.
fn after(dialog: &mut Dialog, reads: &[&str]) -> String {
    let mut decoder = KeyDecoder::default();
    let steps = reads
        .iter()
        .map(|bytes| said(&dialog.press(&decoder.add(bytes.as_bytes()))));
    steps.last().unwrap_or_default()
}

#[test]
fn keys_mean_what_the_prompt_says() {
    use WaitKind::{Approval, Budget, Question};
    for (kind, reads, meaning) in [
        (Approval, &["y"][..], "allow"),
        (Approval, &["y\r"], "allow"),
        (Approval, &["a"], "allow session"),
        (Approval, &["n"], "prompt"),
        (Approval, &["n", "\r"], "deny"),
        (
            Approval,
            &["n", "not on a Fri", "day\r"],
            "deny not on a Friday",
        ),
        (Approval, &["n", "x\x04"], "prompt"),
        (Approval, &["n", "\x04", "y"], "allow"),
        (Approval, &["?"], "help"),
        (Approval, &["\x04"], "leave"),
        (Approval, &["e"], r#"edit {"command":"ls"}"#),
        (Question, &["blue\r"], r#"answer "blue""#),
        (Question, &["2\r"], r#"answer "red""#),
        (Question, &["3\r"], r#"answer "3""#),
        (Question, &["0\r"], r#"answer "0""#),
        (Question, &["yes\r"], r#"answer "yes""#),
        (Question, &["deny\r"], "deny"),
        (Question, &["\r"], "say"),
        (Question, &["  \r"], "say"),
        (Question, &["?\r"], "help"),
        (Question, &["\x04"], "leave"),
        (Question, &["blu\x04"], "prompt"),
        (Budget, &["10.5\r"], "allow 10.5"),
        (Budget, &["n\r"], "deny"),
        (Budget, &["deny\r"], "deny"),
        (Budget, &["y\r"], "say"),
        (Budget, &["\r"], "say"),
        (Budget, &["-1\r"], "say"),
        (Budget, &["inf\r"], "say"),
        (Budget, &[".5\r"], "say"),
        (Budget, &["\x04"], "leave"),
    ] {
        assert_eq!(
            after(&mut dialog(kind), reads),
            meaning,
            "{kind:?} {reads:?}"
        );
    }
}

#[test]
fn unclear_keys_allow_nothing() {
    for reads in [
        "",
        "\r",
        " ",
        "Y",
        "yes",
        "yy",
        "ya",
        "\x1by",
        "\x1b[200~y\x1b[201~",
        "\x1b[A",
        "1",
        "\t",
    ] {
        let meaning = after(&mut dialog(WaitKind::Approval), &[reads]);
        assert!(
            ["say", "prompt"].contains(&meaning.as_str()),
            "{reads:?}: {meaning}"
        );
    }
}

#[test]
fn session_is_offered_only_with_a_rule() {
    let mut dialog = Dialog::of(wait(WaitKind::Approval, &[], false), None).unwrap();
    assert_eq!(after(&mut dialog, &["a"]), "say");
    let prompt = dialog.prompt(Style::plain(100));
    assert_eq!(
        prompt.as_str(),
        "  allow? y yes · n no · e edit · ? help › "
    );
    assert!(!dialog.help().concat().contains("later call"));
}

#[test]
fn change_of_files_is_kept_or_ends_the_work() {
    let change = || Dialog::of(wait(WaitKind::Change, &[], false), Some("ann".into()));
    let mut dialog = change().unwrap();
    let prompt = dialog.prompt(Style::plain(100));
    assert_eq!(prompt.as_str(), "  keep? y yes · n no · ? help › ");
    assert!(dialog.help().concat().contains("nothing is put back"));
    for unclear in ["e", "a", "\r"] {
        assert_eq!(after(&mut dialog, &[unclear]), "say", "{unclear:?}");
    }
    assert_eq!(after(&mut dialog, &["n", "\r"]), "deny");
    assert_eq!(after(&mut change().unwrap(), &["y"]), "allow");
}

#[test]
fn editor_opens_with_the_arguments_and_again_with_a_text_that_is_wrong() {
    let mut dialog = Dialog::of(wait(WaitKind::Approval, &[], true), Some("ann".into())).unwrap();
    assert_eq!(after(&mut dialog, &["e"]), r#"edit {"command":"ls"}"#);
    assert_eq!(said(&dialog.edited("{")), "say");
    assert_eq!(after(&mut dialog, &["e"]), "edit {");
    assert_eq!(said(&dialog.edited("{\"command\": \"pwd\"}\n")), "request");
    assert!(
        dialog
            .prompt(Style::plain(100))
            .as_str()
            .contains("with these arguments")
    );
    assert_eq!(after(&mut dialog, &["a"]), "say");
    assert_eq!(after(&mut dialog, &["y"]), r#"allow {"command": "pwd"}"#);
    assert_eq!(said(&dialog.edited("[1]")), "say");
    assert_eq!(after(&mut dialog, &["n", "\r"]), "deny");
}

#[test]
fn tool_of_a_client_is_not_asked_about() {
    assert!(Dialog::of(wait(WaitKind::ClientTool, &[], false), None).is_none());
}

proptest! {
    /// Without `y` and `a`, no keys allow a call.
    #[test]
    fn no_other_keys_ever_allow(reads in prop::collection::vec("[^ya]{0,6}", 0..20)) {
        let mut dialog = dialog(WaitKind::Approval);
        let mut decoder = KeyDecoder::default();
        for bytes in reads {
            let step = dialog.press(&decoder.add(bytes.as_bytes()));
            prop_assert!(!said(&step).starts_with("allow"), "{bytes:?}");
        }
    }
}
