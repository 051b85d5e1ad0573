//! Plays an editor that speaks the Agent Client Protocol with `planck acp`, on a machine without
//! NATS.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

use anyhow::{Context as _, Result, ensure};
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{
    editor::{Editor, acp, calls, text_of},
    front::Front,
    machine::PersonalMachine,
};
use serde_json::{Value, json};

const COMMAND: &str = "echo one > out.txt\necho two >> out.txt";

async fn greeted(machine: &PersonalMachine, arguments: &[&str]) -> Result<Editor> {
    Editor::greeted(acp(machine, arguments)?, json!({})).await
}

fn script() -> Script {
    let call = Reply::text("I write it.").and_call("bash", json!({"command": COMMAND}));
    let story = Reply::text("slow ".repeat(2_000)).pace(Pace::per_second(20.0).chunk(8));
    Script::new()
        .rule(When::any().result_of("bash"), "It is written.")
        .rule(When::any().last("Tell a story."), story)
        .rule(When::any().last("Write it."), call)
        .always("Quick.")
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_call_runs_and_another_process_loads_the_session() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut editor = greeted(&machine, &["--permissions", "careful"]).await?;
    let session = editor.open(&machine.work()).await?;
    editor.prompt(2, &session, "Write it.").await?;
    let (before, asked) = editor.updates(&session).await?;
    assert_eq!(asked["method"], "session/request_permission", "{asked}");
    assert_eq!(asked["params"]["sessionId"], session);
    let call = asked["params"]["toolCall"].clone();
    assert_eq!(call["title"], COMMAND);
    assert_eq!(call["rawInput"]["command"], COMMAND);
    assert_eq!(text_of(&before, "agent_message_chunk"), "I write it.");
    assert_eq!(calls(&before), [(&call["toolCallId"], &json!("pending"))]);
    // The session has a prompt, and the call does not run before there is an answer.
    editor.prompt(3, &session, "Hello.").await?;
    let refused = editor.read().await?;
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&json!(3), &json!(-32600))
    );
    assert!(machine.read("out.txt").is_err());
    editor.choose(&asked, "allow").await?;
    let (after, done) = editor.updates(&session).await?;
    assert_eq!(
        (&done["id"], &done["result"]),
        (&json!(2), &json!({"stopReason": "end_turn"}))
    );
    assert_eq!(machine.read("out.txt")?, "one\ntwo\n");
    assert_eq!(text_of(&after, "agent_message_chunk"), "It is written.");
    let id = &call["toolCallId"];
    let states = [(id, &json!("in_progress")), (id, &json!("completed"))];
    assert_eq!(calls(&after), states);
    editor.ends().await?;

    let mut editor = greeted(&machine, &[]).await?;
    let load =
        |session: &Value| json!({"sessionId": session, "cwd": machine.work(), "mcpServers": []});
    let unknown = editor.call(4, "session/load", load(&json!("none"))).await?;
    assert_eq!(unknown["error"]["code"], -32002, "{unknown}");
    editor.request(5, "session/load", load(&session)).await?;
    let (history, loaded) = editor.updates(&session).await?;
    assert_eq!(loaded["id"], 5);
    assert_eq!(loaded["result"]["modes"]["currentModeId"], "careful");
    assert_eq!(text_of(&history, "user_message_chunk"), "Write it.");
    let said = "I write it.It is written.";
    assert_eq!(text_of(&history, "agent_message_chunk"), said);
    let states = ["pending", "in_progress", "completed"].map(|state| json!(state));
    assert_eq!(calls(&history), states.each_ref().map(|state| (id, state)));
    editor.commands(&session).await?;
    editor.prompt(6, &session, "Hello.").await?;
    let (said, done) = editor.updates(&session).await?;
    assert_eq!(text_of(&said, "agent_message_chunk"), "Quick.");
    assert_eq!(done["result"]["stopReason"], "end_turn", "{done}");
    editor.ends().await?;
    machine.check_model()
}

/// A denial, an option that was not offered and a cancelled prompt run nothing.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_an_offered_option_allows_a_call() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut editor = greeted(&machine, &["--permissions", "careful"]).await?;
    for option in ["Allow once", "allow_always", "deny"] {
        let session = editor.open(&machine.work()).await?;
        editor.prompt(2, &session, "Write it.").await?;
        let (_, asked) = editor.updates(&session).await?;
        assert_eq!(asked["method"], "session/request_permission", "{asked}");
        editor.choose(&asked, option).await?;
        if option == "deny" {
            let (_, done) = editor.updates(&session).await?;
            assert_eq!(done["result"]["stopReason"], "end_turn", "{done}");
            continue;
        }
        let notice = editor.read().await?["params"]["update"]["content"]["text"].clone();
        ensure!(notice.to_string().contains("decides nothing"), "{notice}");
        // The same request has no second answer.
        editor.choose(&asked, "allow").await?;
        let cancel = json!({"sessionId": session});
        editor.notify("session/cancel", cancel).await?;
        let (_, done) = editor.updates(&session).await?;
        assert_eq!(done["result"]["stopReason"], "cancelled", "{done}");
    }
    assert!(machine.read("out.txt").is_err());
    editor.ends().await
}

