mod permissions;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use planck_common::{
    AgentId,
    spec::{AgentLimits, AgentRole, AgentSpec, Grant, Member, ModelRef},
};
use serde_json::json;

use super::*;
use planck_toolbox::project::{NameClash, ProjectSource};

fn context() -> TeamContext {
    TeamContext {
        source: "TEAM.json".into(),
        models: KnownModels {
            providers: BTreeSet::new(),
            default: Some(model("anthropic", "sonnet")),
            entries: BTreeMap::from([("fast".into(), model("openai", "mini"))]),
            addresses: None,
        },
        limits: AgentLimits {
            max_requests_per_turn: Some(200),
            max_tokens: Some(9),
            ..AgentLimits::default()
        },
        permissions: Vec::new(),
        user_md: None,
        agents_md: Some("Be kind.".into()),
        clashes: Default::default(),
        servers: Default::default(),
        skills: BTreeMap::from([
            ("pdf".into(), "- pdf: reads PDFs".into()),
            ("sql".into(), "- sql: asks databases".into()),
        ]),
    }
}

fn model(provider: &str, id: &str) -> ModelRef {
    ModelRef {
        provider: provider.into(),
        id: id.into(),
        base_url: None,
    }
}

fn members(value: serde_json::Value) -> Vec<Member> {
    serde_json::from_value(value).unwrap()
}

fn resolved(value: serde_json::Value) -> Vec<AgentSpec> {
    resolve(&members(value), &context()).unwrap()
}

fn wrong(value: serde_json::Value) -> String {
    let errors = resolve(&members(value), &context()).unwrap_err();
    TemplateErrors(errors).to_string()
}

#[test]
fn without_members_there_is_one_agent_with_the_defaults() {
    let specs = resolve(&[], &context()).unwrap();
    let [only] = specs.as_slice() else {
        panic!("{specs:?}")
    };
    assert_eq!(
        only.tools,
        ["bash", "edit", "list_skills", "load_skill", "read", "write"]
    );
    assert_eq!(
        (only.name.as_str(), only.role),
        ("agent", AgentRole::Worker)
    );
    assert_eq!(only.skills, ["pdf", "sql"]);
    assert!(
        only.system_prompt
            .starts_with("# Instructions of this project\n\nBe kind.\n\nYou are an agent")
    );
    assert!(
        only.system_prompt
            .ends_with("- pdf: reads PDFs\n- sql: asks databases")
    );
    let without = TeamContext {
        skills: BTreeMap::new(),
        ..context()
    };
    assert_eq!(
        resolve(&[], &without).unwrap()[0].tools,
        ["bash", "edit", "read", "write"]
    );
}

#[test]
fn a_team_has_its_orchestrator_first_and_the_tools_of_a_team() {
    let specs = resolved(json!([
        {"type": "coder", "tools": ["write", "read"]},
        {"type": "lead", "tools": ["spawn_agent", "call_agent", "destroy_agent"], "model_id": "fast"},
        {"type": "coder", "limits": {"max_tokens": 5}, "skills": ["pdf"], "tools": []},
    ]));
    let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["lead", "coder", "coder-2"]);
    assert_eq!(specs[0].role, AgentRole::Orchestrator);
    assert_eq!(
        specs[0].tools,
        [
            "ask_agent",
            "delegate_task",
            "destroy_agent",
            "list_team",
            "send_response",
            "spawn_agent"
        ]
    );
    assert_eq!(specs[0].model, model("openai", "mini"));
    assert_eq!(
        specs[0].grant.tools,
        ["ask_agent", "delegate_task", "list_team", "send_response"]
    );
    assert_eq!(
        specs[1].tools,
        [
            "ask_agent",
            "delegate_task",
            "list_team",
            "read",
            "send_response",
            "write"
        ]
    );
    assert_eq!(
        (
            specs[2].limits.max_tokens,
            specs[2].limits.max_requests_per_turn
        ),
        (Some(5), Some(200))
    );
    assert!(
        specs[2].tools.contains(&"load_skill".to_owned())
            && !specs[2].tools.contains(&"read".to_owned())
    );
}

