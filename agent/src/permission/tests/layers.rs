use planck_common::{
    event::ToolEffect,
    permission::{PermissionMode, Permissions, RuleAction, SESSION_TOOLS},
};
use serde_json::{Value, json};

use super::call;
use crate::permission::{CallFacts, Verdict, judge};

fn layer(value: Value) -> Permissions {
    serde_json::from_value(value).unwrap()
}

fn action(layers: &[Value], call: &CallFacts<'_>) -> RuleAction {
    let layers: Vec<Permissions> = layers.iter().cloned().map(layer).collect();
    judge(&layers, call).action
}

const WRITE: &str = r#"{"path": "docs/a.md"}"#;

#[test]
fn every_call_runs_without_layers() {
    let nothing = Verdict {
        action: RuleAction::Allow,
        why: None,
    };
    assert_eq!(judge(&[], &call("bash", "{}")), nothing);
    assert_eq!(
        judge(&[Permissions::default()], &call("bash", "{")),
        nothing
    );
}

#[test]
fn the_first_rule_that_matches_decides() {
    let facts = call("write", WRITE);
    let docs = json!({"path": "docs/**", "action": "allow"});
    let src = json!({"path": "src/**", "action": "allow"});
    let write = json!({"tool": "write", "action": "deny"});
    for (rules, wanted) in [
        (json!([docs, write]), RuleAction::Allow),
        (json!([write, docs]), RuleAction::Deny),
        (json!([src, write]), RuleAction::Deny),
        (json!([src]), RuleAction::Ask),
        (json!([docs]), RuleAction::Allow),
    ] {
        let layer = json!({"mode": "careful", "rules": rules});
        assert_eq!(action(&[layer], &facts), wanted, "{rules}");
    }
}

#[test]
fn the_strictest_layer_decides() {
    let facts = call("write", WRITE);
    let allow = json!({"rules": [{"action": "allow"}]});
    let ask = json!({"mode": "careful"});
    let deny = json!({"mode": "read-only"});
    for (layers, wanted) in [
        (vec![&allow, &allow], RuleAction::Allow),
        (vec![&allow, &ask], RuleAction::Ask),
        (vec![&ask, &allow], RuleAction::Ask),
        (vec![&deny, &ask, &allow], RuleAction::Deny),
        (vec![&allow, &ask, &deny], RuleAction::Deny),
    ] {
        let layers: Vec<Value> = layers.into_iter().cloned().collect();
        assert_eq!(action(&layers, &facts), wanted, "{layers:?}");
    }
}

#[test]
fn a_mode_lets_calls_run_that_change_nothing() {
    for (effect, careful, read_only) in [
        (ToolEffect::Pure, RuleAction::Allow, RuleAction::Allow),
        (ToolEffect::Idempotent, RuleAction::Ask, RuleAction::Deny),
        (ToolEffect::Mutating, RuleAction::Ask, RuleAction::Deny),
    ] {
        let facts = CallFacts {
            effect,
            ..call("x", "{}")
        };
        assert_eq!(action(&[json!({"mode": "careful"})], &facts), careful);
        assert_eq!(action(&[json!({"mode": "read-only"})], &facts), read_only);
        assert_eq!(
            action(&[json!({"mode": "auto"})], &facts),
            RuleAction::Allow
        );
    }
}

#[test]
fn a_mode_lets_the_tools_of_a_session_run_but_rules_hold_for_them() {
    for tool in SESSION_TOOLS {
        let own = call(tool, "{}");
        let of_sidecar = CallFacts {
            sidecar: Some("other"),
            ..own
        };
        for (mode, wanted) in [
            (PermissionMode::Careful, RuleAction::Ask),
            (PermissionMode::ReadOnly, RuleAction::Deny),
        ] {
            let layers = [Permissions::of_mode(mode)];
            assert_eq!(judge(&layers, &own).action, RuleAction::Allow, "{tool}");
            assert_eq!(judge(&layers, &of_sidecar).action, wanted, "{tool}");
        }
        let named = json!({"rules": [{"tool": tool, "action": "ask"}]});
        assert_eq!(action(&[named], &own), RuleAction::Ask, "{tool}");
        let any = json!({"rules": [{"effect": "mutating", "action": "deny"}]});
        assert_eq!(action(&[any], &own), RuleAction::Deny, "{tool}");
    }
}

#[test]
fn unreadable_arguments_ask_unless_the_layer_denies_the_call() {
    let facts = call("write", r#"{"path": 1}"#);
    let rule = |action: &str| json!({"path": "docs/**", "action": action});
    let deny_all = json!({"action": "deny"});
    for (mode, rules, wanted) in [
        ("auto", json!([rule("allow")]), RuleAction::Ask),
        ("auto", json!([rule("ask")]), RuleAction::Ask),
        ("auto", json!([rule("deny")]), RuleAction::Ask),
        ("careful", json!([rule("deny")]), RuleAction::Ask),
        ("read-only", json!([rule("allow")]), RuleAction::Deny),
        ("read-only", json!([rule("deny")]), RuleAction::Deny),
        ("auto", json!([rule("allow"), deny_all]), RuleAction::Deny),
        (
            "auto",
            json!([rule("deny"), {"action": "allow"}]),
            RuleAction::Ask,
        ),
        (
            "auto",
            json!([{"action": "allow"}, rule("deny")]),
            RuleAction::Allow,
        ),
    ] {
        let layer = json!({"mode": mode, "rules": rules});
        assert_eq!(
            action(std::slice::from_ref(&layer), &facts),
            wanted,
            "{layer}"
        );
    }
}

#[test]
fn the_verdict_names_the_rule_or_the_mode() {
    let why = |value: Value, args: &str| judge(&[layer(value)], &call("bash", args)).why.unwrap();
    let push = r#"{"command": "git push"}"#;
    let about = |action: &str| json!({"rules": [{"tool": "bash", "command": "git push *", "action": action}]});
    assert_eq!(
        why(about("deny"), push),
        r#"the rule {"tool":"bash","command":"git push *","action":"deny"} denies it"#
    );
    assert_eq!(
        why(about("ask"), push),
        r#"the rule {"tool":"bash","command":"git push *","action":"ask"} asks about it"#
    );
    assert_eq!(
        why(about("deny"), "{}}"),
        r#"the rule {"tool":"bash","command":"git push *","action":"deny"} asks, because the arguments do not show whether it matches"#
    );
    assert_eq!(
        why(json!({"mode": "careful"}), push),
        "the mode careful asks about calls that may change something"
    );
    assert_eq!(
        why(json!({"mode": "read-only"}), push),
        "the mode read-only denies calls that may change something"
    );
}
