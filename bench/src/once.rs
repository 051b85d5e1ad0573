//! Runs one repetition in its own process: either a node as `planck run` starts it, or the bare
//! loop.

use std::{
    collections::HashMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use futures_util::{StreamExt as _, TryStreamExt as _, future::join_all, stream};
use planck_common::{
    AgentId, SessionId,
    command::{InputMode, Prompt, Start},
    spec::{Member, SessionLimits},
};

use super::{
    bare,
    measure::{BenchLine, Contender, Cost, Idle, LEAST, Span, Waves, memory_kib, quantile},
    part::{BenchProcess, orphaned},
    watched::WatchedBus,
    workload::{FILE, Workload, WorkloadSize, lines},
};
use crate::say;
use planck_bus::{Bus, MemoryBus, MemoryHub, NatsBus};
use planck_client::Client;
use planck_node::config::{Config, ConfiguredUrl, ModelEntry};
use planck_node::node::{self, RunningNode};

/// The maximum duration of a repetition.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);
/// The maximum number of prompts in flight. It is below the number of concurrent requests above
/// which a node refuses requests.
const ASKED_AT_ONCE: usize = 200;
/// The field of `/proc/self/status` that is compared for idle agents. It does not include pages of
/// the executable file, which are loaded during the first turns.
const HELD: &str = "RssAnon";
/// How long to wait, after a short workload has warmed the node up, for the end of the sweeps that
/// a node makes when it starts.
const STARTED: Duration = Duration::from_secs(3);
/// How long to wait until the work of the last turn has ended. The agents are still loaded then.
const LOADED: Duration = Duration::from_secs(2);
/// How much longer to wait until idle agents are parked, and their memory is free.
const PARKED: Duration = Duration::from_secs(25);

#[derive(Debug, Clone, Args)]
pub struct Once {
    #[arg(long)]
    pub workload: Workload,
    #[command(flatten)]
    pub size: WorkloadSize,
    #[arg(long)]
    pub model: String,
    /// The NATS server to publish to
    #[arg(long)]
    pub server: Option<String>,
    /// The process id of that server, to measure its CPU time
    #[arg(long)]
    pub nats_pid: Option<u32>,
    /// The program that does the work
    #[arg(long)]
    pub contender: Contender,
}

impl Once {
    /// Runs the repetition in a child process.
    pub async fn run_apart(&self) -> Result<BenchLine> {
        let mut part = BenchProcess::of_this_program(self.arguments())?;
        let line = part.line(PATIENCE).await?;
        part.finish(Duration::from_secs(30)).await?;
        serde_json::from_str(&line).context("no line of a repetition")
    }

    fn arguments(&self) -> Vec<String> {
        let WorkloadSize { agents, sessions } = self.size;
        let mut arguments = vec![
            "once".into(),
            format!("--workload={}", self.workload.name()),
        ];
        arguments.extend([
            format!("--agents={agents}"),
            format!("--sessions={sessions}"),
            format!("--model={}", self.model),
            format!("--contender={}", self.contender.name()),
        ]);
        arguments.extend(
            self.server
                .as_ref()
                .map(|server| format!("--server={server}")),
        );
        arguments.extend(self.nats_pid.map(|pid| format!("--nats-pid={pid}")));
        arguments
    }

    pub async fn perform(self) -> Result<()> {
        let line = tokio::select! {
            line = self.run() => line?,
            () = orphaned() => bail!("the bench is gone"),
        };
        say(&(serde_json::to_string(&line)? + "\n"))?;
        Ok(())
    }

    async fn run(&self) -> Result<BenchLine> {
        match self.contender {
            Contender::Node => Box::pin(self.node()).await,
            Contender::Bare => self.bare().await,
        }
    }

    async fn bare(&self) -> Result<BenchLine> {
        let waves = bare::run(self.workload, self.size.agents, &self.model).await?;
        Ok(self.line(waves))
    }

    async fn node(&self) -> Result<BenchLine> {
        let process = Span::of(self.workload, self.nats_pid);
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join(FILE), lines())?;
        let mut world =
            BenchNode::open(&config(&self.model, self.server.as_deref(), folder.path())).await?;
        let empty = memory_kib(HELD);
        let mut waves = Waves::default();
        if self.workload.is_short() {
            let mut warming = Waves::default();
            self.wave(&mut world, folder.path(), &mut warming).await?;
            waves.peak_kib = warming.peak_kib;
            tokio::time::sleep(STARTED).await;
        }
        loop {
            self.wave(&mut world, folder.path(), &mut waves).await?;
            if !self.workload.is_short() || waves.turns.wall >= LEAST {
                break;
            }
            world.close_sessions().await?;
        }
        if self.workload == Workload::Start {
            waves.turns = process.end();
            waves.starts = Cost::default();
        }
        let line = self.line(waves);
        let idle = if self.workload.is_idle() {
            Some(world.idle(empty).await)
        } else {
            None
        };
        world.node.shut_down(Duration::ZERO).await;
        Ok(BenchLine { idle, ..line })
    }

    /// Starts the agents of the workload, and runs their turns.
    async fn wave(&self, world: &mut BenchNode, dir: &Path, waves: &mut Waves) -> Result<()> {
        let span = Span::begin(self.nats_pid);
        world.start_agents(self.size, dir).await?;
        waves.starts += span.end();
        let (mut span, mut times) = (Span::begin(self.nats_pid), Vec::new());
        for _ in 0..self.workload.turns() {
            times.extend(world.turn().await?);
        }
        if self.workload == Workload::Stop {
            span = Span::begin(self.nats_pid);
            times = world.close_sessions().await?;
        }
        world.bus.flush(Duration::from_secs(5)).await?;
        waves.turns += span.end();
        waves.add(times);
        Ok(())
    }

    fn line(&self, waves: Waves) -> BenchLine {
        let Waves {
            count,
            starts,
            turns,
            mut times,
            peak_kib,
        } = waves;
        times.sort();
        let agents = self.size.agents * count;
        BenchLine {
            workload: self.workload.name().into(),
            contender: self.contender,
            turns: agents * self.workload.turns(),
            wall_s: turns.wall.as_secs_f64(),
            cpu_s: turns.cpu.as_secs_f64(),
            start_wall_s: starts.wall.as_secs_f64(),
            start_cpu_s: starts.cpu.as_secs_f64(),
            aux_cpu_s: turns.nats.as_secs_f64(),
            p50_ms: quantile(&times, 0.5),
            p99_ms: quantile(&times, 0.99),
            peak_kib,
            deltas: agents * self.workload.deltas(),
            tools: agents * self.workload.tools(),
            idle: None,
        }
    }
}

