//! Plays an editor that speaks the Agent Client Protocol with `planck acp`, on a machine without
//! NATS.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{front::Front, machine::PersonalMachine};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
    time::timeout,
};

const PATIENCE: Duration = Duration::from_secs(60);
const COMMAND: &str = "echo one > out.txt\necho two >> out.txt";

struct Editor {
    process: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Editor {
    fn start(machine: &PersonalMachine, arguments: &[&str]) -> Result<Self> {
        let mut process = machine
            .planck(&[&["acp"], arguments].concat())?
            .env("PLANCK_MODELS_DEFAULT", "openai:gpt-5")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().context("no output")?;
        Ok(Self {
            input: process.stdin.take(),
            process,
            lines: BufReader::new(output).lines(),
        })
    }

    async fn write(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("the input is closed")?;
        input.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(input.flush().await?)
    }

    async fn read(&mut self) -> Result<Value> {
        let line = timeout(PATIENCE, self.lines.next_line()).await??;
        let message: Value = serde_json::from_str(&line.context("the output ended")?)?;
        ensure!(message["jsonrpc"] == "2.0", "{message}");
        Ok(message)
    }

    async fn request(&mut self, id: u32, method: &str, params: Value) -> Result<()> {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.write(&request.to_string()).await
    }

    /// Sends a request that has an answer without other messages before it.
    async fn call(&mut self, id: u32, method: &str, params: Value) -> Result<Value> {
        self.request(id, method, params).await?;
        let answer = self.read().await?;
        ensure!(answer["id"] == id, "{answer}");
        Ok(answer)
    }

    async fn prompt(&mut self, id: u32, session: &Value, text: &str) -> Result<()> {
        let prompt = json!([{"type": "text", "text": text}]);
        let params = json!({"sessionId": session, "prompt": prompt});
        self.request(id, "session/prompt", params).await
    }

    async fn answer(&mut self, request: &Value, outcome: Value) -> Result<()> {
        let result = json!({"outcome": outcome});
        let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
        self.write(&answer.to_string()).await
    }

    /// Reads updates until another message comes, and returns both.
    async fn updates(&mut self, session: &Value) -> Result<(Vec<Value>, Value)> {
        let mut updates = Vec::new();
        loop {
            let message = self.read().await?;
            if message["method"] != "session/update" {
                return Ok((updates, message));
            }
            ensure!(message["params"]["sessionId"] == *session, "{message}");
            updates.push(message["params"]["update"].clone());
        }
    }

    async fn greet(&mut self) -> Result<()> {
        let hello = json!({"protocolVersion": 1, "clientCapabilities": {}});
        let greeted = self.call(0, "initialize", hello).await?;
        let result = &greeted["result"];
        ensure!(result["protocolVersion"] == 1, "{greeted}");
        ensure!(result["authMethods"] == json!([]), "{greeted}");
        ensure!(result["agentCapabilities"]["loadSession"] == true);
        Ok(())
    }

    /// Opens a session as the protocol says, and returns it.
    async fn open(&mut self, machine: &PersonalMachine) -> Result<Value> {
        let new = json!({"cwd": machine.work(), "mcpServers": []});
        let opened = self.call(1, "session/new", new).await?;
        let session = opened["result"]["sessionId"].clone();
        ensure!(session.is_string(), "{opened}");
        let commands = self.read().await?["params"].clone();
        let update = json!({"sessionUpdate": "available_commands_update", "availableCommands": []});
        ensure!(commands == json!({"sessionId": session, "update": update}));
        Ok(session)
    }

    /// Closes the input, and returns the exit code and what the command warned of.
    async fn ends(mut self) -> Result<(Option<i32>, String)> {
        drop(self.input.take());
        let status = timeout(PATIENCE, self.process.wait()).await??;
        let (mut left, mut warned) = (String::new(), String::new());
        let mut errors = self.process.stderr.take().context("no errors")?;
        errors.read_to_string(&mut warned).await?;
        while let Some(line) = self.lines.next_line().await? {
            left += &line;
        }
        ensure!(left.is_empty(), "{left}");
        Ok((status.code(), warned))
    }
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

/// Returns the texts of the updates of a kind, put together.
fn text_of(updates: &[Value], kind: &str) -> String {
    let of_kind = updates
        .iter()
        .filter(|update| update["sessionUpdate"] == kind);
    let texts = of_kind.map(|update| update["content"]["text"].as_str().unwrap());
    texts.collect()
}

fn calls(updates: &[Value]) -> Vec<(&Value, &Value)> {
    let calls = updates
        .iter()
        .filter(|update| update["toolCallId"].is_string());
    calls
        .map(|call| (&call["toolCallId"], &call["status"]))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_call_runs_and_another_process_loads_the_session() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut editor = Editor::start(&machine, &["--permissions", "careful"])?;
    editor.greet().await?;
    let session = editor.open(&machine).await?;
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
    let chosen = json!({"outcome": "selected", "optionId": "allow"});
    editor.answer(&asked, chosen).await?;
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
    assert_eq!(editor.ends().await?, (Some(0), String::new()));

    let mut editor = Editor::start(&machine, &[])?;
    editor.greet().await?;
    let load =
        |session: &Value| json!({"sessionId": session, "cwd": machine.work(), "mcpServers": []});
    let unknown = editor.call(4, "session/load", load(&json!("none"))).await?;
    assert_eq!(unknown["error"]["code"], -32002, "{unknown}");
    editor.request(5, "session/load", load(&session)).await?;
    let (history, loaded) = editor.updates(&session).await?;
    assert_eq!((&loaded["id"], &loaded["result"]), (&json!(5), &json!({})));
    assert_eq!(text_of(&history, "user_message_chunk"), "Write it.");
    let said = "I write it.It is written.";
    assert_eq!(text_of(&history, "agent_message_chunk"), said);
    let states = ["pending", "in_progress", "completed"].map(|state| json!(state));
    assert_eq!(calls(&history), states.each_ref().map(|state| (id, state)));
    let commands = editor.read().await?["params"]["update"]["sessionUpdate"].clone();
    assert_eq!(commands, "available_commands_update");
    editor.prompt(6, &session, "Hello.").await?;
    let (said, done) = editor.updates(&session).await?;
    assert_eq!(text_of(&said, "agent_message_chunk"), "Quick.");
    assert_eq!(done["result"]["stopReason"], "end_turn", "{done}");
    assert_eq!(editor.ends().await?, (Some(0), String::new()));
    machine.check_model()
}

/// A denial, an option that was not offered and a cancelled prompt run nothing.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_an_offered_option_allows_a_call() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut editor = Editor::start(&machine, &["--permissions", "careful"])?;
    editor.greet().await?;
    for option in ["Allow once", "allow_always", "deny"] {
        let session = editor.open(&machine).await?;
        editor.prompt(2, &session, "Write it.").await?;
        let (_, asked) = editor.updates(&session).await?;
        assert_eq!(asked["method"], "session/request_permission", "{asked}");
        let chosen = json!({"outcome": "selected", "optionId": option});
        editor.answer(&asked, chosen).await?;
        if option == "deny" {
            let (_, done) = editor.updates(&session).await?;
            assert_eq!(done["result"]["stopReason"], "end_turn", "{done}");
            continue;
        }
        let notice = editor.read().await?["params"]["update"]["content"]["text"].clone();
        ensure!(notice.to_string().contains("decides nothing"), "{notice}");
        // The same request has no second answer.
        let allowed = json!({"outcome": "selected", "optionId": "allow"});
        editor.answer(&asked, allowed).await?;
        let cancel =
            json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}});
        editor.write(&cancel.to_string()).await?;
        let (_, done) = editor.updates(&session).await?;
        assert_eq!(done["result"]["stopReason"], "cancelled", "{done}");
    }
    assert!(machine.read("out.txt").is_err());
    assert_eq!(editor.ends().await?, (Some(0), String::new()));
    Ok(())
}

