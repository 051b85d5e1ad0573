//! `planck run` with every provider's wire format, and providers that fail.

use anyhow::Result;
use planck_common::event::EventKind;
use planck_scripted_model::{Pace, Reply, Script, ScriptedFault, When};
use planck_tests::{
    machine::{PersonalMachine, of_kind, run},
    world::{Backend, World},
};
use serde_json::json;

const PROVIDERS: [&str; 6] = [
    "anthropic",
    "openai",
    "google",
    "ollama",
    "llama_cpp",
    "scripted",
];

fn example() -> Script {
    let script = include_str!("../../../examples/scripts/build-a-cli.json");
    Script {
        pace: Pace::default(),
        ..Script::parse(script).unwrap()
    }
}

/// Returns the example's team, with the models of a provider.
fn team(provider: &str) -> String {
    let team = include_str!("../../../examples/teams/build-a-cli/TEAM.json");
    team.replace(
        "\"provider\": \"scripted\"",
        &format!("\"provider\": \"{provider}\""),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_team_works_over_every_wire_in_one_process() -> Result<()> {
    for provider in PROVIDERS {
        let machine = PersonalMachine::start(example()).await?;
        machine.write("team/TEAM.json", &team(provider))?;
        let ran = machine
            .run(&["run", "--team", "team", "build a word counter"])
            .await?;
        machine.check_model()?;
        assert_eq!(ran.code, 0, "{provider}: {ran:?}");
        assert!(
            machine.read("count.sh")?.contains("wc -w"),
            "{provider}: the coder edited it: {}",
            ran.out
        );
        assert!(
            ran.out.contains("the test passes now"),
            "{provider}: {}",
            ran.out
        );
        assert!(
            ran.err.contains("● tester") && ran.err.contains("ok: 3 words"),
            "{provider}: {}",
            ran.err
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_team_works_over_nats() -> Result<()> {
    let world = World::start(Backend::Sqlite, example()).await?;
    let node = world.node().await?;
    std::fs::create_dir(world.folder().join("team"))?;
    std::fs::write(world.folder().join("team/TEAM.json"), team("scripted"))?;
    let mut command = world.planck()?;
    command.args([
        "run",
        "--team",
        "team",
        "--dir",
        "work",
        "build a word counter",
    ]);
    let ran = run(command).await?;
    world.check_model()?;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        std::fs::read_to_string(world.dir().join("count.sh"))?.contains("wc -w"),
        "{}",
        ran.out
    );
    node.leave().await
}

/// Checks which failures are retried, and the reason in the `retry` event.
#[tokio::test(flavor = "multi_thread")]
async fn transient_failures_are_retried_with_an_event() -> Result<()> {
    let busy = ScriptedFault::Status {
        status: 429,
        body: None,
        retry_after: Some("0.2".into()),
    };
    for (provider, fault, reason) in [
        (
            "anthropic",
            ScriptedFault::Html("<h1>Down for lunch</h1>".into()),
            "Down for lunch",
        ),
        ("openai", busy.clone(), "429"),
        ("anthropic", ScriptedFault::status(529), "529"),
        ("google", ScriptedFault::status(503), "503"),
        ("ollama", ScriptedFault::status(500), "500"),
        (
            "anthropic",
            ScriptedFault::Error {
                after: 3,
                message: "Overloaded".into(),
            },
            "Overloaded",
        ),
        ("openai", ScriptedFault::Cut { after: 2 }, "broke off"),
        ("llama_cpp", ScriptedFault::End { after: 2 }, "end"),
    ] {
        let script = Script::new().limited(
            1,
            When::any(),
            Reply::text("never whole").with_fault(fault.clone()),
        );
        let machine = PersonalMachine::start(script.always("At last.")).await?;
        let (ran, events) = machine.prompt(&format!("{provider}:m"), "go").await?;
        assert_eq!(ran.code, 0, "{provider} {fault:?}: {ran:?}");
        let retries = of_kind(&events, EventKind::Retry);
        assert_eq!(retries.len(), 1, "{provider} {fault:?}: {retries:?}");
        assert!(
            retries[0]["reason"].as_str().unwrap().contains(reason),
            "{provider} {fault:?}: {retries:?}"
        );
        assert_eq!(
            of_kind(&events, EventKind::TurnEnd)[0]["message"],
            "At last."
        );
        assert_eq!(machine.model.request_count(), 2);
        machine.check_model()?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_is_abandoned_and_retried() -> Result<()> {
    let script = Script::new().limited(
        1,
        When::any(),
        Reply::text("a b c d").with_fault(ScriptedFault::Hang { after: 2 }),
    );
    let machine = PersonalMachine::start(script.always("At last.")).await?;
    machine.configure(
        "[providers.openai]
idle_timeout = \"300ms\"
first_byte_timeout = \"5s\"
",
    )?;
    let (ran, events) = machine.prompt("openai:m", "go").await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        of_kind(&events, EventKind::Retry)[0]["reason"]
            .as_str()
            .unwrap()
            .contains("brought nothing for 0.3 s"),
        "{ran:?}"
    );
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn permanent_failures_end_the_turn_and_the_command_fails() -> Result<()> {
    let full = json!({"error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 3 maximum"}});
    for (provider, status, body, code) in [
        ("anthropic", 401, None, "auth"),
        ("openai", 401, None, "auth"),
        ("google", 400, None, "provider"),
        ("openai", 404, None, "provider"),
        ("anthropic", 400, Some(full.to_string()), "context_full"),
    ] {
        let machine =
            PersonalMachine::start(Script::new().always(Reply::fault(ScriptedFault::Status {
                status,
                body,
                retry_after: None,
            })))
            .await?;
        let (ran, events) = machine.prompt(&format!("{provider}:m"), "go").await?;
        assert_eq!(ran.code, 1, "{provider} {status}: {ran:?}");
        let errors = of_kind(&events, EventKind::Error);
        assert_eq!(errors[0]["code"], code, "{provider} {status}: {errors:?}");
        assert_eq!(machine.model.request_count(), 1, "{provider} {status}");
        assert!(!ran.out.contains("key-0123456789"));
    }
    Ok(())
}

/// Tests Azure's current addresses, the older ones with a deployment in the path, and an endpoint
/// that the configuration names.
#[tokio::test(flavor = "multi_thread")]
async fn azure_takes_a_round_of_tools_at_both_of_its_addresses() -> Result<()> {
    let older = "/openai/deployments/our-gpt/chat/completions";
    for (version, path) in [
        ("", "/openai/v1/chat/completions"),
        ("api_version = \"2025-04-01-preview\"\n", older),
    ] {
        let read = Reply::new()
            .say("Let me look.")
            .and_call("read", json!({"path": "a.txt"}));
        let script = Script::new()
            .key("key-0123456789")
            .rule(When::any().result("alpha"), "It says alpha.")
            .always(read);
        let machine = PersonalMachine::start(script).await?;
        machine.write("a.txt", "alpha")?;
        let endpoint = format!(
            "base_url = \"{}\"\napi_key = \"env:OPENAI_API_KEY\"\n{version}",
            machine.model.url()
        );
        machine.configure(&format!(
            "[providers.azure]\n{endpoint}\n[providers.company]\npreset = \"azure\"\n{endpoint}"
        ))?;
        for provider in ["azure", "company"] {
            let (ran, events) = machine.prompt(&format!("{provider}:our-gpt"), "go").await?;
            assert_eq!(ran.code, 0, "{provider} {path}: {ran:?}");
            assert_eq!(
                of_kind(&events, EventKind::TurnEnd)[0]["message"],
                "It says alpha.",
                "{provider} {path}"
            );
            let warnings = of_kind(&events, EventKind::Warning);
            assert!(
                warnings
                    .iter()
                    .all(|warning| warning["code"] == "unknown_model"),
                "{provider} {path}: {warnings:?}"
            );
        }
        machine.check_model()?;
        let requests = machine.model.requests();
        assert_eq!(requests.len(), 4, "{path}");
        assert!(
            requests.iter().all(|request| request.path == path),
            "{requests:?}"
        );
        assert!(
            requests.iter().all(|request| request
                .headers
                .iter()
                .all(|(name, _)| name != "authorization")),
            "{requests:?}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_azure_does_not_have_is_named_after_one_request() -> Result<()> {
    for version in ["", "api_version = \"2025-04-01-preview\"\n"] {
        let machine = PersonalMachine::start(Script::new()).await?;
        let url = machine.model.url();
        machine.configure(&format!(
            "[providers.azure]\nbase_url = \"{url}\"\napi_key = \"env:OPENAI_API_KEY\"\n{version}"
        ))?;
        let (ran, events) = machine.prompt("azure:absent-gpt", "go").await?;
        assert_eq!((ran.code, machine.model.request_count()), (1, 1), "{ran:?}");
        let reason = of_kind(&events, EventKind::Error)[0]["reason"]
            .as_str()
            .unwrap()
            .to_owned();
        for part in [
            "azure: ",
            "404",
            "DeploymentNotFound",
            "check the model's name (`absent-gpt`) and base_url",
            &url,
        ] {
            assert!(reason.contains(part), "{part}: {reason}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_end_at_the_configured_number() -> Result<()> {
    let machine =
        PersonalMachine::start(Script::new().always(Reply::fault(ScriptedFault::status(500))))
            .await?;
    machine.configure("[providers.openai]\nmax_attempts = 3\nmax_retry_delay = \"20ms\"\n")?;
    let (ran, events) = machine.prompt("openai:m", "go").await?;
    assert_eq!(ran.code, 1, "{ran:?}");
    let retries = of_kind(&events, EventKind::Retry);
    assert_eq!(retries.len(), 2, "{retries:?}");
    assert!(
        retries
            .iter()
            .all(|retry| retry["delay_ms"].as_u64().unwrap() <= 20),
        "{retries:?}"
    );
    assert_eq!(of_kind(&events, EventKind::Error)[0]["retryable"], true);
    assert_eq!(machine.model.request_count(), 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_never_answers_is_abandoned() -> Result<()> {
    for provider in ["anthropic", "openai"] {
        let machine = PersonalMachine::start(
            Script::new().always(Reply::fault(ScriptedFault::HangBeforeHead)),
        )
        .await?;
        let times =
            "first_byte_timeout = \"300ms\"\nmax_attempts = 3\nmax_retry_delay = \"20ms\"\n";
        machine.configure(&format!("[providers.{provider}]\n{times}"))?;
        let (ran, events) = machine.prompt(&format!("{provider}:m"), "go").await?;
        assert_eq!(ran.code, 1, "{provider}: {ran:?}");
        let retries = of_kind(&events, EventKind::Retry);
        assert_eq!(retries.len(), 2, "{provider}: {retries:?}");
        let reason = retries[0]["reason"].as_str().unwrap();
        assert!(
            reason.contains("no answer from") && reason.contains("within 0.3 s"),
            "{provider}: {reason}"
        );
        let errors = of_kind(&events, EventKind::Error);
        assert_eq!(
            (errors.len(), &errors[0]["retryable"]),
            (1, &true.into()),
            "{provider}: {errors:?}"
        );
        assert!(
            errors[0]["reason"]
                .as_str()
                .unwrap()
                .contains("within 0.3 s"),
            "{provider}: {errors:?}"
        );
        assert_eq!(machine.model.request_count(), 3);
    }
    Ok(())
}

/// A listener whose backlog is full, so the kernel does not answer connection attempts.
struct Full {
    listener: std::net::TcpListener,
    _waiting: Vec<std::net::TcpStream>,
}

impl Full {
    fn new() -> Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let (address, mut waiting) = (listener.local_addr()?, Vec::new());
        while let Ok(stream) =
            std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_millis(500))
        {
            waiting.push(stream);
        }
        Ok(Self {
            listener,
            _waiting: waiting,
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_accepts_no_connection_is_abandoned() -> Result<()> {
    let (machine, full) = (PersonalMachine::start(Script::new()).await?, Full::new()?);
    let config = "[providers]\nconnect_timeout = \"200ms\"\n[providers.openai]\nmax_attempts = 2\nmax_retry_delay = \"20ms\"\n";
    machine.configure(config)?;
    let mut command = machine.planck(&["run", "-o", "jsonl", "--model", "openai:m", "go"])?;
    command.env(
        "OPENAI_BASE_URL",
        format!("http://{}/v1", full.listener.local_addr()?),
    );
    let ran = run(command).await?;
    assert_eq!(ran.code, 1, "{ran:?}");
    let errors = of_kind(&ran.events()?, EventKind::Error);
    assert!(
        errors[0]["reason"]
            .as_str()
            .unwrap()
            .contains("cannot connect to"),
        "{errors:?}"
    );
    Ok(())
}
