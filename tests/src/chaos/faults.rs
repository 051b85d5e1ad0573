//! The faults that a run inflicts on its cluster, in an order that depends on the seed.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use planck_common::{NodeId, SessionId};
use tokio::time::{Instant, sleep, timeout};

use super::{Plan, Servers, load::Load, stage::Stage};
use crate::{proxy::Link, world::Backend};

/// How long a cluster may take to continue after a fault.
const GOES_ON: Duration = Duration::from_secs(60);
/// How long a node may take to find out that it was declared dead, and to end.
const ENDS: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Sends SIGKILL to the node that hosts a session's orchestrator.
    Kill,
    /// Stops the orchestrator's node with SIGSTOP. Sends it SIGCONT after another node has
    /// continued the session.
    Pause,
    /// Stops the orchestrator's node with SIGSTOP for less time than suspicion takes.
    Hiccup,
    /// Stalls the link of the orchestrator's node to NATS until another node has continued its
    /// session.
    Cut,
    /// Closes the connections of the orchestrator's node to NATS and every new one, as a firewall
    /// does, until another node has continued the session.
    Sever,
    /// Stops nats-server, and starts it again up to 6 s later.
    NatsAway,
    /// Kills nats-server, and starts it again at once.
    NatsKill,
    /// Stops nats-server for a whole minute.
    NatsMinute,
    /// Kills the one of three servers that leads the registry, starts it again up to 6 s later, and
    /// waits until every server has the whole registry.
    LeaderKill,
    /// Has Postgres end every connection. On Postgres only.
    SqlCut,
    /// Freezes Postgres for up to 6 s. On Postgres only.
    SqlAway,
}

impl Kind {
    pub const ALL: [(&'static str, Self); 11] = [
        ("kill", Self::Kill),
        ("pause", Self::Pause),
        ("hiccup", Self::Hiccup),
        ("cut", Self::Cut),
        ("sever", Self::Sever),
        ("nats-away", Self::NatsAway),
        ("nats-kill", Self::NatsKill),
        ("nats-minute", Self::NatsMinute),
        ("leader-kill", Self::LeaderKill),
        ("sql-cut", Self::SqlCut),
        ("sql-away", Self::SqlAway),
    ];

    /// Returns whether the fault stops or kills a nats-server and does nothing else.
    pub fn is_of_nats(self) -> bool {
        matches!(
            self,
            Self::NatsAway | Self::NatsKill | Self::NatsMinute | Self::LeaderKill
        )
    }

    /// Returns whether the fault is possible in the plan's cluster.
    pub fn fits(self, plan: &Plan) -> bool {
        match self {
            Self::SqlCut | Self::SqlAway => plan.backend == Backend::Postgres,
            Self::Cut | Self::Sever | Self::NatsAway | Self::NatsKill | Self::NatsMinute => {
                plan.servers == Servers::One
            }
            Self::LeaderKill => plan.servers == Servers::Three,
            Self::Kill | Self::Pause | Self::Hiccup => true,
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, kind)| *kind)
    }
}

/// A fault. If it affects one node, that is the node of the session with the index `session`.
#[derive(Debug, Clone)]
pub struct Fault {
    pub kind: Kind,
    pub session: usize,
    pub lasts: Duration,
}

/// The measured times of one node's failure.
#[derive(Debug, Clone, Copy)]
pub struct Failover {
    /// The time from the fault until a peer declared the node dead, or `None` if no event reported
    /// it.
    pub detected: Option<Duration>,
    /// The time from the fault until a session of the node continued elsewhere.
    pub resumed: Duration,
}

/// Returns the faults of a plan, in an order that its seed determines.
pub fn of(plan: &Plan) -> Vec<Fault> {
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let kinds = plan
        .faults
        .iter()
        .flat_map(|(kind, times)| std::iter::repeat_n(*kind, *times as usize));
    let mut faults: Vec<Fault> = kinds
        .map(|kind| Fault {
            kind,
            session: random.usize(..plan.sessions),
            lasts: lasts(kind, plan.brief, &mut random),
        })
        .collect();
    random.shuffle(&mut faults);
    faults
}

fn lasts(kind: Kind, brief: bool, random: &mut fastrand::Rng) -> Duration {
    let millis = match kind {
        // These faults last at least until the victim's session has continued elsewhere.
        Kind::Pause | Kind::Cut | Kind::Sever if brief => 0..1,
        // Half of these outages are long enough for nodes to be suspended.
        Kind::NatsAway if brief => 100..4_000,
        Kind::LeaderKill | Kind::SqlAway if brief => 100..1_500,
        Kind::Pause | Kind::Cut | Kind::Sever => 4_000..9_000,
        Kind::Hiccup => 100..1_500,
        Kind::NatsAway | Kind::LeaderKill | Kind::SqlAway => 500..6_000,
        Kind::NatsMinute => 60_000..60_001,
        Kind::Kill | Kind::NatsKill | Kind::SqlCut => 0..1,
    };
    Duration::from_millis(random.u64(millis))
}