#[test]
fn every_mistake_of_a_team_is_reported() {
    let errors = wrong(json!([
        {"type": "a", "provider": "antropic", "model_id": "x"},
        {"type": "", "skills": ["pfd"]},
        {"type": "c", "limits": {"max_tokens": 0}, "compactor": "a.b.c"},
        {"type": "d", "provider": "openai"},
    ]));
    insta::assert_snapshot!(errors, @r##"
    TEAM.json, `tools`: no member is the orchestrator; give `spawn_agent` to exactly one member
    TEAM.json, member "a", `provider`: unknown provider `antropic`; did you mean `anthropic`?
    TEAM.json, member "#2", `type`: "" is no type; write 1 to 64 printable characters
    TEAM.json, member "#2", `skills`: unknown skill `pfd`; did you mean `pdf`?
    TEAM.json, member "c", `limits.max_tokens`: 0 would let nothing happen; write more, or take it out for no limit
    TEAM.json, member "c", `compactor`: `a.b.c` names no compactor; write `<sidecar>.<compactor>`, or a name that only one sidecar has
    TEAM.json, member "d", `model_id`: no model of `openai` is named; set a key (ANTHROPIC_API_KEY, OPENAI_API_KEY, GOOGLE_API_KEY), pass `--model PROVIDER:MODEL` (ollama and llama_cpp need no key), set `models.default` in the configuration, or give a member `provider` and `model_id`
    "##);
    let two = wrong(
        json!([{"type": "a", "tools": ["spawn_agent"]}, {"type": "b", "tools": ["spawn_agent"]}]),
    );
    assert!(
        two.contains("several members are orchestrators: a, b"),
        "{two}"
    );
}

fn spawner() -> AgentSpec {
    let mut spec = resolved(
        json!([{"type": "lead", "tools": ["spawn_agent", "read", "bash"], "limits": {"max_tokens": 7}, "skills": ["pdf"]}]),
    )
    .remove(0);
    spec.model = model("google", "flash");
    spec
}

#[test]
fn a_spawned_agent_lists_as_many_tools_as_its_spawner_unless_it_names_a_number() {
    let members = json!([{"type": "lead", "tools": ["spawn_agent"], "listed_tools": 7}]);
    let lead = resolved(members).remove(0);
    assert_eq!(lead.listed_tools, Some(7));
    let listed = |value| spawned(value, &lead).spec.listed_tools;
    assert_eq!(listed(json!({"type": "helper"})), Some(7));
    assert_eq!(
        listed(json!({"type": "helper", "listed_tools": 0})),
        Some(0)
    );
    assert_eq!(
        spawned(json!({"type": "helper"}), &spawner())
            .spec
            .listed_tools,
        None
    );
}

fn spawned(value: serde_json::Value, by: &AgentSpec) -> Spawned {
    let member: Member = serde_json::from_value(value).unwrap();
    spawn(&member, &AgentId::parse("lead").unwrap(), by, &context()).unwrap()
}

#[test]
fn a_spawned_agent_inherits_and_is_granted_tools() {
    let plain = spawned(json!({"type": "helper"}), &spawner());
    assert_eq!(
        plain.spec.tools,
        [
            "ask_agent",
            "bash",
            "delegate_task",
            "list_team",
            "read",
            "send_response"
        ]
    );
    assert_eq!(
        (plain.spec.model.clone(), plain.spec.limits.max_tokens),
        (model("google", "flash"), Some(7))
    );
    assert_eq!(
        (plain.spec.role, plain.spec.spawned_by),
        (AgentRole::Worker, AgentId::parse("lead").ok())
    );
    assert!(plain.not_granted.is_empty());

    let asks = json!({"type": "helper", "tools": ["read", "write", "spawn_agent", "call_agent"], "skills": ["pdf", "sql"], "model_id": "pro"});
    let greedy = spawned(asks, &spawner());
    assert_eq!(greedy.not_granted, ["write", "spawn_agent", "sql"]);
    assert_eq!(greedy.spec.skills, ["pdf"]);
    assert_eq!(greedy.spec.model, model("google", "pro"));
    assert_eq!(greedy.spec.role, AgentRole::Worker);
}

#[test]
fn a_named_grant_replaces_what_the_spawner_has() {
    let grant = Grant {
        tools: vec!["write".into(), "spawn_agent".into()],
        skills: vec![],
    };
    let by = AgentSpec { grant, ..spawner() };
    let helper = spawned(
        json!({"type": "helper", "tools": ["write", "read", "spawn_agent"]}),
        &by,
    );
    assert!(helper.spec.tools.contains(&"write".to_owned()));
    assert_eq!(helper.not_granted, ["read", "spawn_agent"]);
}

fn write(folder: &std::path::Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_template_is_an_array_or_an_object_with_prompts_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let teams = folder.path().to_path_buf();
    write(
        &teams,
        "build/TEAM.json",
        r#"[{"type": "coder", "system_prompt": "prompts/coder.md"}]"#,
    );
    write(&teams, "build/prompts/coder.md", "Write code.");
    write(
        &teams,
        "other/TEAM.json",
        r#"{"name": "others", "description": "d", "members": [{"type": "a", "system_prompt": "Ends in coder.md and is text.md"}]}"#,
    );
    let sources = [ProjectSource::named(&teams)];
    let file = find(&sources, "build").unwrap().unwrap();
    let build = load(&file).unwrap();
    assert_eq!(
        (
            build.name.as_str(),
            build.members[0].system_prompt.as_deref()
        ),
        ("build", Some("Write code."))
    );
    let other = load(&TemplateFile::typed(&teams.join("other"))).unwrap();
    assert_eq!(
        (other.name.as_str(), other.description.as_str()),
        ("others", "d")
    );
    assert_eq!(
        other.members[0].system_prompt.as_deref(),
        Some("Ends in coder.md and is text.md")
    );
    assert_eq!(
        list(&sources)
            .into_iter()
            .map(|(name, _)| name)
            .collect::<Vec<_>>(),
        ["build", "other"]
    );
    assert!(find(&sources, "../build").unwrap().is_none());
}

#[test]
fn a_prompt_does_not_leave_the_teams_folder() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "secret.md", "secret");
    let text = r#"[{"type": "a", "system_prompt": "../secret.md"}, {"type": "b", "system_prompt": "link.md"}, {"type": "c", "system_prompt": "none.txt"}]"#;
    write(folder.path(), "team/TEAM.json", text);
    std::os::unix::fs::symlink(
        folder.path().join("secret.md"),
        folder.path().join("team/link.md"),
    )
    .unwrap();
    let errors = load(&TemplateFile::typed(&folder.path().join("team"))).unwrap_err();
    assert_eq!(errors.0.len(), 3, "{errors}");
    assert!(
        errors.0[0].what.contains("outside the team's folder")
            && errors.0[1].what.contains("a link"),
        "{errors}"
    );
}

