//! Models that make mistakes. The model reads an error as the result, its history stays valid, and
//! the next prompt works.

use anyhow::Result;
use planck_common::{envelope::Envelope, event::EventKind};
use planck_scripted_model::{Reply, Script, ScriptedCall, ScriptedPart, ScriptedUsage, Stop, When};
use planck_tests::machine::{PersonalMachine, Ran, of_kind};
use serde_json::{Value, json};

const PROVIDERS: [&str; 2] = ["anthropic", "openai"];

fn calls(calls: impl IntoIterator<Item = ScriptedCall>) -> Reply {
    calls.into_iter().fold(Reply::new(), |reply, call| {
        reply.part(ScriptedPart::Call(call))
    })
}

fn read(path: &str) -> ScriptedCall {
    ScriptedCall::new("read", json!({ "path": path }))
}

/// The output and the events of a command in which a model made calls.
struct CallResults {
    ran: Ran,
    events: Vec<Envelope>,
}

impl CallResults {
    fn of(&self, kind: EventKind) -> Vec<Value> {
        of_kind(&self.events, kind)
    }

    /// Returns the results in the order of the calls, each with whether it is an error.
    fn results(&self) -> Vec<(bool, String)> {
        let messages = self.of(EventKind::Message);
        let messages = messages.iter().map(|saved| &saved["message"]);
        let results = messages.filter(|message| message["role"] == "tool_result");
        let parts = results.flat_map(|message| message["content"].as_array().unwrap());
        parts
            .map(|part| {
                (
                    part["error"] == true,
                    part["text"].as_str().unwrap().to_owned(),
                )
            })
            .collect()
    }
}

