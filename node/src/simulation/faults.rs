//! The faults of a run. The seed decides which ones there are, and when.

use std::{collections::BTreeSet, ops::Range, sync::Arc, time::Duration};

use fastrand::Rng;
use planck_common::{NodeId, registry::NodeStanding};
use tokio::{sync::mpsc, time::sleep};

use super::{
    node::{Cluster, NodeOrder},
    world::{Outages, SimWorld},
};

/// The number of nodes in most seeds.
const NODES: usize = 3;
/// One in this many seeds has two more nodes.
const LARGE: u32 = 8;

/// When faults begin, in milliseconds.
const BEGIN: Range<u64> = 4_000..22_000;

/// One in this many seeds has a crash as its only fault, so that the limits on time are checked.
const CALM: u64 = 8;

/// How long a node takes at most to leave after its patience is over.
const LEAVES_WITHIN: Duration = Duration::from_secs(15);

/// The time within which a client of NATS is connected again, in milliseconds.
const RECONNECTS_WITHIN: u64 = 300;

/// What goes wrong, for a time if it does not end by itself. The number is that of a place.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    Order(usize, NodeOrder),
    /// The process is stopped, and continues with what arrived meanwhile.
    Pause(usize, Duration),
    CutOffNats(usize, Duration),
    CutOffSql(usize, Duration),
    CutOff(usize, Duration),
    /// All nodes but one lose SQL.
    SqlOnlyAt(usize, Duration),
    /// The nodes in these places reach each other, but not the others, and not the registry unless
    /// `has_registry` is set.
    Island {
        places: Vec<usize>,
        has_registry: bool,
        time: Duration,
    },
    /// The calls of a node to the store and the registry take longer.
    Slow(usize, Duration),
    SqlAway(Duration),
    /// The bucket has no leader.
    RegistryAway(Duration),
    /// NATS is restarted.
    NatsAway(Duration, Lost),
    /// The watches of the registry are late.
    LateWatches(Duration),
    /// Answers of the store and the registry, and requests between nodes, are lost.
    Lossy(Duration),
}

/// The writes that the registry loses when NATS is restarted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lost {
    Nothing,
    /// The writes of the last time, in milliseconds.
    Tail(u64),
    All,
}

/// Returns the number of nodes of a run.
pub(super) fn nodes_of(seed: u64, rng: &mut Rng) -> usize {
    let is_large = !seed.is_multiple_of(CALM) && rng.u32(..LARGE) == 0;
    if is_large { NODES + 2 } else { NODES }
}

