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
    let question = call("ask_user", json!({ "question": "Which one?" }));
    Script::new()
        .rounds(
            When::any().user("work-write"),
            [call("write", file()), words(10)],
        )
        .rounds(
            When::any().user("work-person"),
            [question.clone(), words(5)],
        )
        .rule(When::any().user("work-slow"), words(60))
        .rule(When::any().user("slow"), words(60))
        .rounds(
            When::any().user("write"),
            [
                call("write", file()).and_call("read", json!({ "path": "a.txt" })),
                words(5),
            ],
        )
        .rounds(
            When::any().user("ask"),
            [
                call(
                    "ask_agent",
                    json!({ "agent": "worker", "question": "work-write" }),
                ),
                words(5),
            ],
        )
        .rounds(
            When::any().user("delegate"),
            [
                call(
                    "delegate_task",
                    json!({ "agent": "worker", "task": "work-slow" }),
                ),
                words(5),
            ],
        )
        .rounds(When::any().user("person"), [question, words(5)])
        .rounds(
            When::any().user("remote"),
            [
                call(
                    "delegate_task",
                    json!({ "agent": "worker", "task": "work-person" }),
                ),
                words(5),
            ],
        )
        .rounds(
            When::any().user("spawn"),
            [
                call(
                    "spawn_agent",
                    json!({ "type": "helper", "task": "work-slow" }),
                ),
                words(5),
            ],
        )
        .always(words(8))
}