#[test]
fn every_mistake_of_a_file_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"{"nam": "x", "members": [{"type": 3, "tolls": []}, 7, {"type": "ok", "limits": {"max_token": 1}}]}"#;
    let file = write(folder.path(), "TEAM.json", text);
    let errors = load(&TemplateFile::typed(&file)).unwrap_err();
    let fields: Vec<_> = errors
        .0
        .iter()
        .map(|error| (error.member.as_deref(), error.field.as_deref()))
        .collect();
    assert_eq!(
        fields,
        [
            (None, Some("nam")),
            (Some("#1"), Some("tolls")),
            (Some("#1"), Some("type")),
            (Some("#2"), None),
            (Some("ok"), Some("limits"))
        ]
    );
    assert!(
        errors.to_string().contains("did you mean `tools`?"),
        "{errors}"
    );
    assert!(
        load(&TemplateFile::typed(&folder.path().join("none")))
            .unwrap_err()
            .to_string()
            .contains("cannot read it")
    );
}

#[test]
fn a_clash_is_a_mistake_of_the_member_that_names_it() {
    let clash = |kind, name: &str| NameClash {
        kind,
        name: name.into(),
        own: "/home/x".into(),
        project: "/repo/x".into(),
    };
    let context = TeamContext {
        clashes: [clash("tool", "lint"), clash("skill", "review")].into(),
        ..context()
    };
    let team = members(json!([{"type": "a", "tools": ["lint", "read"], "skills": ["review"]}]));
    let told = TemplateErrors(resolve(&team, &context).unwrap_err()).to_string();
    for words in [
        "two tools `lint`, /home/x and the project's /repo/x; rename",
        "two skills `review`",
    ] {
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn an_agents_file_must_be_a_regular_file_in_the_repository() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    write(root, ".git/HEAD", "");
    write(root, ".env", "KEY=secret");
    for target in ["/proc/self/environ", ".env", "nowhere"] {
        std::os::unix::fs::symlink(target, root.join("AGENTS.md")).unwrap();
        let agents_file::Instructions { text, warning } = agents_file::load(root, None);
        assert!(
            text.is_none() && warning.unwrap().contains("AGENTS.md: it is a link"),
            "{target}"
        );
        fs::remove_file(root.join("AGENTS.md")).unwrap();
    }
    write(root, "AGENTS.md", &"x".repeat(70_000));
    let agents_file::Instructions { text, warning } = agents_file::load(root, None);
    assert!(text.unwrap().len() == 65_536 && warning.unwrap().contains("first 64 KiB"));
}

#[test]
fn a_claude_file_is_read_where_a_folder_has_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    write(root, ".git/HEAD", "");
    write(root, "CLAUDE.md", "of claude");
    let text = || agents_file::of(root, None);
    assert_eq!(text().as_deref(), Some("of claude"));
    std::os::unix::fs::symlink("CLAUDE.md", root.join("AGENTS.md")).unwrap();
    let loaded = agents_file::load(root, None);
    assert_eq!(loaded.text.as_deref(), Some("of claude"));
    assert!(loaded.warning.is_none());
    fs::remove_file(root.join("AGENTS.md")).unwrap();
    write(root, "AGENTS.md", "of agents");
    assert_eq!(text().as_deref(), Some("of agents"));
}

