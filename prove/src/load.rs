//! Keeps sessions busy, as clients that follow the protocol: a request that was not acknowledged is sent
//! again with the same id.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use planck_scripted_model::{Pace, Reply, Script, When};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    client::{Answer, Caller, inputs_that_end, text},
    evidence::AcceptedPrompt,
    stage::Stage,
};

/// How long it may take until a prompt is accepted. Every outage is shorter.
const ACCEPTED: Duration = Duration::from_secs(120);
/// How long an accepted prompt may take to be answered.
const ANSWERED: Duration = Duration::from_secs(120);
/// The pause between two looks at a log.
const LOOK: Duration = Duration::from_millis(50);

/// The sessions that are kept busy.
pub struct Load {
    pub sessions: Vec<String>,
    clients: JoinSet<Result<Vec<AcceptedPrompt>>>,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
}

impl Load {
    pub async fn start(stage: &Stage, sessions: usize) -> Result<Self> {
        let mut load = Self {
            sessions: Vec::new(),
            clients: JoinSet::new(),
            stop: Arc::default(),
            answered: Arc::default(),
        };
        let members = json!([
            {"type": "lead", "tools": ["bash", "spawn_agent"]},
            {"type": "helper", "tools": ["bash"]},
        ]);
        for number in 0..sessions {
            let start = json!({"workspace": "prove", "members": members});
            let session = start_session(&stage.caller, start).await?;
            load.sessions.push(session.clone());
            let client = Client {
                caller: stage.caller.clone(),
                session,
                number,
                answered: Arc::clone(&load.answered),
            };
            load.clients
                .spawn(client.keep_asking(Arc::clone(&load.stop)));
        }
        Ok(load)
    }

    /// Returns how many prompts were answered so far.
    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Lets the clients send no further prompt, waits for the answers, and returns the prompts that were
    /// accepted. A prompt that is never answered is among them: the judge sees it in the log.
    pub async fn finish(&mut self) -> Result<Vec<AcceptedPrompt>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut accepted = Vec::new();
        while let Some(client) = self.clients.join_next().await {
            accepted.extend(client??);
        }
        Ok(accepted)
    }
}

/// Starts a session, and returns its id.
pub async fn start_session(caller: &Caller, start: Value) -> Result<String> {
    let started = caller.ask("cmd.sessions.start", &start, ACCEPTED).await?;
    let id = text(&started, "session_id").to_owned();
    if id.is_empty() {
        bail!("a session was started without an id: {started}");
    }
    Ok(id)
}

struct Client {
    caller: Caller,
    session: String,
    number: usize,
    answered: Arc<AtomicUsize>,
}

impl Client {
    async fn keep_asking(self, stop: Arc<AtomicBool>) -> Result<Vec<AcceptedPrompt>> {
        let mut accepted = Vec::new();
        let mut from = 1;
        while !stop.load(Ordering::Relaxed) {
            let id = format!("s{}-{}", self.number, accepted.len());
            prompt(
                &self.caller,
                &self.session,
                &id,
                &format!("work {id} for 1"),
            )
            .await?;
            accepted.push(AcceptedPrompt {
                session: self.session.clone(),
                id: id.clone(),
            });
            match answered(&self.caller, &self.session, &id, from).await? {
                Some(next) => from = next,
                None => return Ok(accepted),
            }
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(accepted)
    }
}

/// Sends a prompt until it is accepted.
pub async fn prompt(caller: &Caller, session: &str, id: &str, text: &str) -> Result<()> {
    let words = format!("cmd.session.{session}.prompt");
    let body = json!({"text": text, "prompt_id": id});
    caller.ask(&words, &body, ACCEPTED).await?;
    Ok(())
}

/// Waits until the log has the end of a prompt, and returns where it goes on. Returns `None` if there is
/// no end in time. The log is read because published events may be lost.
async fn answered(caller: &Caller, session: &str, id: &str, from: u64) -> Result<Option<u64>> {
    let until = Instant::now() + ANSWERED;
    let words = format!("cmd.session.{session}.events");
    let mut from = from;
    while Instant::now() < until {
        if let Answer::Ok(page) = caller.try_ask(&words, &json!({"from": from})).await {
            let next = page.get("next").and_then(Value::as_u64);
            let events = page.get("events").and_then(Value::as_array);
            from = next.context("a page of a log does not tell where it goes on")?;
            let mut ends = events.into_iter().flatten().flat_map(inputs_that_end);
            if ends.any(|input| input == id) {
                return Ok(Some(from));
            }
        }
        sleep(LOOK).await;
    }
    Ok(None)
}

/// How many workers of a team that has to end run a process. The others wait for their model.
const RUNNERS: usize = 12;
/// How many workers one answer spawns at most, which is the default of `limits.answer.max_calls`.
const OF_ONE_ANSWER: usize = 128;

/// Returns how many processes and model calls a team that has to end has at once. Its lead waits for its
/// model, too.
pub fn work_of_team(workers: usize) -> (usize, usize) {
    let runners = workers.min(RUNNERS);
    (runners, workers - runners + 1)
}

/// Returns the script of the model. A lead does one piece of work itself, has its helper do another, and
/// says that both are done. Each piece appends a line to the ledger.
pub fn script(ledger: &Path, doubles_runs: bool, workers: usize) -> Script {
    let ledger = ledger.display();
    let line = |mark: &str| format!("echo {{{{word_after:work }}}}{mark} >> {ledger}");
    let again = match doubles_runs {
        true => format!("; {}", line("-lead")),
        false => String::new(),
    };
    let writes = |mark: &str, again: &str| json!({"command": format!("{}; sleep 0.{{{{word_after:for }}}}{again}", line(mark))});
    let asks =
        json!({"agent": "helper", "question": "work {{word_after:work }} for {{word_after:for }}"});
    let hold = format!("export HELD=\"{ledger}\"; sleep 1000; true");
    let hold = json!({"command": hold, "timeout": 600_000});
    let (runners, _) = work_of_team(workers);
    let worker = |number: usize| {
        let part = if number < runners {
            "You hold."
        } else {
            "You talk."
        };
        json!({"type": "worker", "name": format!("w{number}"), "system_prompt": part, "tools": ["bash"], "task": "Hold."})
    };
    let numbers: Vec<usize> = (0..workers).collect();
    let spawned = |some: &[usize]| {
        some.iter().fold(Reply::new(), |reply, number| {
            reply.and_call("spawn_agent", worker(*number))
        })
    };
    let endless = || Reply::text("word ".repeat(500)).pace(Pace::per_second(0.2));
    let lead = numbers
        .chunks(OF_ONE_ANSWER)
        .map(spawned)
        .chain([endless()]);
    let asked = json!({"command": format!("echo {{{{word_after:asked }}}} >> {ledger}")});
    Script::new()
        .rule(When::any().system("You hold."), Reply::call("bash", hold))
        .rule(When::any().system("You talk."), endless())
        .rounds(When::any().user("Hold all."), lead)
        .rounds(
            When::any().user("asked "),
            [Reply::call("bash", asked), Reply::text("It is decided.")],
        )
        .rounds(
            When::any().tool("spawn_agent"),
            [
                Reply::call("bash", writes("-lead", &again)),
                Reply::call("ask_agent", asks),
                Reply::text("All of it is done."),
            ],
        )
        .rounds(
            When::any(),
            [
                Reply::call("bash", writes("-helper", "")),
                Reply::text("My part is done."),
            ],
        )
        .keep(10)
}