/// The faults of a run, each with its time in milliseconds.
pub(super) fn faults_of(seed: u64, nodes: usize, rng: &mut Rng) -> Vec<(u64, Fault)> {
    if seed.is_multiple_of(CALM) {
        let back = Duration::from_millis(rng.u64(1_000..8_000));
        let crash = Fault::Order(rng.usize(..nodes), NodeOrder::Crash { back });
        return vec![(rng.u64(12_000..18_000), crash)];
    }
    if nodes > NODES && rng.bool() {
        return slow_claim(nodes, rng);
    }
    if let Some(pair) = pair_of(nodes, rng) {
        return pair.into();
    }
    let count = rng.usize(1..4);
    let mut faults: Vec<_> = (0..count)
        .map(|_| (rng.u64(BEGIN), fault(nodes, rng)))
        .collect();
    // Two faults at about the same time show more than two apart.
    if count > 1 && rng.bool() {
        let first = faults[0].0;
        faults[1].0 = first + rng.u64(0..4_000);
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}

/// Returns faults after which the orchestrator of a dead node is claimed slowly, while a node with a
/// member is stopped. Another member may then start on its own node before it is placed.
fn slow_claim(nodes: usize, rng: &mut Rng) -> Vec<(u64, Fault)> {
    let at = rng.u64(BEGIN);
    let place = rng.usize(..nodes);
    let other = (place + rng.usize(1..nodes)) % nodes;
    let mut time = |millis: Range<u64>| Duration::from_millis(rng.u64(millis));
    let (back, pause) = (time(4_000..8_000), time(4_000..9_000));
    let crash = Fault::Order(place, NodeOrder::Crash { back });
    let stopped_at = at + rng.u64(1_200..3_000);
    let others = (0..nodes).filter(|at| *at != place && *at != other);
    let slow = others.map(|slow| (at + 1_000, Fault::Slow(slow, Duration::from_secs(6))));
    let two = [(at, crash), (stopped_at, Fault::Pause(other, pause))];
    two.into_iter().chain(slow).collect()
}

/// Returns two faults that affect one decision, which two random ones seldom do, or `None` for most
/// seeds.
fn pair_of(nodes: usize, rng: &mut Rng) -> Option<[(u64, Fault); 2]> {
    let at = rng.u64(BEGIN);
    let place = rng.usize(..nodes);
    let other = (place + rng.usize(1..nodes)) % nodes;
    let mut time = |millis: Range<u64>| Duration::from_millis(rng.u64(millis));
    let back = time(4_000..8_000);
    let crash = Fault::Order(place, NodeOrder::Crash { back });
    let (outage, cut, patience) = (time(500..3_000), time(4_000..9_000), time(0..4_000));
    Some(match rng.u32(..22) {
        // The database is away while the sessions of a dead node are taken over or closed.
        0 | 1 => [
            (at, crash),
            (at + rng.u64(2_300..3_300), Fault::SqlAway(outage)),
        ],
        // A node with members does not answer when the orchestrator's node is declared dead.
        2 | 3 => [
            (at, crash),
            (at + rng.u64(1_200..3_000), Fault::CutOffNats(other, cut)),
        ],
        4 | 5 => [
            (at, crash),
            (at + rng.u64(1_200..3_000), Fault::Pause(other, cut)),
        ],
        // The node dies to which another one handed its agents over.
        6 => [
            (at, Fault::Order(place, NodeOrder::Leave { patience, back })),
            (
                at + rng.u64(300..4_000),
                Fault::Order(other, NodeOrder::Crash { back }),
            ),
        ],
        // A node loses NATS and keeps working on what runs.
        7 => [
            (at, Fault::CutOffNats(place, cut + cut)),
            (at + 1_500, Fault::Slow(other, cut)),
        ],
        // The other nodes claim the sessions of such a node late, when only a long tool call still
        // runs on it.
        8 | 9 => [
            (at, Fault::CutOffNats(place, cut + cut)),
            (at + 1_500, Fault::SqlOnlyAt(place, cut)),
        ],
        // A node loses NATS just before the heartbeats of a peer arrive again.
        10 | 11 => {
            let silent = rng.u64(1_200..2_000);
            let cut_at = at + silent - rng.u64(10..300);
            let cut = Duration::from_millis(rng.u64(1_100..2_000));
            [
                (at, Fault::Pause(place, Duration::from_millis(silent))),
                (cut_at, Fault::CutOffNats(other, cut)),
            ]
        }
        // A node dies after it handed some of its agents over.
        12 | 13 => {
            let patience = Duration::from_secs(4);
            let leave = NodeOrder::Leave { patience, back };
            [
                (at, Fault::Order(place, leave)),
                (at + rng.u64(100..2_000), crash),
            ]
        }
        _ => return None,
    })
}

impl Fault {
    /// Returns how long the fault lasts at most.
    fn lasts(&self) -> Duration {
        match self {
            Self::Order(_, NodeOrder::Crash { back }) => *back,
            Self::Order(_, NodeOrder::Leave { patience, back }) => {
                *patience + LEAVES_WITHIN + *back
            }
            Self::NatsAway(time, _) => *time + Duration::from_millis(RECONNECTS_WITHIN),
            Self::Pause(_, time)
            | Self::CutOffNats(_, time)
            | Self::CutOffSql(_, time)
            | Self::CutOff(_, time)
            | Self::SqlOnlyAt(_, time)
            | Self::Island { time, .. }
            | Self::Slow(_, time)
            | Self::SqlAway(time)
            | Self::RegistryAway(time)
            | Self::LateWatches(time)
            | Self::Lossy(time) => *time,
        }
    }
}

fn fault(nodes: usize, rng: &mut Rng) -> Fault {
    let place = rng.usize(..nodes);
    let others = rng.usize(..nodes - 1);
    let mut time = |millis: Range<u64>| Duration::from_millis(rng.u64(millis));
    let longest = time(2_000..20_000);
    let (short, long, back) = (time(100..4_000), time(2_000..15_000), time(1_000..8_000));
    let (patience, restart) = (time(0..6_000), time(500..1_500));
    match rng.u32(..18) {
        0..4 => Fault::Order(place, NodeOrder::Crash { back }),
        4 => Fault::Order(place, NodeOrder::Leave { patience, back }),
        5 => Fault::CutOffNats(place, long),
        6 => Fault::CutOff(place, long),
        7 if rng.bool() => Fault::CutOffSql(place, long),
        7 => Fault::SqlAway(short),
        8 => Fault::RegistryAway(longest),
        9 => Fault::Slow(place, long),
        10 | 11 => {
            // Short pauses are as frequent as long ones.
            let pause = 1_000.0 * (rng.f64() * 40f64.ln()).exp();
            Fault::Pause(place, Duration::from_millis(pause as u64))
        }
        12 | 13 => Fault::Island {
            places: (place..=place + others).map(|at| at % nodes).collect(),
            has_registry: rng.bool(),
            time: long,
        },
        14 => Fault::LateWatches(long),
        15 => Fault::NatsAway(short, Lost::Nothing),
        16 if rng.bool() => Fault::NatsAway(restart, Lost::All),
        16 => Fault::NatsAway(restart, Lost::Tail(rng.u64(100..4_000))),
        _ => Fault::Lossy(long),
    }
}

impl Cluster {
    /// Lets the faults happen, and returns when all of them are over.
    pub(super) async fn suffer(
        &self,
        faults: Vec<(u64, Fault)>,
        places: &[mpsc::Sender<NodeOrder>],
    ) {
        let now = self.world.millis();
        for (at, fault) in &faults {
            let end = now + at + u64::try_from(fault.lasts().as_millis()).unwrap();
            self.world.state().faults.push((now + at, end));
        }
        let each = faults.into_iter().map(|(at, fault)| async move {
            sleep(Duration::from_millis(at)).await;
            self.world.note(&format!("{fault:?}"));
            if let Fault::Order(place, order) = fault {
                let _ = places[place].send(order).await;
                return;
            }
            if let Fault::NatsAway(_, lost) = &fault {
                self.lose(*lost);
            }
            let lasts = fault.lasts();
            self.world.begin(fault);
            sleep(lasts).await;
        });
        futures_util::future::join_all(each).await;
    }

    fn lose(&self, lost: Lost) {
        let since = match lost {
            Lost::Nothing => return,
            Lost::Tail(millis) => Some(self.world.millis().saturating_sub(millis)),
            Lost::All => None,
        };
        self.records.lose(since);
        let mut state = self.world.state();
        state.has_lost = true;
        for (node, link) in &mut state.nodes {
            link.is_dead = self.records.standing(node) == Some(NodeStanding::Dead);
        }
    }
}

fn extend(time: &mut u64, until: u64) {
    *time = (*time).max(until);
}

impl SimWorld {
    /// Begins a fault that is not an order. It ends by itself.
    pub(super) fn begin(&self, fault: Fault) {
        let until = self.millis() + u64::try_from(fault.lasts().as_millis()).unwrap();
        match fault {
            Fault::Order(..) => {}
            Fault::Pause(place, _) => {
                self.silence(place, |outages| extend(&mut outages.paused, until))
            }
            Fault::CutOffNats(place, _) => {
                self.silence(place, |outages| extend(&mut outages.nats, until))
            }
            Fault::CutOff(place, _) => self.silence(place, |outages| {
                extend(&mut outages.nats, until);
                extend(&mut outages.sql, until);
            }),
            Fault::CutOffSql(place, _) => {
                self.lacks(place, |outages| extend(&mut outages.sql, until))
            }
            Fault::Slow(place, _) => self.lacks(place, |outages| extend(&mut outages.slow, until)),
            Fault::SqlOnlyAt(place, _) => {
                let places: Vec<usize> = self.state().places.keys().copied().collect();
                for other in places.into_iter().filter(|other| *other != place) {
                    self.lacks(other, |outages| extend(&mut outages.sql, until));
                }
            }
            Fault::Island {
                places,
                has_registry,
                ..
            } => self.split(places, has_registry, until),
            Fault::SqlAway(_) => extend(&mut self.state().outages.sql, until),
            Fault::RegistryAway(_) => extend(&mut self.state().outages.registry, until),
            Fault::LateWatches(_) => extend(&mut self.state().outages.watches, until),
            Fault::Lossy(_) => extend(&mut self.state().outages.lossy, until),
            Fault::NatsAway(time, _) => {
                let back = self.millis() + u64::try_from(time.as_millis()).unwrap();
                let places: Vec<usize> = self.state().places.keys().copied().collect();
                for place in places {
                    let until = back + self.draw(0..RECONNECTS_WITHIN);
                    self.lacks(place, |outages| extend(&mut outages.nats, until));
                }
                extend(&mut self.state().outages.nats, back);
            }
        }
    }

    fn lacks(&self, place: usize, what: impl FnOnce(&mut Outages)) {
        if let Some(node) = self.node_at(place) {
            self.change(&node, |link| what(&mut link.outages));
        }
    }

    /// Lets a fault happen within this time in milliseconds, with this probability. Faults at random
    /// times seldom meet what a node does in several short steps.
    pub(super) fn may_interrupt(self: &Arc<Self>, of_1000: u32, within: Range<u64>, fault: Fault) {
        if !self.chance(of_1000) {
            return;
        }
        let world = Arc::clone(self);
        tokio::spawn(async move {
            world.pause(within).await;
            let now = world.millis();
            let end = now + u64::try_from(fault.lasts().as_millis()).unwrap();
            world.state().faults.push((now, end));
            world.note(&format!("interrupted by {fault:?}"));
            world.begin(fault);
        });
    }

    /// Changes the outages of a node whose heartbeats do not arrive meanwhile.
    fn silence(&self, place: usize, what: impl FnOnce(&mut Outages)) {
        let Some(node) = self.node_at(place) else {
            return;
        };
        self.change(&node, |link| {
            what(&mut link.outages);
            let until = link.outages.paused.max(link.outages.nats);
            extend(&mut link.silent_until, until);
        });
    }

    fn split(&self, places: Vec<usize>, has_registry: bool, until: u64) {
        let island = places.iter().filter_map(|place| self.node_at(*place));
        let island: BTreeSet<NodeId> = island.collect();
        let mut state = self.state();
        for (node, link) in &mut state.nodes {
            extend(&mut link.silent_until, until);
            if !has_registry && island.contains(node) {
                extend(&mut link.outages.registry, until);
            }
        }
        state.island = (island, until);
    }
}
