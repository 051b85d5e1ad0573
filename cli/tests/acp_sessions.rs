//! Sessions of an editor that speaks the Agent Client Protocol: their settings, their list, questions,
//! and agents beside the lead.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    editor::{Editor, acp, calls, text_of},
    front::Front,
    machine::PersonalMachine,
};
use serde_json::{Value, json};

async fn greeted(
    machine: &PersonalMachine,
    arguments: &[&str],
    capabilities: Value,
) -> Result<Editor> {
    Editor::greeted(acp(machine, arguments)?, capabilities).await
}

/// Writes a team as a template, and returns its name.
fn team(machine: &PersonalMachine, members: Value) -> Result<&'static str> {
    let team = json!({"members": members}).to_string();
    machine.write("../home/.planck/teams/painter/TEAM.json", &team)?;
    Ok("painter")
}

fn kinds(updates: &[Value]) -> Vec<&str> {
    let kinds = updates
        .iter()
        .map(|update| update["sessionUpdate"].as_str().unwrap());
    kinds.collect()
}

/// Returns the current values of the settings, and how many values each has.
fn settings(options: &Value) -> Vec<(&str, usize)> {
    let options = options.as_array().unwrap().iter();
    options
        .map(|option| {
            let values = option["options"].as_array().unwrap();
            (option["currentValue"].as_str().unwrap(), values.len())
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn team_mode_and_model_are_chosen_before_the_first_prompt() -> Result<()> {
    let call = Reply::call("bash", json!({"command": "touch made"}));
    let script = Script::new()
        .rule(When::any().model("gpt-5").result_of("bash"), "Not painted.")
        .rule(When::any().model("gpt-5").user("Paint."), call)
        .always("Quick.");
    let machine = PersonalMachine::start(script).await?;
    let members = json!([{"type": "painter", "system_prompt": "You paint."}]);
    let painter = team(&machine, members)?;
    let mut editor = greeted(&machine, &[], json!({})).await?;
    let new = json!({"cwd": machine.work(), "mcpServers": []});
    let opened = editor.call(1, "session/new", new).await?["result"].clone();
    let session = &opened["sessionId"];
    editor.commands(session).await?;
    assert_eq!(opened["modes"]["currentModeId"], "auto");
    let [mode, (team, teams), (model, models)] = settings(&opened["configOptions"])[..] else {
        panic!("{opened}");
    };
    assert_eq!((mode, team, model), (("auto", 3), "default", "default"));
    assert!(teams >= 2 && models > 2, "{opened}");

    let set = |option: &str, value: &str| json!({"sessionId": session, "configId": option, "value": value});
    for (option, value) in [("team", "unknown"), ("mode", "yolo"), ("speed", "fast")] {
        let refused = editor
            .call(2, "session/set_config_option", set(option, value))
            .await?;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let chosen = editor
        .call(3, "session/set_config_option", set("team", painter))
        .await?;
    assert_eq!(settings(&chosen["result"]["configOptions"])[1].0, painter);
    let mode = json!({"sessionId": session, "modeId": "read-only"});
    let done = editor.call(4, "session/set_mode", mode).await?;
    assert_eq!(done["result"], json!({}));
    let told = editor.read().await?["params"]["update"].clone();
    assert_eq!(told["currentModeId"], "read-only", "{told}");

    let (updates, end) = editor.asked(session, "Paint.").await?;
    assert_eq!(end, "end_turn");
    assert_eq!(
        kinds(&updates)[..2],
        ["config_option_update", "session_info_update"]
    );
    let now = settings(&updates[0]["configOptions"]);
    assert_eq!(now[..2], [("read-only", 1), (painter, 1)]);
    assert_eq!(now[2].0, "openai:gpt-5");
    assert_eq!(updates[1]["title"], "Paint.");
    assert_eq!(text_of(&updates, "agent_message_chunk"), "Not painted.");
    assert_eq!(*calls(&updates).last().context("no call")?.1, "failed");
    let usage = updates.last().context("no update")?;
    assert_eq!(usage["sessionUpdate"], "usage_update", "{usage}");
    assert!(usage["size"].as_u64() > usage["used"].as_u64(), "{usage}");
    assert!(machine.read("made").is_err());

    editor.ends().await?;
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_model_changes_after_the_first_prompt() -> Result<()> {
    let script = Script::new()
        .rule(When::any().model("gpt-5-mini"), "Small.")
        .always("Quick.");
    let machine = PersonalMachine::start(script).await?;
    let mut editor = greeted(&machine, &["--permissions", "read-only"], json!({})).await?;
    let session = &editor.open(&machine.work()).await?;
    editor.asked(session, "Hello.").await?;
    let auto = json!({"sessionId": session, "modeId": "auto"});
    let refused = editor.call(5, "session/set_mode", auto).await?;
    let why = refused["error"]["message"].as_str().context("no error")?;
    assert!(why.contains("first prompt"), "{why}");
    let same = json!({"sessionId": session, "modeId": "read-only"});
    let done = editor.call(6, "session/set_mode", same).await?;
    assert_eq!(done["result"], json!({}));
    editor.read().await?;
    let small = json!({"sessionId": session, "configId": "model", "value": "openai:gpt-5-mini"});
    let done = editor.call(7, "session/set_config_option", small).await?;
    let options = &done["result"]["configOptions"];
    assert_eq!(settings(options)[2].0, "openai:gpt-5-mini");
    let (updates, _) = editor.asked(session, "Hello.").await?;
    assert_eq!(text_of(&updates, "agent_message_chunk"), "Small.");
    editor.ends().await?;
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_listed_and_renamed() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Quick.")).await?;
    let mut editor = greeted(&machine, &[], json!({})).await?;
    let list = |folder: &Path| json!({"cwd": folder});
    // A session without a prompt leaves nothing behind.
    editor.open(&machine.work()).await?;
    let session = editor.open(&machine.work()).await?;
    editor.asked(&session, "Tell me.").await?;
    let (updates, end) = editor.asked(&session, "/rename The  story").await?;
    assert_eq!(end, "end_turn");
    assert_eq!(
        updates[0],
        json!({"sessionUpdate": "session_info_update", "title": "The story"})
    );
    let (updates, _) = editor.asked(&session, "/team").await?;
    assert!(
        text_of(&updates, "agent_message_chunk").contains("idle"),
        "{updates:?}"
    );
    // What is no command of the list is said to the model.
    let (updates, _) = editor.asked(&session, "/etc/hosts").await?;
    assert_eq!(text_of(&updates, "agent_message_chunk"), "Quick.");
    editor.ends().await?;

    let mut editor = greeted(&machine, &[], json!({})).await?;
    let listed = editor.call(2, "session/list", json!({})).await?["result"].clone();
    let [row] = listed["sessions"].as_array().unwrap().as_slice() else {
        panic!("{listed}");
    };
    assert_eq!(
        (&row["sessionId"], &row["title"]),
        (&session, &json!("The story"))
    );
    assert_eq!(row["cwd"], json!(machine.work()));
    assert!(row["updatedAt"].as_str().unwrap().ends_with('Z'), "{row}");
    let here = editor
        .call(3, "session/list", list(&machine.work()))
        .await?;
    assert_eq!(here["result"], listed);
    let elsewhere = editor
        .call(4, "session/list", list(machine.folder()))
        .await?;
    assert_eq!(elsewhere["result"]["sessions"], json!([]));

    editor.ends().await?;
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_resumed_closed_and_deleted() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Quick.")).await?;
    let mut editor = greeted(&machine, &[], json!({})).await?;
    let unused = editor.open(&machine.work()).await?;
    let session = editor.open(&machine.work()).await?;
    editor.asked(&session, "Tell me.").await?;
    editor.ends().await?;

    let mut editor = greeted(&machine, &[], json!({})).await?;
    let open = |session: &Value| json!({"sessionId": session, "cwd": machine.work()});
    let gone = editor.call(5, "session/resume", open(&unused)).await?;
    assert_eq!(gone["error"]["code"], -32002, "{gone}");
    // Resuming tells nothing of what was said.
    let resumed = editor.call(6, "session/resume", open(&session)).await?;
    assert_eq!(resumed["result"]["modes"]["currentModeId"], "auto");
    editor.commands(&session).await?;
    let named = json!({"sessionId": session});
    let closed = editor.call(7, "session/close", named.clone()).await?;
    assert_eq!(closed["result"], json!({}));
    // A prompt opens a closed session again.
    let (updates, end) = editor.asked(&session, "Hello.").await?;
    assert_eq!(
        (text_of(&updates, "agent_message_chunk"), end),
        ("Quick.".into(), json!("end_turn"))
    );
    for (id, code) in [(8, json!(null)), (9, json!(-32002))] {
        let deleted = editor.call(id, "session/delete", named.clone()).await?;
        assert_eq!(deleted["error"]["code"], code, "{deleted}");
    }
    let listed = editor.call(10, "session/list", json!({})).await?;
    assert_eq!(listed["result"]["sessions"], json!([]));
    editor.ends().await?;
    machine.check_model()
}

fn asker() -> Script {
    let question = json!({"question": "Which colour?", "options": ["red", "blue"]});
    Script::new()
        .rule(
            When::any().last("Ask me."),
            Reply::call("ask_user", question),
        )
        .rule(When::any().result("blue"), "It is blue.")
        .always("No colour.")
}

async fn asking(machine: &PersonalMachine, capabilities: Value) -> Result<(Editor, Value)> {
    let painter = team(machine, json!([{"type": "asker", "tools": ["ask_user"]}]))?;
    let mut editor = greeted(machine, &["--team", painter], capabilities).await?;
    let session = editor.open(&machine.work()).await?;
    Ok((editor, session))
}

#[tokio::test(flavor = "multi_thread")]
async fn question_ends_the_prompt_and_the_next_message_answers_it() -> Result<()> {
    let machine = PersonalMachine::start(asker()).await?;
    let (mut editor, session) = asking(&machine, json!({})).await?;
    let (updates, end) = editor.asked(&session, "Ask me.").await?;
    assert_eq!(end, "end_turn");
    let said = text_of(&updates, "agent_message_chunk");
    assert!(said.contains("Which colour?"), "{said}");
    assert!(said.contains("red · blue"), "{said}");
    let (updates, end) = editor.asked(&session, "blue").await?;
    assert_eq!(end, "end_turn");
    assert_eq!(text_of(&updates, "agent_message_chunk"), "It is blue.");
    // The same holds for an editor that loads the session.
    editor.asked(&session, "Ask me.").await?;
    editor.process.kill().await?;
    let mut editor = greeted(&machine, &[], json!({})).await?;
    let load = json!({"sessionId": session, "cwd": machine.work(), "mcpServers": []});
    editor.request(3, "session/load", load).await?;
    let (_, loaded) = editor.updates(&session).await?;
    assert_eq!(loaded["id"], 3, "{loaded}");
    editor.commands(&session).await?;
    let question = editor.read().await?["params"]["update"].clone();
    assert!(question.to_string().contains("Which colour?"), "{question}");
    let (updates, _) = editor.asked(&session, "blue").await?;
    assert_eq!(text_of(&updates, "agent_message_chunk"), "It is blue.");
    editor.ends().await?;
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn question_is_a_form_and_is_withdrawn_when_another_person_answers() -> Result<()> {
    let forms = json!({"elicitation": {"form": {}}});
    let machine = PersonalMachine::start(asker()).await?;
    // Another command reaches the session through the front of the store.
    let mut front = machine.planck(&[])?;
    front.env("PLANCK_MODELS_DEFAULT", "openai:gpt-5");
    let _front = Front::start(front, machine.folder(), &[]).await?;
    let (mut editor, session) = asking(&machine, forms).await?;
    editor.prompt(3, &session, "Ask me.").await?;
    let (_, asked) = editor.updates(&session).await?;
    assert_eq!(asked["method"], "elicitation/create", "{asked}");
    let form = &asked["params"];
    assert_eq!(
        (&form["mode"], &form["sessionId"]),
        (&json!("form"), &session)
    );
    assert_eq!(form["requestedSchema"]["required"], json!(["answer"]));
    let content = json!({"answer": "blue"});
    editor
        .answer(&asked, json!({"action": "accept", "content": content}))
        .await?;
    let (updates, done) = editor.updates(&session).await?;
    assert_eq!(done["result"]["stopReason"], "end_turn", "{done}");
    assert_eq!(text_of(&updates, "agent_message_chunk"), "It is blue.");

    editor.prompt(4, &session, "Ask me.").await?;
    let (_, asked) = editor.updates(&session).await?;
    let wait = asked["params"]["toolCallId"].as_str().context("no wait")?;
    let answered = machine.run(&["answer", wait, "blue"]).await?;
    assert_eq!(answered.code, 0, "{answered:?}");
    let (_, withdrawn) = editor.updates(&session).await?;
    assert_eq!(withdrawn["method"], "$/cancel_request", "{withdrawn}");
    assert_eq!(withdrawn["params"]["requestId"], asked["id"]);
    let (updates, done) = editor.updates(&session).await?;
    assert_eq!(done["result"]["stopReason"], "end_turn", "{done}");
    assert_eq!(text_of(&updates, "agent_message_chunk"), "It is blue.");
    // A late answer to what was withdrawn decides nothing, and nothing is said about it.
    let content = json!({"answer": "red"});
    let late = json!({"action": "accept", "content": content});
    editor.answer(&asked, late).await?;

    // A client that cancels its request withdraws the question.
    editor.prompt(5, &session, "Ask me.").await?;
    let (_, asked) = editor.updates(&session).await?;
    let request = json!({"requestId": 5});
    editor.notify("$/cancel_request", request).await?;
    let (_, withdrawn) = editor.updates(&session).await?;
    assert_eq!(withdrawn["params"]["requestId"], asked["id"], "{withdrawn}");
    let (_, done) = editor.updates(&session).await?;
    assert_eq!(done["result"]["stopReason"], "cancelled", "{done}");
    editor.ends().await?;
    machine.check_model()
}

/// A lead that sends a scout, whose only call needs a permission.
fn scouting() -> Script {
    let task = json!({"type": "scout", "system_prompt": "You are a scout.", "tools": ["bash"], "task": "Look."});
    let look = Reply::call("bash", json!({"command": "echo seen > seen.txt"}));
    let respond = Reply::call("send_response", json!({"response": "It is here."}));
    Script::new()
        .rule(
            When::any()
                .system("You are a scout")
                .result_of("send_response"),
            "I have told it.",
        )
        .rule(
            When::any().system("You are a scout").result_of("bash"),
            respond,
        )
        .rule(When::any().system("You are a scout"), look)
        .rule(When::any().user("[response to task"), "The scout has it.")
        .rule(When::any().result_of("spawn_agent"), "It is on its way.")
        .always(Reply::call("spawn_agent", task))
}

async fn scouted(capabilities: Value) -> Result<(Value, Vec<Value>, Value)> {
    let machine = PersonalMachine::start(scouting()).await?;
    let members = json!([{"type": "lead", "tools": ["spawn_agent", "bash"]}]);
    let painter = team(&machine, members)?;
    let arguments = ["--team", painter, "--permissions", "careful"];
    let mut editor = greeted(&machine, &arguments, capabilities).await?;
    let session = editor.open(&machine.work()).await?;
    editor.prompt(3, &session, "Search.").await?;
    let (mut messages, mut asked) = (Vec::new(), Value::Null);
    loop {
        let message = editor.read().await?;
        if message["id"] == 3 {
            assert_eq!(message["result"]["stopReason"], "end_turn", "{message}");
            break;
        }
        if message["method"] == "session/request_permission" {
            assert_eq!(
                message["params"]["toolCall"]["title"],
                "echo seen > seen.txt"
            );
            editor.choose(&message, "allow").await?;
            asked = message["params"].clone();
            continue;
        }
        messages.push(message["params"].clone());
    }
    assert_eq!(machine.read("seen.txt")?, "seen\n");
    editor.ends().await?;
    machine.check_model()?;
    Ok((session, messages, asked))
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_beside_the_lead_is_a_call_of_the_lead() -> Result<()> {
    let (session, messages, asked) = scouted(json!({})).await?;
    // An editor that knows one session is told of no other one.
    ensure!(
        messages
            .iter()
            .all(|message| message["sessionId"] == session)
    );
    assert_eq!(asked["sessionId"], session);
    let updates: Vec<Value> = messages
        .iter()
        .map(|message| message["update"].clone())
        .collect();
    let said = text_of(&updates, "agent_message_chunk");
    assert_eq!(said, "It is on its way.\n\nThe scout has it.");
    let (agents, calls): (Vec<_>, Vec<_>) = calls(&updates)
        .into_iter()
        .partition(|(id, _)| id.as_str().unwrap().starts_with("agent-"));
    assert_eq!(*agents.last().context("no agent")?.1, "completed");
    let of_scout = calls
        .iter()
        .filter(|(id, _)| **id == asked["toolCall"]["toolCallId"]);
    let states: Vec<_> = of_scout.map(|(_, state)| state.as_str().unwrap()).collect();
    assert_eq!(states, ["pending", "in_progress", "completed"]);
    Ok(())
}

/// The lead rests while the scout waits for a permission.
#[tokio::test(flavor = "multi_thread")]
async fn work_of_a_team_is_followed_after_a_load() -> Result<()> {
    let machine = PersonalMachine::start(scouting()).await?;
    let members = json!([{"type": "lead", "tools": ["spawn_agent", "bash"]}]);
    let painter = team(&machine, members)?;
    let arguments = ["--team", painter, "--permissions", "careful"];
    let mut editor = greeted(&machine, &arguments, json!({})).await?;
    let session = editor.open(&machine.work()).await?;
    editor.prompt(3, &session, "Search.").await?;
    let mut before = Vec::new();
    while !text_of(&before, "agent_message_chunk").contains("It is on its way.") {
        before.push(editor.read().await?["params"]["update"].clone());
    }
    editor.process.kill().await?;
    let mut editor = greeted(&machine, &[], json!({})).await?;
    let load = json!({"sessionId": session, "cwd": machine.work(), "mcpServers": []});
    editor.request(4, "session/load", load).await?;
    let (mut updates, mut is_loaded) = (Vec::new(), false);
    while !text_of(&updates, "agent_message_chunk").ends_with("The scout has it.") {
        let message = editor.read().await?;
        is_loaded |= message["id"] == 4 && message["result"].is_object();
        if message["method"] == "session/request_permission" {
            editor.choose(&message, "allow").await?;
        }
        updates.push(message["params"]["update"].clone());
    }
    assert!(is_loaded);
    assert_eq!(text_of(&updates, "user_message_chunk"), "Search.");
    let said = text_of(&updates, "agent_message_chunk");
    assert_eq!(said, "It is on its way.\n\nThe scout has it.");
    assert_eq!(machine.read("seen.txt")?, "seen\n");
    editor.leaves().await
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_beside_the_lead_has_a_session_if_the_editor_shows_it() -> Result<()> {
    let (session, messages, asked) = scouted(json!({"subagents": {}})).await?;
    let announced = messages
        .iter()
        .find(|message| message["update"]["sessionUpdate"] == "subagent_update");
    let scout = announced.context("no agent")?["update"].clone();
    let scout = &scout["sessionId"];
    assert_eq!(asked["sessionId"], *scout);
    let of = |wanted: &Value| -> Vec<Value> {
        let of = messages
            .iter()
            .filter(|message| message["sessionId"] == *wanted);
        of.map(|message| message["update"].clone()).collect()
    };
    let said = text_of(&of(&session), "agent_message_chunk");
    assert_eq!(said, "It is on its way.\n\nThe scout has it.");
    assert_eq!(
        text_of(&of(scout), "agent_message_chunk"),
        "I have told it."
    );
    let worked = json!({"state": "running"});
    ensure!(of(&session).iter().any(|update| update["state"] == worked));
    // A child is announced before anything of it is told.
    let at = |wanted: &dyn Fn(&Value) -> bool| messages.iter().position(wanted);
    let first = at(&|message| message["update"]["sessionId"] == *scout);
    assert!(
        first < at(&|message| message["sessionId"] == *scout),
        "{messages:#?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_images_reach_the_model_and_changes_are_shown_as_diffs() -> Result<()> {
    let edit = json!({"path": "a.txt", "old_string": "one", "new_string": "two"});
    let script = Script::new()
        .rule(When::any().result_of("edit"), "Done.")
        .rule(
            When::any().anywhere("fn main").anywhere("file:///b.rs"),
            Reply::call("edit", edit),
        )
        .always("Nothing was attached.");
    let machine = PersonalMachine::start(script).await?;
    machine.write("a.txt", "one\n")?;
    let mut editor = greeted(&machine, &[], json!({})).await?;
    let session = editor.open(&machine.work()).await?;
    // A pixel.
    let image = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let prompt = json!([
        {"type": "text", "text": "Look."},
        {"type": "resource", "resource": {"uri": "file:///b.rs", "text": "fn main() {}"}},
        {"type": "resource_link", "name": "c", "uri": "file:///c.rs"},
        {"type": "image", "data": image, "mimeType": "image/png"},
    ]);
    let prompt = json!({"sessionId": session, "prompt": prompt});
    editor.request(2, "session/prompt", prompt).await?;
    let (updates, done) = editor.updates(&session).await?;
    assert_eq!(done["result"]["stopReason"], "end_turn", "{done}");
    assert_eq!(text_of(&updates, "agent_message_chunk"), "Done.");
    let call = updates
        .iter()
        .find(|update| update["sessionUpdate"] == "tool_call");
    let call = call.context("no call")?;
    let path = json!(machine.work().join("a.txt"));
    assert_eq!(call["locations"], json!([{"path": path}]));
    let diff = json!({"type": "diff", "path": path, "oldText": "one", "newText": "two"});
    assert_eq!(call["content"], json!([diff]));
    assert_eq!(machine.read("a.txt")?, "two\n");
    let asked = machine
        .model
        .requests()
        .into_iter()
        .map(|request| request.body.to_string());
    assert!(
        asked.into_iter().any(|body| body.contains(image)),
        "no image"
    );
    editor.ends().await?;
    machine.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_has_two_hundred_sessions() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Quick.")).await?;
    let mut editor = greeted(&machine, &[], json!({})).await?;
    let mut sessions = Vec::new();
    for _ in 0..200 {
        sessions.push(editor.open(&machine.work()).await?);
    }
    for (id, session) in sessions.iter().enumerate() {
        editor.prompt(u32::try_from(id)?, session, "Hello.").await?;
    }
    let mut said = vec![String::new(); sessions.len()];
    let mut left = sessions.len();
    while left > 0 {
        let message = editor.read().await?;
        if let Some(id) = message["id"].as_u64() {
            assert_eq!(message["result"]["stopReason"], "end_turn", "{message}");
            // Each end comes after all of its own session.
            assert_eq!(said[usize::try_from(id)?], "Quick.");
            left -= 1;
            continue;
        }
        let params = &message["params"];
        let of = sessions
            .iter()
            .position(|session| *session == params["sessionId"]);
        let update = std::slice::from_ref(&params["update"]);
        said[of.context("no such session")?] += &text_of(update, "agent_message_chunk");
    }
    // The node may have been slow for so many at once, which is said.
    editor.leaves().await
}
