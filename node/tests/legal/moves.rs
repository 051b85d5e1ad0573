//! The commands from which a seed selects, and the script of the model.

use planck_scripted_model::{Pace, Reply, Script, When};
use serde_json::{Value, json};

/// The texts of the prompts. For each distinct text the orchestrator does something different.
pub const TEXTS: [&str; 10] = [
    "hello", "hello", "hello", "slow", "write", "ask", "delegate", "spawn", "person", "remote",
];

#[derive(Debug, Clone, Copy)]
pub enum Move {
    Prompt,
    Rewind,
    PromptsBesideRewind,
    RewindOverQueue,
    Checkpoint,
    Abort,
    StopWorker,
    Answer,
    Kill,
    KillBesideRewind,
    Delete,
    StartAgain,
    Suspend,
    Pause,
}

pub const CHOICES: [Move; 26] = [
    Move::Prompt,
    Move::Prompt,
    Move::Prompt,
    Move::Prompt,
    Move::Prompt,
    Move::Rewind,
    Move::Rewind,
    Move::PromptsBesideRewind,
    Move::PromptsBesideRewind,
    Move::PromptsBesideRewind,
    Move::RewindOverQueue,
    Move::RewindOverQueue,
    Move::Checkpoint,
    Move::Abort,
    Move::Abort,
    Move::StopWorker,
    Move::Answer,
    Move::Kill,
    Move::KillBesideRewind,
    Move::Delete,
    Move::StartAgain,
    Move::Suspend,
    Move::Suspend,
    Move::Pause,
    Move::Pause,
    Move::Pause,
];

pub fn script() -> Script {
    let words =
        |count: usize| Reply::text("word ".repeat(count)).pace(Pace::per_second(200.0).chunk(5));
    let call = |name: &str, args: Value| Reply::text("Let me see.").and_call(name, args);
    let file = || json!({ "path": "a.txt", "content": "a" });
    let of_worker = |tool: &str, what: &str, text: &str| {
        let mut args = json!({ "agent": "worker" });
        args[what] = text.into();
        call(tool, args)
    };
    let question = call("ask_user", json!({ "question": "Which one?" }));
    let writes = call("write", file()).and_call("read", json!({ "path": "a.txt" }));
    let spawns = json!({ "type": "helper", "task": "work-slow" });
    let begins = [
        ("work-write", call("write", file())),
        ("work-person", question.clone()),
        ("write", writes),
        ("ask", of_worker("ask_agent", "question", "work-write")),
        ("delegate", of_worker("delegate_task", "task", "work-slow")),
        ("person", question),
        ("remote", of_worker("delegate_task", "task", "work-person")),
        ("spawn", call("spawn_agent", spawns)),
    ];
    let script = Script::new().rule(When::any().user("slow"), words(60));
    let script = begins.into_iter().fold(script, |script, (text, first)| {
        script.rounds(When::any().user(text), [first, words(5)])
    });
    script.always(words(8))
}

/// Returns the members of a session.
pub fn members() -> Value {
    json!([
        { "type": "lead", "name": "lead", "tools": ["read", "write", "spawn_agent", "ask_user"] },
        { "type": "worker", "name": "worker", "tools": ["read", "write", "ask_user"] },
    ])
}