/// Inflicts a fault. Returns the measured times if the fault ended a node.
pub async fn inflict(fault: &Fault, stage: &mut Stage, load: &Load) -> Result<Option<Failover>> {
    match fault.kind {
        Kind::Kill | Kind::Pause | Kind::Cut | Kind::Sever => {
            end_a_node(fault, stage, load).await.map(Some)
        }
        Kind::Hiccup => {
            let (victim, _) = victim(stage, load, fault.session).await?;
            let member = stage.member(&victim).context("the victim is not ours")?;
            member.node.pause()?;
            sleep(fault.lasts).await;
            member.node.resume()?;
            Ok(None)
        }
        Kind::NatsAway | Kind::NatsMinute => {
            stage.world.nats.stop()?;
            sleep(fault.lasts).await;
            stage.world.nats.restart()?;
            Ok(None)
        }
        Kind::NatsKill => {
            stage.world.nats.kill()?;
            stage.world.nats.restart()?;
            Ok(None)
        }
        Kind::LeaderKill => {
            let leader = stage.world.registry_leader().await?;
            stage.world.server(&leader)?.kill()?;
            sleep(fault.lasts).await;
            stage.world.server(&leader)?.restart()?;
            stage.world.registry_is_whole().await?;
            Ok(None)
        }
        Kind::SqlCut => {
            stage.world.end_connections().await?;
            Ok(None)
        }
        Kind::SqlAway => {
            let frozen = stage.world.pause_database()?;
            sleep(fault.lasts).await;
            drop(frozen);
            Ok(None)
        }
    }
}

/// Starts another node, so that as many nodes survive as there were. Then ends a node by the fault,
/// and measures the failover.
async fn end_a_node(fault: &Fault, stage: &mut Stage, load: &Load) -> Result<Failover> {
    let (victim, session) = victim(stage, load, fault.session).await?;
    stage.add().await?;
    let mut member = stage.take(&victim).context("the victim is not ours")?;
    let began = Instant::now();
    match fault.kind {
        Kind::Kill => member.node.kill().await?,
        Kind::Pause => member.node.pause()?,
        Kind::Sever => member.link.set(Link::Cut),
        Kind::Cut
        | Kind::Hiccup
        | Kind::NatsAway
        | Kind::NatsKill
        | Kind::NatsMinute
        | Kind::LeaderKill
        | Kind::SqlCut
        | Kind::SqlAway => member.link.set(Link::Stalled),
    }
    let resumed = heard(stage, &session, began, &victim).await?;
    if fault.kind != Kind::Kill {
        sleep(fault.lasts.saturating_sub(began.elapsed())).await;
        member.node.resume()?;
        member.link.set(Link::Up);
        timeout(ENDS, member.node.ended())
            .await
            .context("a node that was declared dead goes on")??;
    }
    let detected = stage
        .timeline
        .death(&victim)
        .map(|at| at.duration_since(began));
    Ok(Failover {
        detected,
        resumed: resumed.duration_since(began),
    })
}

/// Waits until one of the stage's nodes hosts the session's orchestrator, and returns the node and
/// the session.
async fn victim(stage: &Stage, load: &Load, session: usize) -> Result<(NodeId, SessionId)> {
    let session = load.sessions.get(session).context("no such session")?;
    let until = Instant::now() + GOES_ON;
    loop {
        let info = timeout(Duration::from_secs(2), stage.world.caller.session(session)).await;
        if let Ok(Ok(info)) = info
            && let Some(owner) = info.owner.filter(|owner| stage.member(owner).is_some())
        {
            return Ok((owner, session.clone()));
        }
        if Instant::now() > until {
            bail!("nobody hosts session {session} after {GOES_ON:?}");
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn heard(
    stage: &Stage,
    session: &SessionId,
    began: Instant,
    gone: &NodeId,
) -> Result<Instant> {
    loop {
        if let Some(at) = stage.timeline.resumed(session, began, gone) {
            return Ok(at);
        }
        if began.elapsed() > GOES_ON {
            bail!("session {session} does not go on after node {gone} ended, {GOES_ON:?}");
        }
        sleep(Duration::from_millis(5)).await;
    }
}
