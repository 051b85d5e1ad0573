use planck_common::{
    command::Start,
    permission::{PermissionMode, Permissions, RuleAction},
};

use super::*;

fn rules(value: serde_json::Value) -> Permissions {
    Permissions {
        rules: serde_json::from_value(value).unwrap(),
        ..Permissions::default()
    }
}

fn with(permissions: Vec<Permissions>) -> TeamContext {
    TeamContext {
        permissions,
        ..context()
    }
}

fn push(action: &str) -> serde_json::Value {
    json!([{"tool": "bash", "command": "git push *", "action": action}])
}

#[test]
fn a_member_has_the_layers_of_the_node_and_its_own() {
    let node = rules(push("deny"));
    let team = members(json!([
        {"type": "lead", "tools": ["spawn_agent"], "permission_mode": "careful"},
        {"type": "coder", "permissions": push("ask")},
        {"type": "reader", "permission_mode": "auto", "permissions": [{"action": "allow"}]},
    ]));
    let specs = resolve(&team, &with(vec![node.clone()])).unwrap();
    let layers = |at: usize| specs.get(at).unwrap().permissions.clone();
    let careful = Permissions::of_mode(PermissionMode::Careful);
    assert_eq!(layers(0), [node.clone(), careful]);
    assert_eq!(layers(1), [node.clone(), rules(push("ask"))]);
    assert_eq!(
        layers(2),
        [node],
        "a layer that allows everything is left out"
    );
    let free = resolve(&[], &with(vec![Permissions::default()])).unwrap();
    assert!(free.iter().all(|spec| spec.permissions.is_empty()));
}

#[test]
fn the_mode_of_a_request_applies_to_every_member() {
    let library = TeamLibrary {
        context: with(vec![rules(push("deny"))]),
        sources: Vec::new(),
        own: PathBuf::new(),
    };
    let request = |mode: Option<PermissionMode>| Start {
        session_id: None,
        name: None,
        team: None,
        members: Some(members(json!([
            {"type": "lead", "tools": ["spawn_agent"], "permission_mode": "auto"},
            {"type": "coder"},
        ]))),
        workspace: None,
        dir: None,
        prompt: None,
        prompt_id: None,
        by: None,
        limits: None,
        permissions: mode,
        client_tools: Vec::new(),
        on_node_death: None,
        metadata: serde_json::Map::new(),
        output: None,
    };
    let layers = |mode| {
        let specs = library.specs(&request(mode), None).unwrap();
        specs
            .into_iter()
            .map(|spec| spec.permissions)
            .collect::<Vec<_>>()
    };
    let node = vec![rules(push("deny"))];
    let mut both = node.clone();
    both.push(Permissions::of_mode(PermissionMode::ReadOnly));
    assert_eq!(layers(Some(PermissionMode::ReadOnly)), [both.clone(), both]);
    assert_eq!(
        layers(Some(PermissionMode::Auto)),
        [node.clone(), node.clone()]
    );
    assert_eq!(layers(None), [node.clone(), node]);
}

#[test]
fn a_spawned_agent_is_never_permitted_more_than_its_spawner() {
    let [elsewhere, here] = [rules(push("deny")), rules(push("ask"))];
    let careful = Permissions::of_mode(PermissionMode::Careful);
    let by = AgentSpec {
        permissions: vec![elsewhere.clone(), here.clone(), careful.clone()],
        ..spawner()
    };
    let layers = |value: serde_json::Value| {
        let member: Member = serde_json::from_value(value).unwrap();
        let context = with(vec![here.clone()]);
        let spawned = spawn(&member, &AgentId::mint(), &by, &context).unwrap();
        spawned.spec.permissions
    };
    assert_eq!(layers(json!({"type": "w"})), by.permissions);
    let wide =
        json!({"type": "w", "permission_mode": "auto", "permissions": [{"action": "allow"}]});
    assert_eq!(layers(wide), by.permissions);
    let allow = json!([{"tool": "bash", "command": "git push *", "action": "allow"}]);
    let narrow = layers(json!({"type": "w", "permission_mode": "read-only", "permissions": allow}));
    assert_eq!(narrow.get(..3).unwrap(), by.permissions);
    let call = crate::agent::permission::CallFacts {
        tool: "bash",
        effect: planck_common::event::ToolEffect::Mutating,
        sidecar: None,
        args: r#"{"command": "git push"}"#,
        dir: "/w",
    };
    let judged = |layers: &[Permissions]| crate::agent::permission::judge(layers, &call).action;
    assert_eq!(judged(&narrow), RuleAction::Deny);
    assert_eq!(judged(&by.permissions), RuleAction::Deny);
}

#[test]
fn mistakes_in_a_members_rules_name_the_field() {
    let told = wrong(json!([{
        "type": "coder",
        "permissions": [{"action": "ask"}, {"path": "docs/", "tool": "", "action": "deny"}],
    }]));
    for part in [
        "member \"coder\", `permissions[1].tool`: it is empty",
        "`permissions[1].path`: no path contains an empty part",
    ] {
        assert!(told.contains(part), "{told}");
    }
    let member: Member = serde_json::from_value(
        json!({"type": "w", "permissions": [{"tool": "", "action": "ask"}]}),
    )
    .unwrap();
    let errors = spawn(&member, &AgentId::mint(), &spawner(), &context()).unwrap_err();
    assert!(
        errors
            .iter()
            .any(|error| error.to_string().contains("permissions[0].tool"))
    );
}

#[test]
fn a_template_may_have_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let member = |rule: serde_json::Value| {
        json!([{"type": "coder", "permission_mode": "careful", "permissions": [rule]}]).to_string()
    };
    let file = super::write(
        folder.path(),
        "TEAM.json",
        &member(json!({"tool": "bash", "action": "deny"})),
    );
    let template = load(&TemplateFile::typed(&file)).unwrap();
    let [coder] = template.members.as_slice() else {
        panic!("{template:?}");
    };
    assert_eq!(coder.permission_mode, Some(PermissionMode::Careful));
    assert_eq!(coder.permissions.len(), 1);
    let wrong = member(json!({"tools": "bash", "action": "deny"}));
    let file = super::write(folder.path(), "TEAM.json", &wrong);
    let errors = load(&TemplateFile::typed(&file)).unwrap_err().to_string();
    assert!(
        errors.contains("`permissions`: unknown field `tools`"),
        "{errors}"
    );
}
