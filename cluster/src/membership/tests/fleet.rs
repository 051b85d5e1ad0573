//! Many nodes in one thread and in simulated time: how many messages their membership costs, how
//! soon a death is found, and whether lost messages cause a false verdict. What each message carries
//! and how it travels is in `node/src/simulation`, with few nodes.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

use fastrand::Rng;
use planck_common::NodeId;

use super::super::*;
use super::lab::{id, seen};
use crate::{planted, thread::SWEEPERS, watchers::WATCHERS};

/// When all nodes have joined and may declare others dead.
const SETTLED: u64 = 10_000;
/// How often a node reads all records, which is longer in a large cluster.
const SWEEP: u64 = 10_000;

enum FleetEvent {
    Wake,
    /// The node reads all records.
    Sweep,
    Input(MembershipInput),
    /// A subscription to the heartbeats of the node becomes active.
    Subscribed(usize),
}

struct FleetNode {
    id: NodeId,
    machine: Membership,
    lives: bool,
    /// When the node is woken next.
    wake: u64,
    /// The nodes that receive the heartbeats of this one.
    listeners: BTreeSet<usize>,
}

/// A cluster with a registry and a bus that loses heartbeats.
struct Fleet {
    nodes: Vec<FleetNode>,
    places: BTreeMap<NodeId, usize>,
    records: BTreeMap<NodeId, SeenNode>,
    proofs: BTreeMap<NodeId, Revision>,
    revision: Revision,
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: BTreeMap<u64, FleetEvent>,
    random: Rng,
    /// How many of 1,000 heartbeats are lost.
    loss: u32,
    report: FleetReport,
}

#[derive(Debug, Default)]
struct FleetReport {
    heartbeats: u64,
    /// Requests to the registry, and records that it sent.
    registry: u64,
    killed: BTreeMap<NodeId, u64>,
    verdicts: BTreeMap<NodeId, u64>,
    suspicions: u64,
    suspensions: u64,
}

impl FleetReport {
    /// Returns the nodes that were declared dead although they ran.
    fn false_verdicts(&self) -> usize {
        let is_false = |(node, at): &(&NodeId, &u64)| self.killed.get(*node).is_none_or(|k| k > at);
        self.verdicts.iter().filter(is_false).count()
    }

    /// Returns the times from the deaths to their verdicts, the shortest first. A death without a
    /// verdict counts as the longest time.
    fn delays(&self) -> Vec<u64> {
        let delay = |(node, at): (&NodeId, &u64)| {
            let verdict = self.verdicts.get(node).copied().unwrap_or(u64::MAX);
            verdict.saturating_sub(*at)
        };
        let mut delays: Vec<u64> = self.killed.iter().map(delay).collect();
        delays.sort_unstable();
        delays
    }
}

impl Fleet {
    fn new(count: usize, seed: u64) -> Self {
        let node = |place: usize| {
            let id = id(&format!("n{place:04}"));
            let identity = NodeIdentity {
                node: id.clone(),
                nonce: id.to_string(),
            };
            FleetNode {
                machine: Membership::new(identity, ClusterTimes::default(), Moment::from_millis(0)),
                id,
                lives: true,
                wake: u64::MAX,
                listeners: [place].into(),
            }
        };
        let nodes: Vec<FleetNode> = (0..count).map(node).collect();
        let places = nodes.iter().enumerate();
        let mut fleet = Self {
            places: places
                .map(|(place, node)| (node.id.clone(), place))
                .collect(),
            nodes,
            records: BTreeMap::new(),
            proofs: BTreeMap::new(),
            revision: 0,
            now: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            random: Rng::with_seed(seed),
            loss: 0,
            report: FleetReport::default(),
        };
        for place in 0..count {
            let at = fleet.random.u64(0..1_000);
            fleet.wake_at(place, at);
            let first = fleet.random.u64(0..fleet.sweep());
            fleet.at(first, place, FleetEvent::Sweep);
        }
        fleet
    }

    fn settled(count: usize, seed: u64) -> Self {
        let mut fleet = Self::new(count, seed);
        fleet.until(SETTLED);
        fleet.report = FleetReport::default();
        fleet
    }

    fn at(&mut self, at: u64, place: usize, event: FleetEvent) {
        let number = self.events.last_key_value().map_or(0, |(last, _)| last + 1);
        self.events.insert(number, event);
        self.queue.push(Reverse((at, number, place)));
    }

