//! Carries out the commands that a seed selects, and checks their results.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use planck_common::{
    InputId, SessionId,
    command::{
        Accepted, AgentRow, AgentState, AgentVerb, SessionInfo, SessionVerb, SessionsVerb, Started,
        Waits,
    },
    envelope::Envelope,
    event::EventKind,
    reply::{Code, Refusal},
    subject::{Address, Target},
};
use planck_scripted_model::Server;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    checks::{self, shown},
    moves::{CHOICES, Move, TEXTS, members, script},
    node_process::{Answered, NodeProcess, answered, read},
};

/// The maximum number of commands for one seed.
const MOVES: usize = 24;
/// How long [`Play::quiet`] and [`Play::kill`] wait.
const QUIET: Duration = Duration::from_secs(15);

pub struct Play {
    dice: fastrand::Rng,
    folder: TempDir,
    model: Server,
    node: NodeProcess,
    session: SessionId,
    lead: String,
    /// The prompts that the node accepted.
    prompts: BTreeSet<InputId>,
    done: Vec<String>,
}

impl Play {
    /// Carries out all commands of a seed.
    pub async fn run(seed: u64) -> Result<()> {
        let folder = TempDir::new()?;
        std::fs::create_dir(folder.path().join("work"))?;
        let model = Server::start(script().without_auth()).await?;
        let node = NodeProcess::begin(folder.path(), &model.openai_url()).await?;
        let dice = fastrand::Rng::with_seed(seed);
        let (session, prompts) = (SessionId::mint(), BTreeSet::new());
        let mut play = Self {
            dice,
            folder,
            model,
            node,
            session,
            lead: String::new(),
            prompts,
            done: Vec::new(),
        };
        let played = play.all().await;
        if let Err(error) = &played {
            let log = play.log().await.unwrap_or_default();
            let rows: Vec<String> = log.iter().map(shown).collect();
            bail!(
                "{error:#}\nsession {} of {:?}\n{}\nafter {}",
                play.session,
                play.lead,
                rows.join("\n"),
                play.done.join("\n")
            );
        }
        play.node.leave().await
    }

    async fn all(&mut self) -> Result<()> {
        self.start().await?;
        for _ in 0..self.dice.usize(8..=MOVES) {
            let next = CHOICES[self.dice.usize(..CHOICES.len())];
            self.done.push(format!("{next:?}"));
            Box::pin(self.step(next))
                .await
                .with_context(|| format!("{next:?}"))?;
        }
        self.quiet().await
    }

    async fn step(&mut self, next: Move) -> Result<()> {
        match next {
            Move::Prompt => {
                let asked = self.prompt();
                self.accept(answered(asked).await, &[])
            }
            Move::Rewind => {
                let Some(asked) = self.rewind().await? else {
                    return Ok(());
                };
                self.settled(answered(asked).await, &[Code::BadRequest])
            }
            Move::PromptsBesideRewind => self.prompts_beside_rewind().await,
            Move::RewindOverQueue => self.rewind_over_queue().await,
            Move::Checkpoint => {
                let to = Address::agent(&self.lead, AgentVerb::Checkpoint.name());
                let asked = self.node.ask(to, json!({ "summary": "So far, so good." }));
                self.settled(answered(asked).await, &[])
            }
            Move::Abort => {
                let asked = self.node.ask(self.at(SessionVerb::Abort), json!({}));
                self.settled(answered(asked).await, &[])
            }
            Move::StopWorker => self.stop_worker().await,
            Move::Answer => self.answer_all().await,
            Move::Kill => {
                let prompts: Vec<_> = (0..self.dice.usize(0..3)).map(|_| self.prompt()).collect();
                self.kill().await?;
                for asked in prompts {
                    self.accept(answered(asked).await, &[])?;
                }
                Ok(())
            }
            Move::KillBesideRewind => {
                let Some(asked) = self.rewind().await? else {
                    return Ok(());
                };
                tokio::time::sleep(Duration::from_millis(self.dice.u64(0..30))).await;
                self.kill().await?;
                self.settled(answered(asked).await, &[Code::BadRequest])
            }
            Move::Delete => self.delete().await,
            Move::StartAgain => {
                let asked = [self.starting(), self.starting()];
                for asked in asked {
                    self.settled(answered(asked).await, &[])?;
                }
                Ok(())
            }
            Move::Suspend => self.prompts_without_a_permit().await,
            Move::Pause => {
                tokio::time::sleep(Duration::from_millis(self.dice.u64(0..250))).await;
                Ok(())
            }
        }
    }

    /// Sends prompts while the node may not begin new work.
    async fn prompts_without_a_permit(&mut self) -> Result<()> {
        self.node.permit(false);
        for _ in 0..self.dice.usize(1..4) {
            let asked = self.prompt();
            self.accept(answered(asked).await, &[])?;
        }
        self.node.permit(true);
        Ok(())
    }