/// Returns the configuration of a node that keeps its sessions below a folder.
pub(super) fn config(model: &str, server: Option<&str>, folder: &Path) -> Config {
    let mut config = Config::default();
    config.nats.url = server.map(ConfiguredUrl::new);
    let sessions = folder.join("sessions");
    config.store.url = ConfiguredUrl::new(format!("sqlite:{}", sessions.display()));
    config.models.default = Some("scripted:bench".into());
    config.limits.session.max_agents = u32::MAX;
    let scripted = config.providers.entry("scripted");
    (scripted.base_url, scripted.max_concurrent) = (Some(ConfiguredUrl::new(model)), 1_024);
    let roomy = ModelEntry {
        provider: Some("scripted".into()),
        context_window: Some(1 << 30),
        ..ModelEntry::default()
    };
    config.models.entries.0.insert("bench".into(), roomy);
    config
}

/// A node in this process, with the agents of the workload.
pub(super) struct BenchNode {
    pub(super) node: RunningNode,
    bus: Arc<WatchedBus>,
    client: Client,
    agents: Vec<AgentId>,
    sessions: Vec<SessionId>,
}

impl BenchNode {
    pub(super) async fn open(config: &Config) -> Result<Self> {
        let inner: Arc<dyn Bus> = match node::nats_options(config)? {
            Some(options) => Arc::new(NatsBus::connect(options).await?),
            None => Arc::new(MemoryBus::new(Arc::new(MemoryHub::default()))),
        };
        let bus = Arc::new(WatchedBus::new(inner));
        let node = Box::pin(node::open_on(config, bus.clone())).await?;
        let client = Client::over(bus.clone()).with_request_timeout(Duration::from_secs(60));
        Ok(Self {
            node,
            bus,
            client,
            agents: Vec::new(),
            sessions: Vec::new(),
        })
    }