    fn soon(&mut self, place: usize, input: MembershipInput) {
        let at = self.now + self.random.u64(1..5);
        self.at(at, place, FleetEvent::Input(input));
    }

    fn wake_at(&mut self, place: usize, at: u64) {
        if self.nodes[place].wake > at {
            self.nodes[place].wake = at;
            self.at(at, place, FleetEvent::Wake);
        }
    }

    fn sweep(&self) -> u64 {
        SWEEP * (self.nodes.len().div_ceil(SWEEPERS) as u64)
    }

    fn sweep_later(&mut self, place: usize) {
        let every = self.sweep();
        let at = self.now + self.random.u64(every * 8 / 10..every * 12 / 10);
        self.at(at, place, FleetEvent::Sweep);
    }

    fn until(&mut self, end: u64) {
        while let Some(Reverse((at, number, place))) = self.queue.peek().copied()
            && at <= end
        {
            self.queue.pop();
            let event = self.events.remove(&number).unwrap();
            self.now = at;
            if !self.nodes[place].lives {
                continue;
            }
            match event {
                FleetEvent::Wake if self.nodes[place].wake != at => {}
                FleetEvent::Wake => {
                    self.nodes[place].wake = u64::MAX;
                    self.tell(place, MembershipInput::Woken);
                }
                FleetEvent::Input(input) => self.tell(place, input),
                FleetEvent::Sweep => {
                    self.perform(place, MembershipEffect::ReadAll);
                    self.sweep_later(place);
                }
                FleetEvent::Subscribed(to) => {
                    self.nodes[to].listeners.insert(place);
                    let node = self.nodes[to].id.clone();
                    self.tell(place, MembershipInput::Watching { node });
                }
            }
        }
        self.now = end;
    }

    fn tell(&mut self, place: usize, input: MembershipInput) {
        let now = Moment::from_millis(self.now);
        for effect in self.nodes[place].machine.on(now, input) {
            self.perform(place, effect);
        }
        let wake = self.nodes[place].machine.next_wake().as_millis();
        self.wake_at(place, wake.max(self.now + 1));
    }

    fn kill(&mut self, place: usize) {
        self.nodes[place].lives = false;
        for node in &mut self.nodes {
            node.listeners.remove(&place);
        }
        let id = self.nodes[place].id.clone();
        self.report.killed.insert(id, self.now);
    }

    fn living(&self) -> Vec<usize> {
        let places = self.nodes.iter().enumerate();
        let living = places.filter(|(_, node)| node.lives);
        living.map(|(place, _)| place).collect()
    }

    /// Returns the nodes that watch a node.
    fn watchers_of(&self, place: usize) -> Vec<usize> {
        let listeners = self.nodes[place].listeners.iter().copied();
        listeners.filter(|listener| *listener != place).collect()
    }

    fn is_at(&self, node: &NodeId, revision: Option<Revision>) -> bool {
        let record = self.records.get(node);
        record.map(|record| record.revision) == revision
    }

    fn record(&mut self, node: &NodeId, record: SeenNode) {
        self.records.insert(node.clone(), record.clone());
        if self.now < SETTLED / 2 {
            // While all nodes join at once, each reads all records when it becomes an observer.
            return;
        }
        for place in self.living() {
            self.report.registry += 1;
            let input = MembershipInput::Record {
                node: node.clone(),
                seen: Some(record.clone()),
                source: ReadSource::Watch,
            };
            self.soon(place, input);
        }
    }

    fn beat(&mut self, place: usize, seq: u64) {
        let (node, listeners) = {
            let node = &self.nodes[place];
            (node.id.clone(), node.listeners.clone())
        };
        for listener in listeners {
            if self.random.u32(0..1_000) >= self.loss {
                self.report.heartbeats += 1;
                let node = node.clone();
                self.soon(listener, MembershipInput::Heartbeat { node, seq });
            }
        }
    }

