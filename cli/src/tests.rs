mod documents;

use clap::{CommandFactory as _, Parser as _};
use planck_common::reply::{Code, Refusal};

use super::*;
use planck_client::ClientError;
use planck_node::team::TemplateFile;
use planck_toolbox::project::ProjectSource;

#[test]
fn the_arguments_are_consistent() {
    Planck::command().debug_assert();
}

#[test]
fn the_help_of_each_command_has_examples() {
    assert_has_examples("", &Planck::command());
}

fn assert_has_examples(above: &str, command: &clap::Command) {
    let name = format!("{above} {}", command.get_name());
    let after = command.get_after_help().map(ToString::to_string);
    assert!(
        after.is_some_and(|after| after.contains("Examples:")),
        "the help of `{}` has no example",
        name.trim()
    );
    let below = command.get_subcommands();
    below
        .filter(|command| command.get_name() != "help" && !command.is_hide_set())
        .for_each(|command| assert_has_examples(&name, command));
}

#[test]
fn usual_command_lines_are_parsed() {
    for line in [
        "planck demo --keep",
        "planck run hello",
        "planck run -p -q -o json --continue hello",
        "planck run -c -o jsonl hello",
        "planck chat --continue",
        "planck run --team examples/teams/x --model anthropic:sonnet --session bold-oak hello",
        "planck chat --session bold-oak",
        "planck",
        "planck session ls --state failed --since 2h --name b* --limit 5 -o json",
        "planck session rewind bold-oak",
        "planck session attach bold-oak --from 1 -o jsonl",
        "planck session prune --older-than 30d --dry-run",
        "planck session rewind bold-oak --to 7",
        "planck session prompt bold-oak hi --mode steer --agent coder",
        "planck agent stop a1",
        "planck team validate",
        "planck team new reviewers --dir x",
        "planck sidecar new --lang python weather --sdk 1.0.0",
        "planck mcp bridge time --env TOKEN --trust-hints -- uvx mcp-server-time",
        "planck team validate -o json",
        "planck doctor -o json",
        "planck nodes ls --all",
        "planck nodes drain n1 --timeout 2m",
        "planck events agent.> -o jsonl",
        "planck config show --origin",
        "planck schema message.member",
        "planck node --nats nats://x",
        "planck completion bash",
        "planck trust . --revoke",
        "planck trust --list",
        "planck trust some/where --yes",
        "planck run --no-project hello",
        "planck --no-project node",
        "planck doctor --nats nats://x --store sqlite:x",
    ] {
        Planck::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    for line in [
        "planck session ls --since soon",
        "planck session prune --older-than soon",
        "planck run a b",
        "planck nodes drain",
        "planck sidecar new weather",
        "planck run -c --session x y",
    ] {
        assert!(Planck::try_parse_from(line.split(' ')).is_err(), "{line}");
    }
}

#[test]
fn each_error_has_its_exit_code() {
    let refused = |code| anyhow::Error::from(ClientError::Refused(Refusal::new(code, "no")));
    for (error, number) in [
        (anyhow::anyhow!("any"), 1),
        (refused(Code::Busy), 1),
        (exit::UsageError("how".into()).into(), 2),
        (exit::NotFound("who".into()).into(), 3),
        (planck_node::config::Problems(Vec::new()).into(), 2),
        (refused(Code::BadRequest), 2),
        (planck_node::team::TemplateErrors(Vec::new()).into(), 2),
        (refused(Code::NotFound), 3),
        (refused(Code::Unavailable), 4),
        (
            ClientError::Unreachable(planck_bus::BusError::NoResponders("x".into())).into(),
            4,
        ),
        (
            anyhow::Error::from(planck_bus::BusError::Away("x".into())).context("while"),
            4,
        ),
        (planck_store::StoreError::Away("x".into()).into(), 4),
        (planck_store::StoreError::NotFound("x".into()).into(), 3),
    ] {
        let told = format!("{error:#}");
        assert_eq!(
            format!("{:?}", exit::code(Err(error))),
            format!("{:?}", std::process::ExitCode::from(number)),
            "{told}"
        );
    }
}

#[test]
fn a_tables_columns_fit_their_widest_cells() {
    let rows = vec![
        vec!["bold-oak".into(), "open".into()],
        vec!["é".into(), String::new()],
    ];
    assert_eq!(
        output::table(&["name", "state"], &rows),
        "NAME      STATE\nbold-oak  open\né\n"
    );
}

#[test]
fn every_schema_is_an_object_with_a_unique_name() {
    let schemas = schema::all();
    assert!(schemas.contains_key("message.member") && schemas.contains_key("event.tool_end"));
    assert!(schemas.values().all(serde_json::Value::is_object));
}

/// The documentation refers to these templates, so they must be valid.
#[test]
fn the_example_teams_are_valid() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/teams");
    let examples = planck_node::team::list(&[ProjectSource::named(&dir)]);
    assert!(!examples.is_empty());
    for (name, _) in examples {
        let config = planck_node::config::Config::default();
        let checked = team::check(
            &config,
            &planck_node::node::Inventory::of(&config),
            &TemplateFile::typed(&dir.join(&name)),
        );
        assert!(checked.is_ok(), "{name}: {}", checked.unwrap_err());
    }
}
