//! Tests of the queue over a log in memory that applies the rules of the store and can fail on
//! request.

pub mod fake;
mod model;
mod releases;

use std::sync::Arc;

use planck_common::{
    AgentId, InputId, NodeId, SessionId, Timestamp, command::AgentState, envelope::EventPlace,
    event::EventKind, usage::Usage,
};
use tokio::task::JoinHandle;

use super::{AppendError, AppendQueue, PLACES, Receipt, WrittenRows};
use model::{Fault, Model};
use planck_agent::{Entry, Mark, Save, Ticket, effect::Change};

struct World {
    model: Arc<Model>,
    queue: AppendQueue,
    work: JoinHandle<()>,
}

fn agent(n: usize) -> AgentId {
    AgentId::parse(&format!("a{n}")).unwrap()
}

fn start() -> World {
    let model = Arc::new(Model::default());
    let (queue, work) = AppendQueue::new(model.clone(), SessionId::mint(), NodeId::mint());
    let work = tokio::spawn(work);
    World { model, queue, work }
}

impl World {
    async fn enroll(&self, count: usize) {
        for n in 0..count {
            self.model.hold(&agent(n), 1);
            self.queue.enroll(agent(n), 0).await.unwrap();
        }
    }

    async fn submit(&self, pending: PendingSave) -> Receipt {
        let PendingSave { agent, epoch, save } = pending;
        self.queue.submit(&agent, epoch, Arc::new(save)).await
    }

    async fn append(&self, pending: PendingSave) -> Result<WrittenRows, AppendError> {
        self.submit(pending).await.outcome().await
    }

    /// Submits a save of agent 99 and keeps its statement in flight, so that further saves wait in
    /// the queue. Returns the receipt of the save.
    async fn hold_up(&self) -> Receipt {
        self.model.hold(&agent(99), 1);
        self.queue.enroll(agent(99), 0).await.unwrap();
        let gate = self.model.close();
        let first = self.submit(save(99, &["first"])).await;
        gate.reached().await;
        first
    }
}

/// A save of an agent, and the epoch under which it is submitted.
struct PendingSave {
    agent: AgentId,
    epoch: i64,
    save: Save,
}

fn save(n: usize, bodies: &[&str]) -> PendingSave {
    let entry = |body: &&str| Entry {
        kind: EventKind::Warning,
        place: EventPlace {
            turn: 1,
            request: 1,
            at: Timestamp::from_millis(0),
        },
        body: (*body).to_owned(),
    };
    PendingSave {
        agent: agent(n),
        epoch: 1,
        save: Save {
            ticket: Ticket(0),
            entries: bodies.iter().map(entry).collect(),
            marks: vec![],
            puts: vec![],
            usage: Usage {
                output_tokens: 1,
                ..Usage::default()
            },
            state: AgentState::Streaming,
            beside: false,
        },
    }
}

/// Returns a save that consumes a withdrawn input, and the error with which the save fails.
fn gone(n: usize) -> (PendingSave, AppendError) {
    let input = InputId::parse("gone").unwrap();
    let mark = Mark {
        input: input.clone(),
        change: Change::Consumed { turn: 1 },
    };
    let mut pending = save(n, &["never"]);
    pending.save.marks.push(mark);
    (pending, AppendError::InputsGone(vec![input]))
}

fn place(written: Result<WrittenRows, AppendError>) -> (Vec<i64>, i64) {
    let written = written.unwrap();
    (written.seqs, written.prev)
}

