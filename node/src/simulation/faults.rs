//! The faults of a run. The seed decides which ones there are, and when.

use std::{ops::Range, time::Duration};

use fastrand::Rng;
use planck_common::NodeId;
use tokio::{sync::mpsc, time::sleep};

use super::{node::NodeOrder, world::SimWorld};

/// The number of nodes.
pub(super) const NODES: usize = 3;

/// When faults begin, in milliseconds.
const BEGIN: Range<u64> = 4_000..22_000;

/// One in this many seeds has a crash as its only fault, so that the limits on time are checked.
const CALM: u64 = 8;

/// How long a node takes at most to leave after its patience is over.
const LEAVES_WITHIN: Duration = Duration::from_secs(15);

/// The longest additional delay of a call of a slow node, in milliseconds.
const SLOW: u64 = 800;

/// How long after a node was silent a peer may still declare it dead, in milliseconds.
const BLAME_LASTS: u64 = 13_000;

/// What goes wrong, for a time if it does not end by itself.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    Order(usize, NodeOrder),
    CutOffNats(usize, Duration),
    CutOffSql(usize, Duration),
    CutOff(usize, Duration),
    /// The calls of a node to the store and the registry take longer.
    Slow(usize, Duration),
    SqlAway(Duration),
    RegistryAway(Duration),
    /// Answers of the store and the registry, and requests between nodes, are lost.
    Lossy(Duration),
}

