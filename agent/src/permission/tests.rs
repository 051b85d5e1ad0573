mod commands;
mod layers;

use serde_json::{Value, json};

use planck_common::{event::ToolEffect, permission::Rule};

use super::{CallFacts, Match, PathPattern, check, matches, rule_for};

const DIR: &str = "/home/me/project";

fn rule(value: Value) -> Rule {
    serde_json::from_value(value).unwrap()
}

fn call<'a>(tool: &'a str, args: &'a str) -> CallFacts<'a> {
    CallFacts {
        tool,
        effect: ToolEffect::Mutating,
        sidecar: None,
        args,
        dir: DIR,
    }
}

#[test]
fn a_rule_matches_a_call_that_fits_every_field() {
    let facts = CallFacts {
        sidecar: Some("tickets"),
        ..call("ticket_close", r#"{"path": "a", "command": "ls"}"#)
    };
    for (value, wanted) in [
        (json!({}), Match::Yes),
        (json!({"tool": "ticket_close"}), Match::Yes),
        (json!({"tool": "ticket_*"}), Match::Yes),
        (json!({"tool": "*close"}), Match::Yes),
        (json!({"tool": "t*_*e"}), Match::Yes),
        (json!({"tool": "*"}), Match::Yes),
        (json!({"tool": "ticket"}), Match::No),
        (json!({"tool": "Ticket_*"}), Match::No),
        (json!({"effect": "mutating"}), Match::Yes),
        (json!({"effect": "idempotent"}), Match::No),
        (json!({"sidecar": "tickets"}), Match::Yes),
        (json!({"sidecar": "ticket"}), Match::No),
        (json!({"path": "a", "command": "ls"}), Match::Yes),
        (json!({"path": "a", "command": "cat"}), Match::No),
        (json!({"path": "b", "command": "ls"}), Match::No),
        (json!({"tool": "bash", "path": "a"}), Match::No),
    ] {
        let mut value = value;
        value["action"] = "allow".into();
        assert_eq!(matches(&rule(value.clone()), &facts), wanted, "{value}");
    }
    let own = call("ticket_close", "{}");
    let named = json!({"sidecar": "tickets", "action": "deny"});
    assert_eq!(matches(&rule(named), &own), Match::No);
}

#[test]
fn a_path_is_compared_below_the_working_directory() {
    let (yes, no, unknown) = (Match::Yes, Match::No, Match::Unreadable);
    for (pattern, path, allow, deny) in [
        ("docs/**", "docs/a.md", yes, yes),
        ("docs/**", "docs/a/b/c.md", yes, yes),
        ("docs/**", "docs", yes, yes),
        ("docs/**", "docs2/a.md", no, no),
        ("docs/**", "src/docs/a.md", no, no),
        ("docs/**", "docs/../src/a.rs", unknown, unknown),
        ("docs/**", "./docs//./a.md", yes, yes),
        ("docs/**", "/home/me/project/docs/a.md", yes, yes),
        (
            "docs/**",
            "/home/me/project/../project/docs/a",
            unknown,
            unknown,
        ),
        ("docs/**", "../project/docs/a.md", yes, yes),
        ("docs/**", "/docs/a.md", no, no),
        ("docs/**", "../docs/a.md", no, no),
        ("docs/**", "../../docs/../docs/a", unknown, unknown),
        ("docs/**", "/../home/me/project/docs/a", yes, yes),
        ("docs/*", "docs/a.md", yes, yes),
        ("docs/*", "docs/a/b.md", no, no),
        ("docs/*.md", "docs/a.md", yes, yes),
        ("docs/*.md", "docs/a.rs", no, no),
        ("docs/**/*.md", "docs/a.md", yes, yes),
        ("docs/**/*.md", "docs/a/b/c.md", yes, yes),
        ("docs/**/*.md", "docs/a/b/c.rs", no, no),
        ("**/.env", ".env", yes, yes),
        ("**/.env", "a/b/.env", yes, yes),
        ("**/.env", "a/b/x.env", no, no),
        // A strict rule is about such a file everywhere; an allowance ends at the directory.
        ("**/.env", "/home/me/.env", no, yes),
        ("**/.env", "../.env", no, yes),
        ("**", "a", yes, yes),
        ("**", ".", yes, yes),
        ("**", "/etc/passwd", no, yes),
        ("*", "a/b", no, no),
        ("a", "a/", yes, yes),
        (".", "", yes, yes),
        (".", "a/..", unknown, unknown),
        ("src/**", "docs/link/../main.rs", unknown, unknown),
        ("/etc/**", "a/../../../../etc/passwd", unknown, unknown),
        (".", "a", no, no),
        ("/etc/**", "/etc/passwd", yes, yes),
        ("/etc/**", "../../../etc/passwd", yes, yes),
        ("/etc/**", "../../../../../etc/passwd", yes, yes),
        ("/home/me/project/docs/**", "docs/a.md", yes, yes),
        ("/**", "docs/a.md", yes, yes),
        ("docs/a", "docs/A", no, no),
        ("docs/a", "docs/a\u{0}", unknown, unknown),
        // A pattern that no check accepted.
        ("docs/**.md", "docs/a.md", unknown, unknown),
    ] {
        for (action, wanted) in [("allow", allow), ("ask", deny), ("deny", deny)] {
            let rule = rule(json!({"path": pattern, "action": action}));
            let args = json!({"path": path}).to_string();
            let found = matches(&rule, &call("write", &args));
            assert_eq!(found, wanted, "{action} {pattern}: {path}");
        }
    }
}

#[test]
fn a_path_without_a_known_directory_is_compared_as_far_as_possible() {
    for (pattern, path, wanted) in [
        ("docs/**", "docs/a.md", Match::Yes),
        ("docs/**", "src/../docs/a.md", Match::Unreadable),
        ("docs/**", "./docs//a.md", Match::Yes),
        ("docs/**", "../docs/a.md", Match::Unreadable),
        ("docs/**", "/docs/a.md", Match::Unreadable),
        ("/docs/**", "/docs/a.md", Match::Yes),
        ("/docs/**", "docs/a.md", Match::Unreadable),
    ] {
        for (action, dir) in [("allow", ""), ("deny", "relative")] {
            let rule = rule(json!({"path": pattern, "action": action}));
            let args = json!({"path": path}).to_string();
            let facts = CallFacts {
                dir,
                ..call("write", &args)
            };
            assert_eq!(matches(&rule, &facts), wanted, "{action} {pattern}: {path}");
        }
    }
}

#[test]
fn arguments_that_do_not_show_what_a_rule_needs_are_unreadable() {
    for (args, path, command) in [
        ("{}", Match::No, Match::No),
        (r#"{"path": null}"#, Match::No, Match::No),
        (r#"{"path": ["a"]}"#, Match::Unreadable, Match::No),
        (r#"{"command": 1}"#, Match::No, Match::Unreadable),
        ("[]", Match::Unreadable, Match::Unreadable),
        ("{", Match::Unreadable, Match::Unreadable),
        (
            r#"{"path": "a", "path": "b"}"#,
            Match::Unreadable,
            Match::Unreadable,
        ),
    ] {
        for action in ["allow", "ask", "deny"] {
            let about = |field: &str| rule(json!({field: "a", "action": action}));
            assert_eq!(matches(&about("path"), &call("x", args)), path, "{args}");
            assert_eq!(
                matches(&about("command"), &call("x", args)),
                command,
                "{args}"
            );
            let other = rule(json!({"tool": "y", "path": "a", "action": action}));
            assert_eq!(matches(&other, &call("x", args)), Match::No, "{args}");
        }
    }
}

#[test]
fn a_pattern_with_many_stars_is_compared_quickly() {
    let pattern = "**/".repeat(1_000) + "*a*a*a*a*b";
    let path = "a/".repeat(1_000) + &"a".repeat(1_000);
    let rule = rule(json!({"path": pattern, "action": "deny"}));
    let args = json!({"path": path}).to_string();
    assert_eq!(matches(&rule, &call("write", &args)), Match::No);
}

#[test]
fn the_rule_for_a_call_matches_nothing_wider() {
    let shown = |tool: &str, args: Value| {
        rule_for(&call(tool, &args.to_string())).map(|rule| serde_json::to_value(rule).unwrap())
    };
    for (tool, args, wanted) in [
        (
            "bash",
            json!({"command": "cargo test -p 'a b'"}),
            Some(json!({"tool": "bash", "command": "cargo test -p 'a b'"})),
        ),
        (
            "bash",
            json!({"command": "ls '*'"}),
            Some(json!({"tool": "bash", "command": "ls '*'"})),
        ),
        (
            "bash",
            json!({"command": "ls", "cwd": DIR}),
            Some(json!({"tool": "bash", "command": "ls"})),
        ),
        ("bash", json!({"command": "ls", "cwd": "sub"}), None),
        ("bash", json!({"command": "ls *"}), None),
        ("bash", json!({"command": "ls; rm -r ."}), None),
        ("bash", json!({"command": ""}), None),
        ("bash", json!({"command": 1}), None),
        (
            "write",
            json!({"path": "./a.md", "content": "x"}),
            Some(json!({"tool": "write", "path": "a.md"})),
        ),
        (
            "write",
            json!({"path": "docs/../a.md", "content": "x"}),
            None,
        ),
        (
            "write",
            json!({"path": "../b"}),
            Some(json!({"tool": "write", "path": "/home/me/b"})),
        ),
        (
            "list",
            json!({"path": "."}),
            Some(json!({"tool": "list", "path": "."})),
        ),
        ("write", json!({"path": "a*"}), None),
        ("write", json!({"path": "~/a"}), None),
        ("write", json!({"path": ["a"]}), None),
        ("write", json!(["a"]), None),
        (
            "deploy",
            json!({"to": "prod"}),
            Some(json!({"tool": "deploy"})),
        ),
        ("*", json!({}), None),
    ] {
        let mut wanted = wanted;
        if let Some(rule) = &mut wanted {
            rule["action"] = "allow".into();
        }
        assert_eq!(shown(tool, args.clone()), wanted, "{tool} {args}");
    }
    let facts = CallFacts {
        sidecar: Some("ops"),
        ..call("deploy", "{}")
    };
    assert_eq!(rule_for(&facts).unwrap().sidecar.as_deref(), Some("ops"));
}

#[test]
fn the_check_names_the_field_and_the_way_out() {
    let told = |value: Value| {
        let mut value = value;
        value["action"] = "ask".into();
        check(&[rule(value)])
            .into_iter()
            .map(|mistake| format!("{}: {}; {}", mistake.field, mistake.what, mistake.remedy))
            .collect::<Vec<_>>()
            .join("\n")
    };
    for fine in [
        json!({}),
        json!({"tool": "ticket_*", "sidecar": "tickets", "effect": "pure"}),
        json!({"tool": "*"}),
        json!({"path": "docs/**/a b/*.md"}),
        json!({"path": "/"}),
        json!({"path": "**"}),
        json!({"command": "git push *"}),
        json!({"command": "*"}),
        json!({"command": "git commit -m '*'"}),
    ] {
        assert_eq!(told(fine.clone()), "", "{fine}");
    }
    for (value, field) in [
        (json!({"tool": ""}), "[0].tool: it is empty"),
        (json!({"tool": "a**"}), "[0].tool: `**` is only for paths"),
        (json!({"tool": "ops.deploy"}), "[0].tool: no tool can"),
        (json!({"sidecar": "op*"}), "[0].sidecar: no sidecar can"),
        (json!({"path": ""}), "[0].path: it is empty"),
        (json!({"path": "docs/"}), "[0].path: no path contains"),
        (json!({"path": "./docs"}), "[0].path: no path contains"),
        (json!({"path": "a/../b"}), "[0].path: no path contains"),
        (json!({"path": "docs/**.md"}), "[0].path: `**` stands for"),
        (json!({"path": "docs/***"}), "[0].path: `**` stands for"),
        (
            json!({"path": "~/.ssh/**"}),
            "[0].path: `~` is not expanded",
        ),
        (json!({"command": ""}), "[0].command: it is empty"),
        (json!({"command": "a && b"}), "[0].command: not the words"),
        (json!({"command": " ls"}), "[0].command: not the words"),
        (
            json!({"command": "git * push"}),
            "[0].command: only the last",
        ),
        (json!({"command": "ls *.md"}), "[0].command: only the last"),
        (json!({"command": "A=b ls"}), "[0].command: the first word"),
        (json!({"path": "a".repeat(5_000)}), "[0].path: longer than"),
    ] {
        let told = told(value.clone());
        assert!(
            told.starts_with(field) && told.contains("; write"),
            "{value}: {told}"
        );
    }
    let many = vec![rule(json!({"action": "ask"})); 201];
    assert_eq!(check(&many).len(), 1);
    assert_eq!(check(many.get(..200).unwrap()), []);
    assert!(PathPattern::parse("docs/**").is_ok());
}