    /// Sends prompts and a rewind concurrently.
    async fn prompts_beside_rewind(&mut self) -> Result<()> {
        let before = self.dice.usize(0..3);
        let mut prompts: Vec<_> = (0..before).map(|_| self.prompt()).collect();
        let Some(rewind) = self.rewind().await? else {
            return Ok(());
        };
        for _ in 0..self.dice.usize(1..4) {
            tokio::time::sleep(Duration::from_millis(self.dice.u64(0..8))).await;
            prompts.push(self.prompt());
        }
        for asked in prompts {
            self.accept(answered(asked).await, &[])?;
        }
        self.settled(answered(rewind).await, &[Code::BadRequest])
    }

    /// Sends prompts, and then a rewind while some of them may still wait.
    async fn rewind_over_queue(&mut self) -> Result<()> {
        for _ in 0..self.dice.usize(2..4) {
            let asked = self.prompt();
            self.accept(answered(asked).await, &[])?;
        }
        tokio::time::sleep(Duration::from_millis(self.dice.u64(0..30))).await;
        let Some(rewind) = self.rewind().await? else {
            return Ok(());
        };
        self.settled(answered(rewind).await, &[Code::BadRequest])
    }

    async fn stop_worker(&mut self) -> Result<()> {
        let agents = self.info().await?.agents.into_iter();
        let mut workers: Vec<String> = agents.map(|agent| agent.id.to_string()).collect();
        workers.retain(|id| *id != self.lead);
        if workers.is_empty() {
            return Ok(());
        }
        let worker = &workers[self.dice.usize(..workers.len())];
        let asked = self
            .node
            .ask(Address::agent(worker, AgentVerb::Stop.name()), json!({}));
        self.settled(answered(asked).await, &[Code::NotFound])?;
        // The messages of a stopped agent can still be read.
        let read = self
            .node
            .ask(self.at(SessionVerb::Messages), json!({ "agent": worker }));
        self.settled(answered(read).await, &[])
    }

    /// Answers all questions that agents wait for.
    async fn answer_all(&self) -> Result<()> {
        let to = Address::new(Target::Sessions, SessionsVerb::Waits.name());
        let asked = self.node.ask(to, json!({ "session": self.session }));
        let open: Waits = read(answered(asked).await)?;
        for wait in open.waits {
            let answer = json!({ "wait": wait.id, "decision": "answer", "value": "the first" });
            let asked = self.node.ask(self.at(SessionVerb::Answer), answer);
            self.settled(answered(asked).await, &[Code::Exists, Code::NotFound])?;
        }
        Ok(())
    }

    /// Sends commands and the removal of their session concurrently. Repeats the removal until the
    /// session does not exist, and starts another.
    async fn delete(&mut self) -> Result<()> {
        self.quiet().await?;
        let beside = [
            self.prompt(),
            self.node.ask(self.at(SessionVerb::Info), json!({})),
        ];
        let deleted = self.node.ask(self.at(SessionVerb::Delete), json!({}));
        let more = [
            self.prompt(),
            self.node.ask(self.at(SessionVerb::Events), json!({})),
            self.node.ask(self.at(SessionVerb::Messages), json!({})),
        ];
        let end = self.node.ask(
            Address::agent(&self.lead, AgentVerb::Info.name()),
            json!({}),
        );
        for asked in beside.into_iter().chain(more).chain([end]) {
            self.settled(answered(asked).await, &[Code::NotFound, Code::Busy])?;
        }
        self.settled(answered(deleted).await, &[Code::Busy])?;
        // A concurrent prompt may have reopened the session.
        loop {
            match answered(self.node.ask(self.at(SessionVerb::Delete), json!({}))).await {
                Some(Err(refusal)) if refusal.code == Code::NotFound => break,
                other => self.settled(other, &[Code::Busy])?,
            }
        }
        (self.session, self.prompts) = (SessionId::mint(), BTreeSet::new());
        self.start().await
    }