/// The faults of a run, each with its time in milliseconds.
pub(super) fn faults_of(seed: u64, rng: &mut Rng) -> Vec<(u64, Fault)> {
    if seed.is_multiple_of(CALM) {
        let back = Duration::from_millis(rng.u64(1_000..8_000));
        let crash = Fault::Order(rng.usize(..NODES), NodeOrder::Crash { back });
        return vec![(rng.u64(12_000..18_000), crash)];
    }
    if let Some(pair) = pair_of(rng) {
        return pair.into();
    }
    let count = rng.usize(1..4);
    let mut faults: Vec<_> = (0..count).map(|_| (rng.u64(BEGIN), fault(rng))).collect();
    // Two faults at about the same time show more than two apart.
    if count > 1 && rng.bool() {
        let first = faults[0].0;
        faults[1].0 = first + rng.u64(0..4_000);
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}

/// Returns two faults that affect one decision, which two random ones seldom do, or `None` for most
/// seeds.
fn pair_of(rng: &mut Rng) -> Option<[(u64, Fault); 2]> {
    let at = rng.u64(BEGIN);
    let place = rng.usize(..NODES);
    let other = (place + rng.usize(1..NODES)) % NODES;
    let mut time = |millis: Range<u64>| Duration::from_millis(rng.u64(millis));
    let back = time(4_000..8_000);
    let crash = Fault::Order(place, NodeOrder::Crash { back });
    let (outage, cut, leave) = (time(500..3_000), time(4_000..9_000), time(0..4_000));
    Some(match rng.u32(..16) {
        // The database is away while the sessions of a dead node are taken over or closed.
        0 | 1 => [
            (at, crash),
            (at + rng.u64(2_300..3_300), Fault::SqlAway(outage)),
        ],
        // A node with members does not answer when the orchestrator's node is declared dead.
        2..5 => [
            (at, crash),
            (at + rng.u64(1_200..3_000), Fault::CutOffNats(other, cut)),
        ],
        // A node dies after it handed its agents over.
        5 => [
            (
                at,
                Fault::Order(
                    place,
                    NodeOrder::Leave {
                        patience: leave,
                        back,
                    },
                ),
            ),
            (
                at + rng.u64(300..4_000),
                Fault::Order(other, NodeOrder::Crash { back }),
            ),
        ],
        // A node loses NATS and keeps working on what runs.
        6 | 7 => [
            (at, Fault::CutOffNats(place, cut + cut)),
            (at + 1_500, Fault::Slow(other, cut)),
        ],
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
            Self::CutOffNats(_, time)
            | Self::CutOffSql(_, time)
            | Self::CutOff(_, time)
            | Self::Slow(_, time)
            | Self::SqlAway(time)
            | Self::RegistryAway(time)
            | Self::Lossy(time) => *time,
        }
    }
}

fn fault(rng: &mut Rng) -> Fault {
    let place = rng.usize(..NODES);
    let mut time = |millis: Range<u64>| Duration::from_millis(rng.u64(millis));
    let longest = time(2_000..20_000);
    let (short, long, back) = (time(100..4_000), time(2_000..15_000), time(1_000..8_000));
    let patience = time(0..6_000);
    match rng.u32(..11) {
        0..4 => Fault::Order(place, NodeOrder::Crash { back }),
        4 => Fault::Order(place, NodeOrder::Leave { patience, back }),
        5 => Fault::CutOffNats(place, long),
        6 => Fault::CutOff(place, long),
        7 if rng.bool() => Fault::CutOffSql(place, long),
        7 => Fault::SqlAway(short),
        8 => Fault::RegistryAway(longest),
        9 => Fault::Slow(place, long),
        _ => Fault::Lossy(long),
    }
}

impl SimWorld {
    /// Lets the faults happen, and returns when all of them are over.
    pub(super) async fn suffer(
        &self,
        faults: Vec<(u64, Fault)>,
        places: &[mpsc::Sender<NodeOrder>],
    ) {
        let now = self.millis();
        for (at, fault) in &faults {
            let end = now + at + u64::try_from(fault.lasts().as_millis()).unwrap();
            self.state().faults.push((now + at, end));
        }
        let each = faults.into_iter().map(|(at, fault)| async move {
            sleep(Duration::from_millis(at)).await;
            self.note(&format!("{fault:?}"));
            self.happen(fault, places).await;
        });
        futures_util::future::join_all(each).await;
    }

    async fn happen(&self, fault: Fault, places: &[mpsc::Sender<NodeOrder>]) {
        match fault {
            Fault::Order(place, order) => {
                let _ = places[place].send(order).await;
            }
            Fault::CutOffNats(place, time) => self.cut_off(place, time, (false, true)).await,
            Fault::CutOffSql(place, time) => self.cut_off(place, time, (true, false)).await,
            Fault::CutOff(place, time) => self.cut_off(place, time, (false, false)).await,
            Fault::Slow(place, time) => {
                let Some(node) = self.living().into_iter().nth(place) else {
                    return;
                };
                self.change(&node, |link| link.slow = SLOW);
                sleep(time).await;
                self.change(&node, |link| link.slow = 0);
            }
            Fault::SqlAway(time) => {
                self.state().is_sql_away = true;
                sleep(time).await;
                self.state().is_sql_away = false;
            }
            Fault::RegistryAway(time) => {
                self.state().is_registry_away = true;
                sleep(time).await;
                self.state().is_registry_away = false;
            }
            Fault::Lossy(time) => {
                self.lose(150);
                sleep(time).await;
                self.lose(0);
            }
        }
    }

    fn lose(&self, of_1000: u32) {
        let mut state = self.state();
        (state.lost, state.lost_requests) = (of_1000, of_1000);
    }

    async fn cut_off(&self, place: usize, time: Duration, (has_nats, has_sql): (bool, bool)) {
        let node: Option<NodeId> = self.living().into_iter().nth(place);
        let Some(node) = node else { return };
        let name = self.name("node", &node);
        self.note(&format!(
            "{name} is cut off: nats {has_nats}, sql {has_sql}"
        ));
        self.change(&node, |link| {
            (link.has_nats, link.has_sql) = (has_nats, has_sql);
            link.may_die |= !has_nats;
            if !has_nats {
                link.blamed_until = u64::MAX;
            }
        });
        sleep(time).await;
        let blamed_until = self.millis() + BLAME_LASTS;
        self.change(&node, |link| {
            (link.has_nats, link.has_sql) = (true, true);
            if !has_nats && !link.is_crashed {
                link.blamed_until = blamed_until;
            }
        });
        self.note(&format!("{name} is back"));
    }
}