/// The work of an editor that has gone is told to the next one.
#[tokio::test(flavor = "multi_thread")]
async fn running_work_is_followed_after_a_load() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut editor = greeted(&machine, &["--permissions", "careful"]).await?;
    let session = editor.open(&machine.work()).await?;
    editor.prompt(2, &session, "Write it.").await?;
    let (_, asked) = editor.updates(&session).await?;
    editor.process.kill().await?;
    let mut editor = greeted(&machine, &[]).await?;
    let load = json!({"sessionId": session, "cwd": machine.work(), "mcpServers": []});
    editor.request(3, "session/load", load).await?;
    let (history, loaded) = editor.updates(&session).await?;
    assert_eq!(text_of(&history, "user_message_chunk"), "Write it.");
    // The question may come before the answer to the load or after it.
    let (asked_again, loaded) = match loaded["method"].is_string() {
        true => (loaded, editor.updates(&session).await?.1),
        false => (editor.updates(&session).await?.1, loaded),
    };
    assert!(loaded["result"]["modes"].is_object(), "{loaded}");
    assert_eq!(
        asked_again["params"]["toolCall"],
        asked["params"]["toolCall"]
    );
    editor.choose(&asked_again, "allow").await?;
    let mut said = String::new();
    while !said.contains("It is written.") {
        let update = editor.read().await?["params"]["update"].clone();
        said += update["content"]["text"].as_str().unwrap_or_default();
    }
    assert_eq!(machine.read("out.txt")?, "one\ntwo\n");
    editor.leaves().await?;
    Ok(())
}