    fn perform(&mut self, place: usize, effect: MembershipEffect) {
        let me = self.nodes[place].id.clone();
        match effect {
            MembershipEffect::Beat { seq } => self.beat(place, seq),
            MembershipEffect::Watch { node } => {
                let at = self.now + self.random.u64(1..5);
                let to = self.places[&node];
                self.at(at, place, FleetEvent::Subscribed(to));
            }
            MembershipEffect::Unwatch { node } => {
                let to = self.places[&node];
                self.nodes[to].listeners.remove(&place);
            }
            MembershipEffect::Suspend { .. } => self.report.suspensions += 1,
            MembershipEffect::Peer { news, .. } => {
                self.report.suspicions += u64::from(news == PeerNews::Suspect)
            }
            MembershipEffect::Exit { .. } => self.nodes[place].lives = false,
            MembershipEffect::CheckLeases { asked_at } => {
                self.soon(place, MembershipInput::LeasesChecked { asked_at })
            }
            MembershipEffect::KillTools | MembershipEffect::Resume => {}
            asked @ (MembershipEffect::Prove { .. }
            | MembershipEffect::Write { .. }
            | MembershipEffect::Read { .. }
            | MembershipEffect::ReadProof { .. }
            | MembershipEffect::ReadAll
            | MembershipEffect::DeclareDead { .. }) => {
                self.report.registry += 1;
                let answer = self.registry(&me, asked);
                self.soon(place, answer);
            }
        }
    }

    /// Answers a request to the registry.
    fn registry(&mut self, me: &NodeId, asked: MembershipEffect) -> MembershipInput {
        self.revision += 1;
        match asked {
            MembershipEffect::Prove { sent_at, expects } => match self.is_at(me, Some(expects)) {
                true => {
                    self.proofs.insert(me.clone(), self.revision);
                    MembershipInput::ProofCommitted { sent_at }
                }
                false => MembershipInput::ProofRefused { sent_at },
            },
            MembershipEffect::Write { standing, expects } if self.is_at(me, expects) => {
                let revision = self.revision;
                self.record(me, seen(revision, standing, me.as_str()));
                MembershipInput::Written { revision, standing }
            }
            MembershipEffect::Write { .. } => MembershipInput::NotWritten,
            MembershipEffect::Read { node } => MembershipInput::Record {
                seen: self.records.get(&node).cloned(),
                node,
                source: ReadSource::Leader,
            },
            MembershipEffect::ReadProof { node, asked_at } => MembershipInput::Proof {
                proof: self.proofs.get(&node).copied(),
                node,
                asked_at,
            },
            MembershipEffect::ReadAll => {
                self.report.registry += self.records.len() as u64;
                MembershipInput::Records(self.records.clone().into_iter().collect())
            }
            MembershipEffect::DeclareDead {
                node,
                expects,
                own,
                silent,
            } if self.is_at(me, Some(own)) && self.is_at(&node, expects) => {
                let record = SeenNode {
                    silent: Some(silent),
                    ..seen(self.revision, NodeStanding::Dead, node.as_str())
                };
                self.report.verdicts.insert(node.clone(), self.now);
                self.record(&node, record);
                MembershipInput::DeclaredDead { node }
            }
            MembershipEffect::DeclareDead { node, .. } => MembershipInput::NotDeclaredDead { node },
            other @ (MembershipEffect::Beat { .. }
            | MembershipEffect::Watch { .. }
            | MembershipEffect::Unwatch { .. }
            | MembershipEffect::CheckLeases { .. }
            | MembershipEffect::KillTools
            | MembershipEffect::Suspend { .. }
            | MembershipEffect::Resume
            | MembershipEffect::Peer { .. }
            | MembershipEffect::Exit { .. }) => {
                panic!("{other:?} is no request to the registry")
            }
        }
    }
}

/// Kills a node every half second, and waits until the last verdict is due.
fn deaths_one_by_one(fleet: &mut Fleet, deaths: usize) {
    for _ in 0..deaths {
        let living = fleet.living();
        let victim = living[fleet.random.usize(..living.len())];
        fleet.kill(victim);
        let next = fleet.now + 500;
        fleet.until(next);
    }
    let end = fleet.now + 10_000;
    fleet.until(end);
}

/// Prints how long after the deaths the verdicts came, and returns the longest time in milliseconds.
fn print_verdicts(fleet: &Fleet, how: &str) -> u64 {
    let delays = fleet.report.delays();
    let longest = *delays.last().unwrap();
    println!(
        "{} of {} nodes {how}: verdicts p50 {} ms, max {longest} ms, {} false",
        delays.len(),
        fleet.nodes.len(),
        delays[delays.len() / 2],
        fleet.report.false_verdicts()
    );
    longest
}