    /// Starts new sessions with new agents.
    pub(super) async fn start_agents(&mut self, size: WorkloadSize, dir: &Path) -> Result<()> {
        self.agents.clear();
        let WorkloadSize { agents, sessions } = size;
        for session in 0..sessions {
            self.start(
                agents * (session + 1) / sessions - agents * session / sessions,
                dir,
            )
            .await?;
        }
        Ok(())
    }

    /// Starts a session with this number of agents, and waits until all of them exist.
    async fn start(&mut self, agents: usize, dir: &Path) -> Result<()> {
        let request = Start {
            session_id: None,
            name: None,
            team: None,
            members: Some(members(agents)),
            workspace: None,
            dir: Some(dir.to_str().context("an odd folder")?.into()),
            prompt: None,
            prompt_id: None,
            by: None,
            output: None,
            limits: Some(SessionLimits {
                max_agents: u32::try_from(agents).ok(),
                ..SessionLimits::default()
            }),
            permissions: None,
            client_tools: Vec::new(),
            on_node_death: None,
            metadata: serde_json::Map::new(),
        };
        let session: SessionId = self.client.start(request).await?.session_id;
        let here = self
            .node
            .node()
            .services()
            .handles
            .host
            .agents(Some(&session));
        join_all(
            here.iter()
                .map(|agent| self.node.node().services().handles.host.info(agent)),
        )
        .await;
        self.agents.extend(here);
        self.sessions.push(session);
        Ok(())
    }

    /// Closes all sessions. Returns how long each close took.
    pub(super) async fn close_sessions(&mut self) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(self.sessions.len());
        for session in self.sessions.drain(..) {
            let began = Instant::now();
            self.client.close(session.as_str(), None).await?;
            times.push(began.elapsed());
        }
        Ok(times)
    }

    /// Prompts all agents concurrently. Returns how long each turn took.
    pub(super) async fn turn(&self) -> Result<Vec<Duration>> {
        let prompted: HashMap<AgentId, Instant> = stream::iter(&self.agents)
            .map(|agent| self.ask(agent))
            .buffer_unordered(ASKED_AT_ONCE)
            .try_collect()
            .await?;
        let ended = self.bus.ends(self.agents.len(), PATIENCE).await?;
        Ok(ended
            .into_iter()
            .filter_map(|(agent, at)| Some(at - *prompted.get(&agent)?))
            .collect())
    }

    async fn ask(&self, agent: &AgentId) -> Result<(AgentId, Instant)> {
        let began = Instant::now();
        let text = Some("Read the lines.".to_owned());
        let prompt = Prompt {
            text,
            content: None,
            prompt_id: None,
            mode: InputMode::Queue,
            agent: None,
            by: None,
            output: None,
        };
        self.client.prompt_agent(agent, prompt).await?;
        Ok((agent.clone(), began))
    }

    async fn idle(&self, empty: u64) -> Idle {
        let held = || memory_kib(HELD).saturating_sub(empty);
        tokio::time::sleep(LOADED).await;
        let loaded_kib = held();
        tokio::time::sleep(PARKED).await;
        Idle {
            agents: self.agents.len(),
            loaded_kib,
            parked_kib: held(),
        }
    }
}

/// Returns `count` members, of which the first is the orchestrator.
fn members(count: usize) -> Vec<Member> {
    let member = |at: usize| {
        let more = if at == 0 && count > 1 {
            vec!["read".to_owned(), "spawn_agent".to_owned()]
        } else {
            vec!["read".to_owned()]
        };
        Member {
            r#type: "worker".into(),
            name: Some(format!("worker-{at}")),
            tools: Some(more),
            ..Member::default()
        }
    };
    (0..count).map(member).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::BenchArgs;

    #[test]
    fn a_child_process_understands_its_arguments() {
        let once = Once {
            workload: Workload::CrowdSessions,
            size: Workload::CrowdSessions.size(None, None),
            model: "http://127.0.0.1:1".into(),
            server: Some("nats://127.0.0.1:2".into()),
            nats_pid: Some(3),
            contender: Contender::Bare,
        };
        let program = ["planck-bench".to_owned()];
        let parsed = BenchArgs::try_parse_from(program.into_iter().chain(once.arguments()));
        let shown = format!("{:?}", parsed.unwrap());
        assert!(shown.contains(&format!("{once:?}")), "{shown}");
    }
}
