//! Plays one seed: the nodes start, clients start sessions and send prompts, faults happen, and when
//! they are over the cluster must come to rest.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fastrand::Rng;
use planck_common::{NodeId, command::SessionState};
use tokio::{runtime::Builder, sync::mpsc, time::sleep};

use super::{
    bus::SimBus,
    checks::SimReport,
    faults::{faults_of, nodes_of},
    node::{Cluster, Outside},
    people::{Client, StartedSession},
    world::SimWorld,
};
use crate::node::Node;
use planck_cluster::{
    clock,
    planted::{PlantedFault, plant},
};

/// How long the cluster may take to come to rest once all faults are over, in milliseconds.
const REST: u64 = 40_000;

/// The same after the last tool call, which may run long.
const RESTS_AFTER_TOOL: u64 = 20_000;

/// What a run showed.
pub(super) struct Played {
    pub violation: Option<String>,
    pub trace: Vec<String>,
    pub report: SimReport,
}

/// Plays a seed on the current thread.
pub(super) fn play(seed: u64, planted: Option<PlantedFault>, outside: &Outside) -> Played {
    plant(planted);
    fastrand::seed(seed);
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        clock::count_tokio_time();
        let cluster = Cluster::new(seed, outside);
        run(seed, &cluster).await;
        let world = &cluster.world;
        let report = world.state().report;
        Played {
            violation: world.violation(),
            trace: world.take_trace(),
            report,
        }
    })
}

async fn run(seed: u64, cluster: &Cluster) {
    let mut rng = Rng::with_seed(!seed);
    let world = &cluster.world;
    let nodes = nodes_of(seed, &mut rng);
    let mut places = Vec::new();
    for place in 0..nodes {
        let (orders, ordered) = mpsc::channel(4);
        places.push(orders);
        tokio::spawn(cluster.clone().keep_node(place, ordered));
    }
    let client = Client {
        world: Arc::clone(world),
        bus: Arc::new(SimBus::new(
            world,
            &cluster.hub,
            &NodeId::parse("client").unwrap(),
        )),
    };
    while serving(world).len() < nodes {
        sleep(Duration::from_millis(100)).await;
    }
    let (opened, waits) = mpsc::unbounded_channel();
    world.state().opened = Some(opened);
    tokio::spawn(client.clone().answer_waits(waits));
    tokio::spawn(Arc::clone(world).watch());
    let count = rng.usize(2..4);
    let mut sessions = Vec::new();
    for number in 0..count {
        sessions.push(client.start(number, &mut rng).await);
    }
    let faults = faults_of(seed, nodes, &mut rng);
    let prompts: Vec<_> = (0..rng.usize(8..17))
        .map(|number| {
            let at = prompted_at(faults[0].0, &mut rng);
            let prompted = client
                .clone()
                .prompt(number, at, sessions.clone(), rng.fork());
            tokio::spawn(prompted)
        })
        .collect();
    if rng.u32(..4) == 0 {
        let closing = client
            .clone()
            .close(sessions[0].clone(), rng.u64(2_000..25_000));
        tokio::spawn(closing);
    }
    cluster.suffer(faults, &places).await;
    for prompt in prompts {
        let _ = prompt.await;
    }
    let mut until = world.millis() + REST;
    loop {
        let rest = at_rest(cluster, nodes, &sessions);
        if !world.state().running.is_empty() {
            until = until.max(world.millis() + RESTS_AFTER_TOOL);
        }
        if let Ok((tasks, shapes)) = rest {
            let report = &mut world.state().report;
            (report.tasks, report.shapes) = (tasks, shapes);
        }
        match rest {
            Ok(_) => return world.check_answers(),
            Err(_) if world.violation().is_some() => return,
            Err(left) if world.millis() > until => {
                return world.violated(format!("not at rest: {left}"));
            }
            Err(_) => {}
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// Returns when a client sends a prompt. Half of the prompts are sent around the first fault.
fn prompted_at(fault: u64, rng: &mut Rng) -> u64 {
    if rng.bool() {
        fault.saturating_sub(4_000) + rng.u64(0..8_000)
    } else {
        rng.u64(0..28_000)
    }
}

/// Returns the nodes that run and may begin work.
fn serving(world: &SimWorld) -> Vec<Arc<Node>> {
    let living = world.living();
    let nodes = living.iter().filter_map(|id| world.link(id).node.upgrade());
    let serves = |node: &Arc<Node>| !node.services().handles.view.is_suspended();
    nodes.filter(serves).collect()
}

/// Returns how many tasks between agents are over, and how many turns answered in a shape, or what keeps
/// the cluster from being at rest.
fn at_rest(
    cluster: &Cluster,
    count: usize,
    sessions: &[StartedSession],
) -> Result<(u64, u64), String> {
    let world = &cluster.world;
    let nodes = serving(world);
    if nodes.len() < count {
        return Err(format!("{} nodes serve", nodes.len()));
    }
    let data = world.data();
    let (mut tasks, mut shapes) = (0, 0);
    for id in sessions.iter().map(|session| &session.id) {
        let session = data.find(id).ok_or("a session is gone")?;
        let is_open = session.record().state == SessionState::Open;
        if world.must_close(session) {
            return Err("a session that stops with its node was not closed".into());
        }
        for agent in &session.agents {
            let name = world.name("agent", &agent.id);
            let hosts: BTreeSet<_> = nodes
                .iter()
                .filter(|node| node.services().handles.host.has(&agent.id))
                .map(|node| node.id().clone())
                .collect();
            let holder: BTreeSet<_> = agent.node.iter().cloned().collect();
            if hosts != holder {
                let hosts = hosts.iter().map(|node| world.name("node", node));
                let hosts: Vec<_> = hosts.collect();
                let holder = holder.iter().map(|node| world.name("node", node));
                let holder: Vec<_> = holder.collect();
                let of = world.name("session", id);
                let what = if is_open { "open" } else { "closed" };
                return Err(format!(
                    "{name} of {of}, which is {what}, is on {hosts:?} and {holder:?} hold it"
                ));
            }
            if !is_open && agent.node.is_some() {
                return Err(format!("{name} is held in a closed session"));
            }
        }
        let mut waits = session.inputs.iter().filter(|row| row.outcome.is_none());
        if is_open && let Some(row) = waits.next() {
            let name = world.name("agent", &row.input.agent);
            return Err(format!("an input of {name} has no outcome"));
        }
        let mut waits = session.waits.iter();
        let open = waits.find(|(_, wait)| wait.is_live());
        if is_open && let Some((call, _)) = open {
            return Err(format!("{} has a forgotten wait", world.name("call", call)));
        }
        if let Some(disorder) = session.disorder() {
            return Err(disorder);
        }
        tasks += session.check_tasks()?;
        shapes += session.check_shapes(&world.state().shaped)?;
    }
    Ok((tasks, shapes))
}