/// The front of the store runs the work, so nothing ends with the command that asked for it.
#[tokio::test(flavor = "multi_thread")]
async fn reply_goes_on_when_the_command_is_killed() -> Result<()> {
    let words: Vec<String> = (0..60).map(|n| format!("slow-{n}")).collect();
    let story = words.join(" ");
    let paced = Reply::text(story.clone()).pace(Pace::per_second(20.0).chunk(8));
    let machine = PersonalMachine::start(Script::new().always(paced)).await?;
    let mut front = machine.planck(&[])?;
    front.env("PLANCK_MODELS_DEFAULT", "openai:gpt-5");
    let _front = Front::start(front, machine.folder(), &[]).await?;
    let mut editor = greeted(&machine, &[]).await?;
    let session = editor.open(&machine.work()).await?;
    editor.prompt(2, &session, "Tell a story.").await?;
    while editor.read().await?["params"]["update"]["sessionUpdate"] != "agent_message_chunk" {}
    editor.process.kill().await?;
    for is_over in [false, true] {
        let mut editor = greeted(&machine, &[]).await?;
        let load = json!({"sessionId": session, "cwd": machine.work(), "mcpServers": []});
        editor.request(3, "session/load", load).await?;
        let (history, loaded) = editor.updates(&session).await?;
        assert!(loaded["result"]["modes"].is_object(), "{loaded}");
        editor.commands(&session).await?;
        let mut told = text_of(&history, "agent_message_chunk");
        assert_eq!(told == story, is_over, "{told}");
        while told != story {
            ensure!(story.starts_with(&told), "{told}");
            let update = editor.read().await?["params"]["update"].clone();
            told += update["content"]["text"].as_str().unwrap_or_default();
        }
        editor.leaves().await?;
    }
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mistake_has_its_code_and_the_connection_goes_on() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Quick.")).await?;
    let mut editor = Editor::start(acp(&machine, &[])?)?;
    let new = |cwd: &str| json!({"cwd": cwd, "mcpServers": []});
    let early = editor.call(1, "session/new", new("/")).await?;
    assert_eq!(early["error"]["code"], -32600, "{early}");
    let text = editor
        .call(2, "initialize", json!({"protocolVersion": "1"}))
        .await?;
    assert_eq!(text["error"]["code"], -32602, "{text}");
    // The client decides whether it speaks the version of the answer.
    let newer = editor
        .call(3, "initialize", json!({"protocolVersion": 7}))
        .await?;
    assert_eq!(newer["result"]["protocolVersion"], 1, "{newer}");
    let long = format!("\"{}\"", "x".repeat(9 << 20));
    for (line, code) in [
        ("{", -32700),
        ("[]", -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"initialize"}"#, -32600),
        (&long, -32600),
    ] {
        editor.write(line).await?;
        let answer = editor.read().await?;
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    // A notification has no answer.
    editor
        .write(r#"{"jsonrpc":"2.0","method":"session/surprise"}"#)
        .await?;
    for (method, params, code) in [
        ("session/new", new("work"), -32602),
        ("session/new", json!({}), -32602),
        ("session/new", new("/no/such/folder"), -32602),
        ("session/surprise", json!({}), -32601),
        (
            "session/prompt",
            json!({"sessionId": "none", "prompt": [{"type": "text", "text": "Hi."}]}),
            -32002,
        ),
    ] {
        let answer = editor.call(4, method, params).await?;
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    let session = editor.open(&machine.work()).await?;
    editor.prompt(6, &session, "Hello.").await?;
    let (said, done) = editor.updates(&session).await?;
    assert_eq!(text_of(&said, "agent_message_chunk"), "Quick.");
    assert_eq!(done["result"]["stopReason"], "end_turn", "{done}");
    editor.ends().await?;
    machine.check_model()
}

/// A prompt that the agent could not read is refused before anything is stored.
#[tokio::test(flavor = "multi_thread")]
async fn prompt_without_anything_to_read_is_refused() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Quick.")).await?;
    let mut editor = greeted(&machine, &[]).await?;
    let session = editor.open(&machine.work()).await?;
    for block in [
        json!({"type": "image", "data": "no Base64", "mimeType": "image/png"}),
        json!({"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}),
        json!({"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA"}}),
    ] {
        let prompt = json!({"sessionId": session, "prompt": [block]});
        let refused = editor.call(5, "session/prompt", prompt).await?;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let empty = json!({"sessionId": session, "prompt": []});
    let refused = editor.call(5, "session/prompt", empty).await?;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    let listed = editor.call(6, "session/list", json!({})).await?;
    assert_eq!(listed["result"]["sessions"], json!([]));
    editor.ends().await
}

/// A streamed reply is cancelled in its middle.
#[tokio::test(flavor = "multi_thread")]
async fn cancel_ends_a_reply_that_streams() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut editor = greeted(&machine, &[]).await?;
    let session = editor.open(&machine.work()).await?;
    editor.prompt(2, &session, "Tell a story.").await?;
    while editor.read().await?["params"]["update"]["sessionUpdate"] != "agent_message_chunk" {}
    let cancel = json!({"sessionId": session});
    editor.notify("session/cancel", cancel).await?;
    let (_, done) = editor.updates(&session).await?;
    assert_eq!(
        (&done["id"], &done["result"]),
        (&json!(2), &json!({"stopReason": "cancelled"}))
    );
    editor.prompt(3, &session, "Hello.").await?;
    let (said, done) = editor.updates(&session).await?;
    assert_eq!(text_of(&said, "agent_message_chunk"), "Quick.");
    assert_eq!(done["result"]["stopReason"], "end_turn", "{done}");
    editor.ends().await
}

/// An editor sends what its user typed as soon as it has cancelled.
#[tokio::test(flavor = "multi_thread")]
async fn prompt_behind_a_cancel_waits_for_its_end() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut editor = greeted(&machine, &[]).await?;
    let session = editor.open(&machine.work()).await?;
    editor.prompt(2, &session, "Tell a story.").await?;
    while editor.read().await?["params"]["update"]["sessionUpdate"] != "agent_message_chunk" {}
    let cancel = json!({"sessionId": session});
    editor.notify("session/cancel", cancel.clone()).await?;
    editor.prompt(3, &session, "Hello.").await?;
    // One prompt waits, and not more.
    editor.prompt(4, &session, "Hello.").await?;
    let mut ends = Vec::new();
    while ends.len() < 3 {
        let (updates, end) = editor.updates(&session).await?;
        let said = text_of(&updates, "agent_message_chunk");
        ends.push((end["id"].clone(), end["result"]["stopReason"].clone(), said));
    }
    ends.sort_by_key(|(id, _, _)| id.as_u64());
    assert_eq!(ends[0].1, "cancelled", "{ends:?}");
    assert_eq!((&ends[1].1, &*ends[1].2), (&json!("end_turn"), "Quick."));
    assert_eq!(ends[2].1, json!(null), "{ends:?}");

    // A prompt that waits is cancelled as well.
    editor.prompt(5, &session, "Tell a story.").await?;
    while editor.read().await?["params"]["update"]["sessionUpdate"] != "agent_message_chunk" {}
    editor.notify("session/cancel", cancel.clone()).await?;
    editor.prompt(6, &session, "Hello.").await?;
    editor.notify("session/cancel", cancel).await?;
    for _ in 0..2 {
        let (_, end) = editor.updates(&session).await?;
        assert_eq!(end["result"]["stopReason"], "cancelled", "{end}");
    }
    editor.ends().await
}

/// An editor shows the answer to its first request, and not what a command warns of.
#[tokio::test(flavor = "multi_thread")]
async fn reason_for_a_failed_start_is_the_answer_to_the_first_request() -> Result<()> {
    let machine = PersonalMachine::start(Script::new()).await?;
    let nowhere = ["--nats", "nats://127.0.0.1:1"];
    let mut editor = Editor::start(acp(&machine, &nowhere)?)?;
    let hello = json!({"protocolVersion": 1, "clientCapabilities": {}});
    let refused = editor.call(0, "initialize", hello).await?;
    assert_eq!(refused["error"]["code"], -32603, "{refused}");
    let why = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(why.contains("127.0.0.1:1"), "{why}");
    let status = editor.process.wait().await?;
    assert_eq!(status.code(), Some(4));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_editors_name_this_program_and_its_arguments() -> Result<()> {
    let machine = PersonalMachine::start(Script::new()).await?;
    let printed = async |editor: &str| {
        let command = ["acp", "--team", "a \"b\"", "--print-config", editor];
        let ran = machine.run(&command).await?;
        ensure!(ran.code == 0, "{ran:?}");
        Ok(ran.out)
    };
    for (editor, path) in [
        ("zed", "/agent_servers/Planck"),
        ("jetbrains", "/agent_servers/Planck"),
        ("vscode", "/acp.agents/Planck"),
    ] {
        let settings: Value = serde_json::from_str(&printed(editor).await?)?;
        let start = settings.pointer(path).cloned().unwrap_or_default();
        assert_eq!(
            start["args"],
            json!(["acp", "--team", "a \"b\""]),
            "{settings}"
        );
        let program = start["command"].as_str().unwrap_or_default();
        assert!(std::path::Path::new(program).is_absolute(), "{settings}");
    }
    let adapter = printed("neovim").await?;
    assert!(
        adapter.contains(r#", "acp", "--team", "a \"b\"" }"#),
        "{adapter}"
    );
    let unknown = machine.run(&["acp", "--print-config", "ed"]).await?;
    assert_eq!(unknown.code, 2, "{unknown:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn compaction_is_told_to_an_editor_that_shows_it() -> Result<()> {
    let script = Script::new()
        .rule(
            When::any().system("summar"),
            // The editor follows the prompt by then.
            Reply::text("They spoke of numbers.").pace(Pace::per_second(10.0)),
        )
        .always(Reply::text("blah ".repeat(300)));
    let machine = PersonalMachine::start(script).await?;
    machine.configure(
        "[models.entries.m]\nprovider = \"openai\"\ncontext_window = 4000\n[compaction]\nkeep_recent = 3\n",
    )?;
    let shows = json!({"session": {"compaction": {}}});
    let mut editor =
        Editor::greeted(acp(&machine, &["--model", "openai:m"])?, shows.clone()).await?;
    let session = editor.open(&machine.work()).await?;
    let of_compactions = |updates: &[Value]| {
        let mut updates = updates.to_vec();
        updates.retain(|update| update["sessionUpdate"] == "compaction_update");
        updates
    };
    let mut compactions = Vec::new();
    while compactions.is_empty() {
        let (updates, end) = editor.asked(&session, "Go on.").await?;
        assert_eq!(end, "end_turn");
        compactions = of_compactions(&updates);
    }
    let [begun, done, ..] = &compactions[..] else {
        panic!("{compactions:?}");
    };
    assert_eq!(begun["status"], "in_progress", "{begun}");
    assert_eq!(done["status"], "completed", "{done}");
    assert_eq!(begun["compactionId"], done["compactionId"]);
    let summary = done["summary"][0]["text"].as_str().context("no summary")?;
    assert!(summary.contains("They spoke of numbers."), "{summary}");
    editor.ends().await?;

    for (shows, expected) in [(shows, "completed"), (json!({}), "")] {
        let mut editor = Editor::greeted(acp(&machine, &[])?, shows).await?;
        let load = json!({"sessionId": session, "cwd": machine.work(), "mcpServers": []});
        editor.request(4, "session/load", load).await?;
        let (updates, loaded) = editor.updates(&session).await?;
        assert!(loaded["result"].is_object(), "{loaded}");
        let states = of_compactions(&updates);
        let states: Vec<_> = states.iter().map(|update| &update["status"]).collect();
        assert_eq!(
            states.first().map_or("", |state| state.as_str().unwrap()),
            expected
        );
        editor.leaves().await?;
    }
    machine.check_model()
}