#[test]
fn the_users_own_instructions_come_first() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(agents_file::of_user(folder.path()), None);
    write(folder.path(), "AGENTS.md", "Be brief.");
    let context = TeamContext {
        user_md: agents_file::of_user(folder.path()),
        agents_md: Some("Be kind.".into()),
        ..TeamContext::default()
    };
    assert_eq!(
        context.prompt(Some("Work."), &[]),
        "# Instructions of the user\n\nBe brief.\n\n# Instructions of this project\n\nBe kind.\n\nWork."
    );
}

#[test]
fn the_search_for_an_agents_file_ends_below_a_folder_of_another_user() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    write(root, ".git/HEAD", "");
    write(root, "AGENTS.md", "of the neighbour");
    write(root, "mine/x", "");
    let mine = root.join("mine");
    let effective = nix::unistd::Uid::effective();
    let load_as = |uid| agents_file::load_as(&[uid], &mine, None).text;
    assert_eq!(load_as(effective).as_deref(), Some("of the neighbour"));
    let neighbour = nix::unistd::Uid::from_raw(effective.as_raw() + 23_456);
    assert_eq!(load_as(neighbour), None);
    write(root, "mine/AGENTS.md", "of mine");
    assert_eq!(load_as(neighbour).as_deref(), Some("of mine"));
}

#[test]
fn an_agents_file_is_read_inside_its_workspace_only() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path();
    write(top, ".git/HEAD", "");
    write(top, "AGENTS.md", "above");
    write(top, "elsewhere/AGENTS.md", "elsewhere");
    write(top, "shared/project/x", "");
    let shared = top.join("shared");
    std::os::unix::fs::symlink("../elsewhere", shared.join("esc")).unwrap();
    let load = |dir: &str| agents_file::load(&shared.join(dir), Some(&shared));
    let agents_file::Instructions { text, warning } = load("esc");
    assert!(text.is_none() && warning.unwrap().contains("out of the workspace"));
    assert_eq!(load("project").text, None);
    write(&shared, "AGENTS.md", "shared");
    assert_eq!(load("project").text.as_deref(), None);
    write(&shared, ".git/HEAD", "");
    assert_eq!(load("project").text.as_deref(), Some("shared"));
}

#[test]
fn the_nearest_agents_file_up_to_the_repositorys_root_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    write(root, "AGENTS.md", "outside");
    write(root, "repo/.git/HEAD", "");
    write(root, "repo/src/deep/x", "");
    let deep = root.join("repo/src/deep");
    assert_eq!(agents_file::of(&deep, None), None);
    write(root, "repo/AGENTS.md", "of the repository\n");
    assert_eq!(
        agents_file::of(&deep, None).as_deref(),
        Some("of the repository")
    );
    write(root, "repo/src/AGENTS.md", "of src");
    assert_eq!(agents_file::of(&deep, None).as_deref(), Some("of src"));
    assert_eq!(agents_file::of(root, None).as_deref(), Some("outside"));
    assert_eq!(
        agents_file::of(&root.join("repo"), None).as_deref(),
        Some("of the repository")
    );
}