/// The work of an editor that has gone is told to the next one.
#[tokio::test(flavor = "multi_thread")]
async fn running_work_is_followed_after_a_load() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut editor = Editor::start(&machine, &["--permissions", "careful"])?;
    editor.greet().await?;
    let session = editor.open(&machine).await?;
    editor.prompt(2, &session, "Write it.").await?;
    let (_, asked) = editor.updates(&session).await?;
    editor.process.kill().await?;
    let mut editor = Editor::start(&machine, &[])?;
    editor.greet().await?;
    let load = json!({"sessionId": session, "cwd": machine.work(), "mcpServers": []});
    editor.request(3, "session/load", load).await?;
    let (history, loaded) = editor.updates(&session).await?;
    assert_eq!(text_of(&history, "user_message_chunk"), "Write it.");
    // The question may come before the answer to the load or after it.
    let (asked_again, loaded) = match loaded["method"].is_string() {
        true => (loaded, editor.updates(&session).await?.1),
        false => (editor.updates(&session).await?.1, loaded),
    };
    assert_eq!(loaded["result"], json!({}), "{loaded}");
    assert_eq!(
        asked_again["params"]["toolCall"],
        asked["params"]["toolCall"]
    );
    let chosen = json!({"outcome": "selected", "optionId": "allow"});
    editor.answer(&asked_again, chosen).await?;
    let mut said = String::new();
    while !said.contains("It is written.") {
        let update = editor.read().await?["params"]["update"].clone();
        said += update["content"]["text"].as_str().unwrap_or_default();
    }
    assert_eq!(machine.read("out.txt")?, "one\ntwo\n");
    assert_eq!(editor.ends().await?.0, Some(0));
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
    let mut editor = Editor::start(&machine, &[])?;
    editor.greet().await?;
    let session = editor.open(&machine).await?;
    editor.prompt(2, &session, "Tell a story.").await?;
    editor.read().await?;
    editor.process.kill().await?;
    for is_over in [false, true] {
        let mut editor = Editor::start(&machine, &[])?;
        editor.greet().await?;
        let load = json!({"sessionId": session, "cwd": machine.work(), "mcpServers": []});
        editor.request(3, "session/load", load).await?;
        let (history, loaded) = editor.updates(&session).await?;
        assert_eq!(loaded["result"], json!({}), "{loaded}");
        let commands = editor.read().await?["params"]["update"]["sessionUpdate"].clone();
        assert_eq!(commands, "available_commands_update");
        let mut told = text_of(&history, "agent_message_chunk");
        assert_eq!(told == story, is_over, "{told}");
        while told != story {
            ensure!(story.starts_with(&told), "{told}");
            let update = editor.read().await?["params"]["update"].clone();
            told += update["content"]["text"].as_str().unwrap_or_default();
        }
        assert_eq!(editor.ends().await?.0, Some(0));
    }
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mistake_has_its_code_and_the_connection_goes_on() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Quick.")).await?;
    let mut editor = Editor::start(&machine, &[])?;
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
    let session = editor.open(&machine).await?;
    let image = json!([{"type": "image", "data": "AAAA", "mimeType": "image/png"}]);
    let image = json!({"sessionId": session, "prompt": image});
    let refused = editor.call(5, "session/prompt", image).await?;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    editor.prompt(6, &session, "Hello.").await?;
    let (said, done) = editor.updates(&session).await?;
    assert_eq!(text_of(&said, "agent_message_chunk"), "Quick.");
    assert_eq!(done["result"]["stopReason"], "end_turn", "{done}");
    assert_eq!(editor.ends().await?, (Some(0), String::new()));
    machine.check_model()
}

/// A streamed reply is cancelled in its middle.
#[tokio::test(flavor = "multi_thread")]
async fn cancel_ends_a_reply_that_streams() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut editor = Editor::start(&machine, &[])?;
    editor.greet().await?;
    let session = editor.open(&machine).await?;
    editor.prompt(2, &session, "Tell a story.").await?;
    let first = editor.read().await?;
    let update = &first["params"]["update"];
    assert_eq!(update["sessionUpdate"], "agent_message_chunk", "{first}");
    let cancel =
        json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}});
    editor.write(&cancel.to_string()).await?;
    let (_, done) = editor.updates(&session).await?;
    assert_eq!(
        (&done["id"], &done["result"]),
        (&json!(2), &json!({"stopReason": "cancelled"}))
    );
    editor.prompt(3, &session, "Hello.").await?;
    let (said, done) = editor.updates(&session).await?;
    assert_eq!(text_of(&said, "agent_message_chunk"), "Quick.");
    assert_eq!(done["result"]["stopReason"], "end_turn", "{done}");
    assert_eq!(editor.ends().await?, (Some(0), String::new()));
    Ok(())
}
