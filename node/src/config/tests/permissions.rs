use std::time::Duration;

use planck_common::permission::{PermissionMode, RuleAction};

use super::{PROJECT, Place, USER, load};

const RULES: &str = r#"
[permissions]
mode = "careful"

[[permissions.rules]]
tool = "bash"
command = "git push *"
action = "deny"

[[permissions.rules]]
path = "docs/**"
action = "allow"
"#;

#[test]
fn rules_are_a_list_of_tables_or_json() {
    let place = Place::new().with(USER, RULES);
    let layer = place.load(&[]).unwrap().config.permissions.layer();
    assert_eq!(layer.mode, PermissionMode::Careful);
    let actions: Vec<RuleAction> = layer.rules.iter().map(|rule| rule.action).collect();
    assert_eq!(actions, [RuleAction::Deny, RuleAction::Allow]);
    let (name, json) = (
        "PLANCK_PERMISSIONS_RULES",
        r#"[{"command":"echo 'a, b'","action":"ask"}]"#,
    );
    let loaded = place.load(&[(name, json), ("PLANCK_PERMISSIONS_MODE", "read-only")]);
    let loaded = loaded.unwrap();
    let layer = loaded.config.permissions.layer();
    assert_eq!(layer.mode, PermissionMode::ReadOnly);
    assert_eq!(layer.rules.len(), 1);
    let shown = loaded.shown();
    let rules = shown
        .iter()
        .find(|value| value.key.to_string() == "permissions.rules");
    assert_eq!(rules.unwrap().value.as_deref(), Some(json));
    let default = Place::new().load(&[]).unwrap().config.permissions.layer();
    assert!(default.allow_everything());
}

#[test]
fn a_mistake_in_a_rule_names_the_rule_and_the_field() {
    for (rules, told) in [
        (
            "[{ tool = 'bash', action = 'refuse' }]",
            "[0]: unknown variant `refuse`, expected one of `allow`, `ask`, `deny`",
        ),
        ("[{ tool = 'bash' }]", "[0]: missing field `action`"),
        (
            "[{ action = 'ask' }, { name = 'bash', action = 'ask' }]",
            "[1]: unknown field `name`",
        ),
        (
            "[{ action = 'ask' }, { tool = '', action = 'ask' }]",
            "[1].tool: it is empty",
        ),
        (
            "[{ command = 'a; b', action = 'deny' }]",
            "[0].command: not the words of a simple command",
        ),
        ("'bash'", "is not a list of rules"),
    ] {
        let place = Place::new().with(USER, &format!("[permissions]\nrules = {rules}\n"));
        let problems = place.problems(&[]);
        assert!(
            problems.contains(told) && problems.contains("permissions.rules"),
            "{problems}"
        );
    }
    let place = Place::new().with(USER, "permissions.mode = 'strict'\n");
    let problems = place.problems(&[]);
    assert!(
        problems.contains("auto, careful or read-only"),
        "{problems}"
    );
}

#[test]
fn a_trusted_project_cannot_set_permissions() {
    let place = Place::new()
        .with(USER, "permissions.mode = 'read-only'\n")
        .with(PROJECT, "permissions.mode = 'auto'\n");
    let mut sources = place.sources(&[]);
    sources.project = Some(place.trusted());
    let problems = load(&sources).unwrap_err().to_string();
    assert!(
        problems.contains("permissions.mode") && problems.contains("a project cannot set"),
        "{problems}"
    );
    let place = place.with(PROJECT, "[[permissions.rules]]\naction = 'allow'\n");
    sources.project = Some(place.trusted());
    assert!(load(&sources).is_err());
    let place = place.with(PROJECT, "waits.expire_after = '1h'\n");
    sources.project = Some(place.trusted());
    let config = load(&sources).unwrap().config;
    assert_eq!(config.permissions.mode, PermissionMode::ReadOnly);
}

#[test]
fn waits_expire_after_a_day_unless_the_period_is_0() {
    let expiry = |environment: &[(&str, &str)]| {
        let loaded = Place::new().load(environment).unwrap();
        loaded.config.waits.expiry()
    };
    let hours = |count: u64| Some(Duration::from_secs(count * 3_600));
    assert_eq!(expiry(&[]), hours(24));
    assert_eq!(expiry(&[("PLANCK_WAITS_EXPIRE_AFTER", "2h")]), hours(2));
    assert_eq!(expiry(&[("PLANCK_WAITS_EXPIRE_AFTER", "0s")]), None);
}

#[test]
fn a_trusted_project_cannot_open_the_http_front() {
    let place = Place::new().with(PROJECT, "http.listen = '0.0.0.0:8400'\n");
    let mut sources = place.sources(&[]);
    sources.project = Some(place.trusted());
    let problems = load(&sources).unwrap_err().to_string();
    assert!(
        problems.contains("http.listen") && problems.contains("a project cannot set"),
        "{problems}"
    );
}
