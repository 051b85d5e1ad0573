//! Keeps sessions busy with clients that follow the protocol. A client repeats a request that was
//! not acknowledged, with the same prompt id.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, bail};
use planck_common::{
    SessionId,
    command::{Accepted, SessionVerb, Started},
};
use planck_scripted_model::{Reply, Script, When};
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::stage::Stage;
use crate::{caller::Caller, caller::session_at};

/// How long a client waits for one reply.
const TRY: Duration = Duration::from_secs(2);
/// The pause after a prompt was refused or could not be sent. It is short, so that clients ask as
/// soon as the cluster is back, when its nodes may not begin work yet.
const PAUSE: Duration = Duration::from_millis(20);
/// How long it may take until a prompt is accepted. Outages of NATS and of the database are
/// shorter.
const REFUSED: Duration = Duration::from_secs(120);
/// How long an accepted prompt may take to be answered. While faults continue, its session may get
/// no time to work.
const ANSWERED: Duration = Duration::from_secs(300);

pub struct Load {
    pub sessions: Vec<SessionId>,
    clients: JoinSet<Result<Vec<AcknowledgedPrompt>>>,
    stop: Arc<AtomicBool>,
}

/// A prompt that was acknowledged.
#[derive(Debug, Clone)]
pub struct AcknowledgedPrompt {
    pub session: SessionId,
    pub prompt: String,
}

impl Load {
    pub async fn start(stage: &Stage, sessions: usize) -> Result<Self> {
        let mut load = Self {
            sessions: Vec::new(),
            clients: JoinSet::new(),
            stop: Arc::default(),
        };
        let members = json!([
            { "type": "lead", "tools": ["bash", "spawn_agent"] },
            { "type": "helper", "tools": ["bash"] },
        ]);
        for number in 0..sessions {
            let start = json!({ "dir": stage.world.dir(), "members": members });
            let Started { session_id, .. } = stage.world.caller.start(&start).await?;
            load.sessions.push(session_id.clone());
            let client = Client {
                caller: stage.world.caller.clone(),
                session: session_id,
                number,
            };
            load.clients
                .spawn(client.keep_asking(Arc::clone(&load.stop)));
        }
        Ok(load)
    }

    /// Stops the clients from sending further prompts, waits for the answers to the acknowledged
    /// ones, and returns these prompts.
    pub async fn finish(mut self) -> Result<Vec<AcknowledgedPrompt>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut asked = Vec::new();
        while let Some(client) = self.clients.join_next().await {
            asked.extend(client??);
        }
        Ok(asked)
    }
}

struct Client {
    caller: Caller,
    session: SessionId,
    number: usize,
}

impl Client {
    async fn keep_asking(self, stop: Arc<AtomicBool>) -> Result<Vec<AcknowledgedPrompt>> {
        let mut asked = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let prompt = format!("s{}-{}", self.number, asked.len());
            self.ask(&prompt).await?;
            asked.push(AcknowledgedPrompt {
                session: self.session.clone(),
                prompt: prompt.clone(),
            });
            self.answered(&prompt).await?;
        }
        Ok(asked)
    }

    /// Sends a prompt until it is acknowledged. Fails if a refusal is not retryable, or after
    /// [`REFUSED`].
    async fn ask(&self, prompt: &str) -> Result<()> {
        let body = json!({ "text": format!("work {prompt} for 1"), "prompt_id": prompt });
        let until = Instant::now() + REFUSED;
        loop {
            let to = session_at(&self.session, SessionVerb::Prompt);
            let error = match timeout(TRY, self.caller.try_request::<Accepted>(&to, &body)).await {
                Ok(Ok(Ok(_))) => return Ok(()),
                Ok(Ok(Err(refusal))) if !refusal.retryable => {
                    bail!(
                        "{prompt} of {} is refused for good: {refusal}",
                        self.session
                    )
                }
                Ok(Ok(Err(refusal))) => refusal.to_string(),
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() > until {
                bail!(
                    "{prompt} of {} was not accepted within {REFUSED:?}: {error}",
                    self.session
                );
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits until the prompt's turn has ended in the log. It reads the log because published
    /// events may be lost.
    async fn answered(&self, prompt: &str) -> Result<()> {
        let until = Instant::now() + ANSWERED;
        let mut from = 1;
        loop {
            if let Ok(Ok(page)) = timeout(TRY, self.caller.events(&self.session, from)).await {
                if page.events.iter().any(|event| {
                    super::checks::ends_of(event.get())
                        .iter()
                        .any(|input| input == prompt)
                }) {
                    return Ok(());
                }
                from = page.next;
            }
            if Instant::now() > until {
                bail!(
                    "{prompt} of {} was acknowledged and not answered within {ANSWERED:?}",
                    self.session
                );
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Returns the script of an orchestrator and its helper. The orchestrator does one piece of work
/// itself, has the helper do another, and reports that both are done.
pub fn script(ledger: &Path) -> Script {
    let ledger = ledger.display();
    let writes = |mark: &str| json!({ "command": format!("echo {{{{word_after:work }}}}{mark} >> {ledger}; sleep 0.{{{{word_after:for }}}}") });
    let asks = json!({ "agent": "helper", "question": "work {{word_after:work }} for {{word_after:for }}" });
    Script::new()
        .rounds(
            When::any().tool("spawn_agent"),
            [
                Reply::call("bash", writes("-lead")),
                Reply::call("ask_agent", asks),
                Reply::text("All of it is done."),
            ],
        )
        .rounds(
            When::any(),
            [
                Reply::call("bash", writes("-helper")),
                Reply::text("My part is done."),
            ],
        )
}