#[test]
fn heartbeats_grow_with_the_nodes_and_each_death_is_found_in_time() {
    let per_node = |count: usize| {
        let mut fleet = Fleet::settled(count, 7);
        fleet.until(SETTLED + 10_000);
        fleet.report.heartbeats / 10 / count as u64
    };
    let most = 2 * (WATCHERS as u64 + 1);
    assert_eq!([per_node(40), per_node(120)], [most, most]);

    let mut fleet = Fleet::settled(120, 8);
    fleet.loss = 10;
    deaths_one_by_one(&mut fleet, 20);
    let delays = fleet.report.delays();
    assert!(*delays.last().unwrap() <= 4_000, "{delays:?}");
    assert_eq!(fleet.report.false_verdicts(), 0);
}

/// The survivors learn from the deaths of the watchers that they must watch the node.
#[test]
fn node_that_dies_with_all_its_watchers_is_declared_dead() {
    let mut fleet = Fleet::settled(120, 9);
    let watchers = fleet.watchers_of(0);
    assert_eq!(watchers.len(), WATCHERS);
    fleet.kill(0);
    watchers.iter().for_each(|place| fleet.kill(*place));
    fleet.until(SETTLED + 12_000);
    let delays = fleet.report.delays();
    assert!(*delays.last().unwrap() <= 8_000, "{delays:?}");
    assert_eq!(fleet.report.false_verdicts(), 0);
}

/// After a crash of all nodes the registry lists the dead ones as alive.
#[test]
fn few_new_nodes_declare_many_old_ones_dead() {
    let mut fleet = Fleet::new(60, 10);
    for place in 3..60 {
        let old = fleet.nodes[place].id.clone();
        fleet.revision += 1;
        let record = seen(fleet.revision, NodeStanding::Alive, "old");
        fleet.records.insert(old, record);
        fleet.kill(place);
    }
    fleet.until(40_000);
    let delays = fleet.report.delays();
    assert!(*delays.last().unwrap() <= 30_000, "{delays:?}");
    assert_eq!(fleet.report.false_verdicts(), 0);
}

#[test]
fn fleet_in_which_no_node_is_watched_is_found_out() {
    planted::plant(Some(planted::PlantedFault::NoneWatched));
    let mut fleet = Fleet::settled(30, 11);
    deaths_one_by_one(&mut fleet, 1);
    planted::plant(None);
    assert_eq!(fleet.report.delays(), [u64::MAX - SETTLED]);
}

/// Prints the figures of `docs/operations.md`. `PLANCK_FLEET_NODES=1000` plays 1,000 nodes too, which
/// takes a quarter of an hour in a debug build.
#[test]
#[ignore = "takes minutes: make test-all"]
fn a_thousand_nodes() {
    let most = std::env::var("PLANCK_FLEET_NODES").map_or(300, |most| most.parse().unwrap());
    for count in [100, 300, 1_000].into_iter().filter(|count| *count <= most) {
        let mut fleet = Fleet::settled(count, 1);
        fleet.until(SETTLED + 10_000);
        let report = &fleet.report;
        println!(
            "{count} nodes: {} heartbeats and {} messages of the registry per second",
            report.heartbeats / 10,
            report.registry / 10
        );
        fleet.report = FleetReport::default();
        deaths_one_by_one(&mut fleet, count / 20);
        let longest = print_verdicts(&fleet, "killed one by one");
        assert!(longest <= 4_000);
        fleet.report = FleetReport::default();
        for place in fleet.living() {
            if fleet.random.u8(0..10) < 3 {
                fleet.kill(place);
            }
        }
        let end = fleet.now + 20_000;
        fleet.until(end);
        print_verdicts(&fleet, "killed at once");
        // A minute of 1,000 nodes takes several in a debug build.
        let losses: &[u32] = if count < 1_000 { &[10, 50, 100] } else { &[] };
        for &loss in losses {
            let mut fleet = Fleet::settled(count, 2);
            fleet.loss = loss;
            fleet.until(SETTLED + 60_000);
            println!(
                "{count} nodes, {} % of heartbeats lost for a minute: {} suspicions, {} suspensions, {} false verdicts",
                loss / 10,
                fleet.report.suspicions,
                fleet.report.suspensions,
                fleet.report.false_verdicts()
            );
        }
    }
}