/// Runs a session in which the model gives `first`, then answers "Well.", and answers "Again." to
/// the next prompt.
async fn answers(provider: &str, first: Reply) -> Result<CallResults> {
    let script = Script::new()
        .limited(1, When::any(), first)
        .rule(When::any().last("again"), "Again.")
        .always("Well.");
    let machine = PersonalMachine::start(script).await?;
    machine.write("a.txt", "alpha")?;
    let model = format!("{provider}:m");
    let ran = machine
        .run(&[
            "run",
            "-o",
            "jsonl",
            "--model",
            &model,
            "--session",
            "one",
            "go",
        ])
        .await?;
    let events = ran.events()?;
    let again = machine
        .run(&["run", "-o", "jsonl", "--session", "one", "again"])
        .await?;
    machine.check_model()?;
    assert_eq!(again.code, 0, "{provider}: {again:?}");
    assert_eq!(
        of_kind(&again.events()?, EventKind::TurnEnd)[0]["message"],
        "Again.",
        "{provider}"
    );
    Ok(CallResults { ran, events })
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_calls_are_answered_with_the_fault() -> Result<()> {
    for provider in PROVIDERS {
        for (call, told) in [
            (read("").raw("{\"path\": "), "not a JSON object"),
            (ScriptedCall::new("read", json!({"path": 3})), "`path`"),
            (ScriptedCall::new("read", json!({})), "path"),
            (
                ScriptedCall::new("raed", json!({"path": "a.txt"})),
                "did you mean `read`?",
            ),
            (read("../secret"), "outside"),
        ] {
            let came = answers(provider, calls([call])).await?;
            let results = came.results();
            assert!(
                results.len() == 1 && results[0].0 && results[0].1.contains(told),
                "{provider} {told}: {results:?}"
            );
            assert_eq!(came.ran.code, 0, "{provider}: {:?}", came.ran);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_with_one_id_or_none_all_run() -> Result<()> {
    for provider in PROVIDERS {
        let came = answers(
            provider,
            calls([
                read("a.txt").id("x"),
                read("b.txt").id("x"),
                read("a.txt").id(""),
            ]),
        )
        .await?;
        let results = came.results();
        assert_eq!(
            results.iter().map(|(error, _)| *error).collect::<Vec<_>>(),
            [false, true, false],
            "{provider}: {results:?}"
        );
        let mut ids: Vec<String> = came
            .of(EventKind::ToolStart)
            .iter()
            .map(|start| start["id"].to_string())
            .collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 3, "{provider}: {ids:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute of CPU time: make test-all"]
async fn a_megabyte_of_arguments_is_written_and_more_is_cut() -> Result<()> {
    let most = (1 << 20) - 64;
    for provider in PROVIDERS {
        for (length, is_written) in [(most, true), (5 << 20, false)] {
            let write = json!({"path": "big", "content": "x".repeat(length)});
            let script = Script::new()
                .rule(When::any().result_of("write"), "Well.")
                .always(Reply::call("write", write));
            let machine = PersonalMachine::start(script).await?;
            let (ran, events) = machine.prompt(&format!("{provider}:m"), "go").await?;
            assert_eq!(
                ran.code == 0,
                is_written,
                "{provider} {length}: {}",
                ran.err
            );
            assert_eq!(
                machine.read("big").is_ok(),
                is_written,
                "{provider} {length}"
            );
            let ends = of_kind(&events, EventKind::Error);
            let is_cut = ends.iter().any(|end| end["code"] == "answer_limit");
            assert_eq!(is_cut, !is_written, "{provider} {length}: {ends:?}");
            machine.check_model()?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_the_most_calls_gets_all_results_in_order() -> Result<()> {
    let mut many: Vec<ScriptedCall> = (0..128)
        .map(|n| read(if n % 2 == 0 { "a.txt" } else { "b.txt" }))
        .collect();
    many[100] = ScriptedCall::new("read", json!({"path": "c.txt"}));
    let came = answers("anthropic", calls(many)).await?;
    let results = came.results();
    assert_eq!(results.len(), 128);
    assert_eq!(
        results
            .iter()
            .map(|(error, _)| *error)
            .take(4)
            .collect::<Vec<_>>(),
        [false, true, false, true]
    );
    assert!(results[100].1.contains("c.txt"), "{:?}", results[100]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_call_is_remarked_on_then_refused() -> Result<()> {
    let script = Script::new()
        .rule(When::any().round(11), "I give up.")
        .always(calls([read("a.txt")]));
    let machine = PersonalMachine::start(script).await?;
    machine.write("a.txt", "alpha")?;
    let (ran, events) = machine.prompt("anthropic:m", "go").await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    let results = CallResults { ran, events }.results();
    let kinds: Vec<&str> = results
        .iter()
        .map(|(error, text)| match (error, text.trim_end() == "alpha") {
            (false, true) => "plain",
            (false, false) => "noted",
            (true, _) => "refused",
        })
        .collect();
    assert_eq!(kinds[..3], ["plain", "plain", "noted"], "{results:?}");
    assert_eq!(kinds[8..], ["noted", "refused", "refused"], "{results:?}");
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_thinking_refused_and_cut_answers_end_their_turn() -> Result<()> {
    let (refused, cut) = (
        Reply::text("I will not.").stop(Stop::Refusal),
        Reply::text("And then").stop(Stop::Length),
    );
    for (first, outcome, is_refused, code) in [
        (Reply::new(), "completed", Value::Null, 0),
        (Reply::new().think("Hm."), "completed", Value::Null, 0),
        (refused, "completed", json!(true), 1),
        (cut, "truncated", Value::Null, 1),
    ] {
        let came = answers("anthropic", first.clone()).await?;
        let ends = came.of(EventKind::TurnEnd);
        assert_eq!(
            (ends.len(), &ends[0]["outcome"], &ends[0]["refused"]),
            (1, &json!(outcome), &is_refused),
            "{first:?}: {ends:?}"
        );
        assert_eq!(came.ran.code, code, "{first:?}: {:?}", came.ran);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_cut_answer_are_not_run() -> Result<()> {
    for provider in PROVIDERS {
        let write = ScriptedCall::new("write", json!({"path": "made", "content": "x"}));
        let cut = ScriptedCall::new("write", json!({})).raw("{\"path\": \"made\", \"cont");
        let script = Script::new()
            .limited(1, When::any(), calls([write, cut]).stop(Stop::Length))
            .rule(When::any().last("again"), "Again.")
            .always("Well.");
        let machine = PersonalMachine::start(script).await?;
        let (ran, events) = machine.prompt(&format!("{provider}:m"), "go").await?;
        let results = CallResults { ran, events }.results();
        assert_eq!(results.len(), 2, "{provider}: {results:?}");
        assert!(
            results
                .iter()
                .all(|(error, text)| *error && text.contains("cut off before it was complete")),
            "{results:?}"
        );
        assert!(machine.read("made").is_err(), "{provider}");
        machine.check_model()?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_end_the_turn_and_say_which() -> Result<()> {
    let usage = ScriptedUsage {
        input: 600,
        output: 500,
        ..ScriptedUsage::default()
    };
    for (key, value, limit) in [
        ("max_requests_per_turn", "2", "max_requests_per_turn"),
        ("max_tokens", "1000", "max_tokens"),
        ("max_cost_usd", "0.0001", "max_cost_usd"),
        ("session.max_tokens", "1000", "max_tokens"),
    ] {
        let script = Script::new()
            .rule(When::any().round(6), "Done.")
            .always(calls([read("a.txt")]).usage(usage));
        let machine = PersonalMachine::start(script).await?;
        let (section, key) = key
            .split_once('.')
            .map_or(("limits".into(), key), |(part, key)| {
                (format!("limits.{part}"), key)
            });
        let prices =
            "[models.entries.m]\nprovider = \"anthropic\"\nprices = {input = 1.0, output = 1.0}\n";
        machine.configure(&format!("[{section}]\n{key} = {value}\n{prices}"))?;
        let (ran, events) = machine.prompt("anthropic:m", "go").await?;
        let end = of_kind(&events, EventKind::TurnEnd);
        assert_eq!(
            (&end[0]["outcome"], ran.code),
            (&json!("limit"), 1),
            "{section}.{key}: {ran:?}"
        );
        assert!(
            end[0]["limit"].as_str().unwrap().contains(limit),
            "{section}.{key}: {end:?}"
        );
        machine.check_model()?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_context_is_summarised_during_a_turn() -> Result<()> {
    let script = Script::new()
        .limited(12, When::any().tool("read"), calls([read("long.txt")]))
        .rule(When::any().tool("read"), "All read.")
        .always("Summary: long.txt was read several times; go on.");
    let machine = PersonalMachine::start(script).await?;
    machine.write(
        "long.txt",
        &"one line of many words that say little\n".repeat(60),
    )?;
    machine.configure("[models.entries.m]\nprovider = \"anthropic\"\ncontext_window = 6000\n[tools]\nrepeat_refuse = 100\n")?;
    let (ran, events) = machine.prompt("anthropic:m", "read it many times").await?;
    assert!(
        !of_kind(&events, EventKind::Compacting).is_empty(),
        "{ran:?}"
    );
    let compacted = of_kind(&events, EventKind::Compacted);
    assert!(!compacted.is_empty(), "{ran:?}");
    for done in &compacted {
        assert!(
            done["tokens_after"].as_u64() < done["tokens_before"].as_u64(),
            "{done:?}"
        );
    }
    assert_eq!(ran.code, 0, "{:?}", of_kind(&events, EventKind::Error));
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undescribed_model_is_warned_about_once() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Hello.")).await?;
    let (_, events) = machine.prompt("openai:my-own", "go").await?;
    let warnings = of_kind(&events, EventKind::Warning);
    assert_eq!(
        (warnings.len(), &warnings[0]["code"]),
        (1, &json!("unknown_model")),
        "{warnings:?}"
    );
    assert!(
        warnings[0]["message"]
            .as_str()
            .unwrap()
            .contains("`openai:my-own` is not in the catalogue")
    );
    Ok(())
}
