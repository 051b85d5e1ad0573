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

/// What goes wrong, for a time if it does not end by itself.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    Order(usize, NodeOrder),
    CutOffNats(usize, Duration),
    CutOffSql(usize, Duration),
    CutOff(usize, Duration),
    SqlAway(Duration),
    RegistryAway(Duration),
    /// Answers of the store and the registry, and requests between nodes, are lost.
    Lossy(Duration),
}

/// The faults of a run, each with its time in milliseconds.
pub(super) fn faults_of(rng: &mut Rng) -> Vec<(u64, Fault)> {
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

fn fault(rng: &mut Rng) -> Fault {
    let place = rng.usize(..NODES);
    let mut time = |millis: Range<u64>| Duration::from_millis(rng.u64(millis));
    let (short, long, back) = (time(100..4_000), time(2_000..15_000), time(1_000..8_000));
    let patience = time(0..6_000);
    match rng.u32(..10) {
        0..4 => Fault::Order(place, NodeOrder::Crash { back }),
        4 => Fault::Order(place, NodeOrder::Leave { patience, back }),
        5 => Fault::CutOffNats(place, long),
        6 => Fault::CutOff(place, long),
        7 if rng.bool() => Fault::CutOffSql(place, long),
        7 => Fault::SqlAway(short),
        8 => Fault::RegistryAway(long),
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
        });
        sleep(time).await;
        self.change(&node, |link| (link.has_nats, link.has_sql) = (true, true));
        self.note(&format!("{name} is back"));
    }
}