#[tokio::test]
async fn saves_that_arrive_meanwhile_share_the_next_statement() {
    let world = start();
    world.enroll(2).await;
    let mut first = world.hold_up().await;
    let saves = [
        save(0, &["a", "b"]),
        save(1, &["c"]),
        save(0, &["d"]),
        save(0, &[]),
        save(1, &["e", "f"]),
    ];
    let mut receipts = vec![];
    for pending in saves {
        receipts.push(world.submit(pending).await);
    }
    world.model.open();
    assert_eq!(place(first.outcome().await), (vec![1], 0));
    let mut places = vec![];
    for mut receipt in receipts {
        places.push(place(receipt.outcome().await));
    }
    assert_eq!(
        places,
        [
            (vec![2, 3], 0),
            (vec![5], 0),
            (vec![4], 3),
            (vec![], 4),
            (vec![6, 7], 5)
        ]
    );
    assert_eq!(world.model.statements(), 2);
    assert_eq!(
        world.model.bodies(),
        ["first", "a", "b", "d", "c", "e", "f"]
    );
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_sent_again_unchanged() {
    let world = start();
    world.enroll(1).await;
    let mut first = world.hold_up().await;
    world
        .model
        .fail([Fault::DropAnswer, Fault::Away, Fault::DropAnswer]);
    let mut more = world.submit(save(0, &["more"])).await;
    world.model.open();
    assert_eq!(place(first.outcome().await), (vec![1], 0));
    assert_eq!(place(more.outcome().await), (vec![2], 0));
    // The model panics if a statement with an unknown outcome is followed by a different one.
    assert_eq!(world.model.statements(), 5);
    assert_eq!(world.model.bodies(), ["first", "more"]);
}

#[tokio::test]
async fn a_lost_lease_fails_what_waits_behind_it() {
    let world = start();
    world.enroll(2).await;
    let mut first = world.hold_up().await;
    let (mut mine, mut others) = (
        world.submit(save(0, &["mine"])).await,
        world.submit(save(1, &["other"])).await,
    );
    world.model.hold(&agent(0), 2);
    world.model.open();
    first.outcome().await.unwrap();
    let mut behind = world.submit(save(0, &["behind"])).await;
    assert_eq!(mine.outcome().await, Err(AppendError::StaleEpoch));
    assert_eq!(behind.outcome().await, Err(AppendError::StaleEpoch));
    others.outcome().await.unwrap();
    let sent = world.model.statements();
    assert_eq!(
        world.append(save(0, &["later"])).await,
        Err(AppendError::StaleEpoch)
    );
    assert_eq!(world.model.statements(), sent);

    world.queue.enroll(agent(0), 0).await.unwrap();
    let renewed = world
        .append(PendingSave {
            epoch: 2,
            ..save(0, &["again"])
        })
        .await
        .unwrap();
    assert_eq!(renewed.prev, 0);
    assert_eq!(world.model.bodies(), ["first", "other", "again"]);
}

#[tokio::test]
async fn an_older_epochs_failure_does_not_touch_a_newer_one() {
    let world = start();
    world.enroll(1).await;
    world.model.hold(&agent(0), 2);
    let mut first = world.hold_up().await;
    let mut old = world.submit(save(0, &["old"])).await;
    let mut new = world
        .submit(PendingSave {
            epoch: 2,
            ..save(0, &["new"])
        })
        .await;
    world.model.open();
    first.outcome().await.unwrap();
    assert_eq!(old.outcome().await, Err(AppendError::StaleEpoch));
    new.outcome().await.unwrap();
    assert_eq!(world.model.bodies(), ["first", "new"]);
}

#[tokio::test]
async fn gone_inputs_fail_that_save_and_those_built_upon_it() {
    let world = start();
    world.enroll(2).await;
    let mut first = world.hold_up().await;
    let mut before = world.submit(save(0, &["before"])).await;
    let (pending, error) = gone(0);
    let mut lost = world.submit(pending).await;
    let (mut behind, mut other) = (
        world.submit(save(0, &["behind"])).await,
        world.submit(save(1, &["other"])).await,
    );
    world.model.open();
    first.outcome().await.unwrap();
    before.outcome().await.unwrap();
    other.outcome().await.unwrap();
    assert_eq!(lost.outcome().await, Err(error.clone()));
    let unaware = world.submit(save(0, &["anew"])).await.outcome().await;
    assert_eq!(unaware.unwrap().seqs.len(), 1);
    assert_eq!(behind.outcome().await, Err(error));
    let mut bodies = world.model.bodies();
    bodies.sort();
    assert_eq!(bodies, ["anew", "before", "first", "other"]);
}

#[tokio::test]
async fn refused_data_fails_its_own_save_only() {
    let world = start();
    world.enroll(1).await;
    let mut first = world.hold_up().await;
    let (mut good, mut bad) = (
        world.submit(save(0, &["good"])).await,
        world.submit(save(0, &["a\0b"])).await,
    );
    world.model.open();
    first.outcome().await.unwrap();
    good.outcome().await.unwrap();
    assert!(matches!(bad.outcome().await, Err(AppendError::Refused(_))));
    assert_eq!(
        world
            .append(save(0, &["next"]))
            .await
            .unwrap()
            .session_totals
            .output_tokens,
        3
    );
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_work_pauses_and_nothing_is_lost() {
    let world = start();
    world.enroll(1).await;
    world.model.fail(std::iter::repeat_n(Fault::Away, 40));
    let before = tokio::time::Instant::now();
    assert_eq!(place(world.append(save(0, &["kept"])).await), (vec![1], 0));
    assert!(
        before.elapsed().as_secs() > 60,
        "tried {} times in {:?}",
        world.model.statements(),
        before.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn writers_learn_that_the_task_of_the_queue_ended() {
    let world = start();
    world.enroll(1).await;
    world
        .model
        .fail(std::iter::repeat_n(Fault::Away, 1_000_000));
    let (mut first, mut waits) = (
        world.submit(save(0, &["x"])).await,
        world.submit(save(0, &["y"])).await,
    );
    world.work.abort();
    assert_eq!(first.outcome().await, Err(AppendError::Closed));
    assert_eq!(waits.outcome().await, Err(AppendError::Closed));
    let later = world.append(save(0, &["z"])).await;
    assert_eq!(later, Err(AppendError::Closed));
}

#[tokio::test]
async fn the_queue_ends_with_its_last_handle_when_all_is_written() {
    let world = start();
    world.enroll(1).await;
    let first = world.hold_up().await;
    drop((first, world.submit(save(0, &["unwatched"])).await));
    let World { model, queue, work } = world;
    drop(queue);
    model.open();
    work.await.unwrap();
    assert_eq!(model.bodies(), ["first", "unwatched"]);
}

#[tokio::test]
async fn a_full_queue_makes_writers_wait() {
    let world = start();
    world.enroll(1).await;
    let mut first = world.hold_up().await;
    for _ in 0..PLACES {
        world.submit(save(0, &["x"])).await;
    }
    let one_more = world.submit(save(0, &["waits"]));
    tokio::pin!(one_more);
    assert!(futures_util::poll!(&mut one_more).is_pending());
    world.model.open();
    first.outcome().await.unwrap();
    let mut receipt = one_more.await;
    assert_eq!(receipt.outcome().await.unwrap().prev, PLACES as i64 + 1);
}

#[tokio::test]
async fn an_agent_that_is_not_enrolled_writes_nothing() {
    let world = start();
    world.enroll(1).await;
    world.append(save(0, &["x"])).await.unwrap();
    assert_eq!(
        world.append(save(1, &["y"])).await,
        Err(AppendError::NotEnrolled(agent(1)))
    );
}

#[tokio::test(start_paused = true)]
async fn acknowledged_saves_are_the_log_after_any_failure() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let world = start();
        world.enroll(3).await;
        let faults: Vec<Fault> = (0..60)
            .map(|_| match random.u8(..10) {
                0 => Fault::Away,
                1 | 2 => Fault::DropAnswer,
                _ => Fault::None,
            })
            .collect();
        world.model.fail(faults);
        let mut acknowledged = vec![];
        for round in 0..20 {
            let mut receipts = vec![];
            for step in 0..random.usize(1..12) {
                let n = random.usize(..3);
                let body = format!("{round}.{step}");
                let text = body.as_str();
                let pending = if random.u8(..12) == 0 {
                    gone(n).0
                } else {
                    save(n, &[text, text][..random.usize(..3)])
                };
                receipts.push((body, world.submit(pending).await));
            }
            for (body, mut receipt) in receipts {
                match receipt.outcome().await {
                    Ok(written) => {
                        acknowledged.extend(written.seqs.into_iter().map(|seq| (seq, body.clone())))
                    }
                    Err(error) => assert!(
                        matches!(error, AppendError::InputsGone(_)),
                        "seed {seed}: {error:?}"
                    ),
                }
            }
        }
        acknowledged.sort();
        let log: Vec<_> = (1..).zip(world.model.bodies()).collect();
        assert_eq!(acknowledged, log, "seed {seed}");
    }
}