    /// Replaces the process by a new one. Returns when the new one hosts the session.
    async fn kill(&mut self) -> Result<()> {
        checks::check_order(&self.node.received())?;
        let next = NodeProcess::begin(self.folder.path(), &self.model.openai_url()).await?;
        std::mem::replace(&mut self.node, next).kill().await;
        let began = Instant::now();
        loop {
            match answered(self.node.ask(self.at(SessionVerb::Resume), json!({})))
                .await
                .context("killed")?
            {
                Ok(_) if self.info().await?.owner.as_ref() == Some(self.node.id()) => return Ok(()),
                Err(refusal) if !refusal.retryable => bail!("cannot resume: {refusal}"),
                _ if began.elapsed() > QUIET => bail!("nobody takes the session up"),
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn starting(&self) -> tokio::task::JoinHandle<Result<Value, Refusal>> {
        let body = json!({ "session_id": self.session, "dir": self.folder.path().join("work"), "members": members() });
        self.node.ask(
            Address::new(Target::Sessions, SessionsVerb::Start.name()),
            body,
        )
    }

    async fn start(&mut self) -> Result<()> {
        let started: Started = read(answered(self.starting()).await)?;
        self.lead = started.orchestrator.to_string();
        Ok(())
    }

    fn at(&self, verb: SessionVerb) -> Address {
        Address::session(&self.session, verb.name())
    }

    fn prompt(&mut self) -> tokio::task::JoinHandle<Result<Value, Refusal>> {
        let text = TEXTS[self.dice.usize(..TEXTS.len())];
        let mode = ["steer", "queue", "queue", "queue"][self.dice.usize(..4)];
        self.done.push(format!("  {text} ({mode})"));
        self.node.ask(
            self.at(SessionVerb::Prompt),
            json!({ "text": text, "mode": mode }),
        )
    }

    /// Sends a rewind to one of the last twelve visible messages, or returns `None` if none exists.
    async fn rewind(&mut self) -> Result<Option<tokio::task::JoinHandle<Result<Value, Refusal>>>> {
        let log = self.log().await?;
        let messages = log
            .iter()
            .filter(|event| event.kind == EventKind::Message.name() && event.hidden_by.is_none());
        let ids: Vec<_> = messages.filter_map(|event| event.seq).collect();
        if ids.is_empty() {
            return Ok(None);
        }
        let to = ids[self.dice.usize(ids.len().saturating_sub(12)..ids.len())];
        self.done.push(format!("  to {to}"));
        Ok(Some(
            self.node
                .ask(self.at(SessionVerb::Rewind), json!({ "to": to })),
        ))
    }

    fn accept(&mut self, answer: Answered, allowed: &[Code]) -> Result<()> {
        if let Some(Ok(ok)) = &answer {
            let Accepted { prompt_id, .. } = serde_json::from_value(ok.clone())?;
            self.prompts.insert(prompt_id);
        }
        self.settled(answer, allowed)
    }

    /// Fails if the node refused a request, unless the refusal is retryable or has an allowed code.
    fn settled(&self, answer: Answered, allowed: &[Code]) -> Result<()> {
        match answer {
            Some(Err(refusal)) => {
                ensure!(
                    refusal.retryable || allowed.contains(&refusal.code),
                    "refused: {refusal:?}"
                );
                Ok(())
            }
            Some(Ok(_)) | None => Ok(()),
        }
    }

    async fn info(&self) -> Result<SessionInfo> {
        read(answered(self.node.ask(self.at(SessionVerb::Info), json!({}))).await)
    }

    async fn log(&self) -> Result<Vec<Envelope>> {
        self.node.log(self.at(SessionVerb::Events)).await
    }

    /// Waits until all accepted prompts have outcomes and no agent is working. Then checks that the
    /// log is legal and that events were published in its order.
    async fn quiet(&mut self) -> Result<()> {
        let (began, mut is_still) = (Instant::now(), 0);
        loop {
            self.answer_all().await?;
            let before = self.info().await?;
            for agent in before
                .agents
                .iter()
                .filter(|agent| agent.state != AgentState::Stopped)
            {
                // An agent that answers has resumed the work that its log holds.
                let looked = self
                    .node
                    .ask(Address::agent(&agent.id, AgentVerb::Info.name()), json!({}));
                self.settled(answered(looked).await, &[Code::NotFound])?;
            }
            let (info, log) = (self.info().await?, self.log().await?);
            let ended: BTreeSet<InputId> = log.iter().flat_map(checks::inputs).collect();
            let open: Vec<&InputId> = self.prompts.difference(&ended).collect();
            let is_at_rest =
                |agent: &&AgentRow| matches!(agent.state, AgentState::Idle | AgentState::Stopped);
            let busy: Vec<_> = info
                .agents
                .iter()
                .filter(|agent| !is_at_rest(agent))
                .map(|agent| (&agent.name, agent.state))
                .collect();
            // If the log has grown since the previous check, an agent may still be writing, or a
            // message from another agent may have started a turn.
            let last = log.last().and_then(|event| event.seq).unwrap_or_default();
            let heads = [is_still, before.head, info.head, last];
            if open.is_empty() && busy.is_empty() && heads.iter().all(|head| *head == info.head) {
                checks::check(&log, &self.prompts)?;
                return checks::check_order(&self.node.received());
            }
            is_still = info.head;
            ensure!(
                began.elapsed() < QUIET,
                "after {QUIET:?} {open:?} have no end, and {busy:?} are at work"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
