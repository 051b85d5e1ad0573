//! A stress test of several nodes with lost answers and killed connections. The nodes claim,
//! append, ask, withdraw and rewind at the same time.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use planck_common::{AgentId, InputId, NodeId, Seq, SessionId, event::InputKind, usage::Usage};
use sqlx::{Executor as _, Row as _};
use tokio::task::JoinSet;

use super::Private;
use crate::{
    Appended, AskOutcome, Batch, Inbox as _, LeadIncarnation, LeaseClaim, LeaseRelease,
    Leases as _, Log as _, SessionRecords as _, StoreError,
    conformance::{Team, assert_log_is_sound, message, save, whole_log},
    postgres::PostgresStore,
    queue::{AppendError, AppendQueue, tests::fake::QueueStore},
};
use planck_agent::{Mark, Save, effect::Change};

const NODES: usize = 3;
const AGENTS: usize = 4;
const TIME: Duration = Duration::from_secs(4);
/// The time limit on a busy machine. After [`TIME`], the test ends once every count except `gone`
/// is at least three.
const LONGEST: Duration = Duration::from_secs(30);

/// A store that loses one in 33 answers to an append.
struct Lossy(PostgresStore);

#[async_trait]
impl QueueStore for Lossy {
    async fn send(
        &self,
        session: &SessionId,
        node: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError> {
        let appended = self.0.append(session, node, batches).await?;
        if fastrand::u8(..33) == 0 {
            Err(StoreError::Away("the answer was lost".into()))
        } else {
            Ok(appended)
        }
    }

    async fn send_releases(
        &self,
        session: &SessionId,
        releases: &[LeaseRelease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        self.0.release_all(session, releases).await
    }
}

#[derive(Debug, Default)]
struct Counts {
    claims: usize,
    stale: usize,
    gone: usize,
    killed: usize,
    asked: usize,
    cycles: usize,
    rewinds: usize,
}

impl Counts {
    fn all_tried(&self) -> bool {
        [
            self.claims,
            self.stale,
            self.killed,
            self.asked,
            self.cycles,
            self.rewinds,
        ]
        .iter()
        .all(|count| *count > 2)
    }
}

/// The state that all tasks of the test share.
struct Shared {
    team: Team,
    began: Instant,
    /// The text of each acknowledged row, by the number of the row.
    acknowledged: Mutex<BTreeMap<Seq, String>>,
    counts: Mutex<Counts>,
}

impl Shared {
    fn goes_on(&self) -> bool {
        let elapsed = self.began.elapsed();
        elapsed < TIME || elapsed < LONGEST && !self.counts.lock().unwrap().all_tried()
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().unwrap());
    }
}

/// Repeats a call while it fails with [`StoreError::Away`].
macro_rules! settled {
    ($work:expr) => {
        loop {
            match $work.await {
                Err(StoreError::Away(_)) => tokio::task::yield_now().await,
                other => break other,
            }
        }
    };
}

struct Writer {
    shared: Arc<Shared>,
    store: PostgresStore,
    queue: AppendQueue,
    node: NodeId,
    agent: usize,
}

impl Writer {
    fn id(&self) -> &AgentId {
        &self.shared.team.agents[self.agent]
    }

    /// Claims the agent repeatedly, and writes after each claim until the lease is lost.
    async fn run(self) {
        while self.shared.goes_on() {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(20..150))).await;
            let Some(epoch) = self.claim().await else {
                continue;
            };
            self.shared.count(|counts| counts.claims += 1);
            for _ in 0..fastrand::usize(1..30) {
                if !self.write(epoch).await {
                    break;
                }
            }
        }
    }

    async fn claim(&self) -> Option<i64> {
        let session = &self.shared.team.session;
        let seen = settled!(self.store.find_agent(self.id())).unwrap().unwrap();
        let lead = settled!(self.store.find_agent(self.shared.team.lead()))
            .unwrap()
            .unwrap();
        let under = LeadIncarnation {
            lead: lead.id,
            incarnation: lead.incarnation,
        };
        let claim = || match self.agent {
            0 => LeaseClaim::Lead {
                after_death: fastrand::bool(),
            },
            _ => LeaseClaim::Member(under.clone()),
        };
        let lease = settled!(
            self.store
                .claim(session, self.id(), seen.epoch, claim(), &self.node)
        )
        .unwrap()?;
        self.queue
            .enroll(self.id().clone(), lease.last_seq)
            .await
            .unwrap();
        Some(lease.epoch)
    }

    /// Appends some rows, consumes the unread inputs, and ends the inputs that were consumed
    /// earlier. Returns `false` once the lease is lost.
    async fn write(&self, epoch: i64) -> bool {
        let open = settled!(self.store.open_inputs(&self.shared.team.session, self.id())).unwrap();
        let marks = open.iter().map(|input| {
            let ended = Change::Ended {
                outcome: "completed".into(),
                answer: Some("yes".into()),
            };
            let change = if input.turn.is_some() {
                ended
            } else {
                Change::Consumed { turn: 1 }
            };
            Mark {
                input: input.input.id.clone(),
                change,
            }
        });
        let texts: Vec<String> = (0..fastrand::usize(1..4))
            .map(|_| InputId::mint().to_string())
            .collect();
        let save = Save {
            marks: marks.collect(),
            usage: Usage {
                output_tokens: 1,
                ..Usage::default()
            },
            ..save(texts.iter().map(|text| message(text)).collect())
        };
        let mut receipt = self.queue.submit(self.id(), epoch, Arc::new(save)).await;
        match receipt.outcome().await {
            Ok(written) => self
                .shared
                .acknowledged
                .lock()
                .unwrap()
                .extend(written.seqs.into_iter().zip(texts)),
            Err(AppendError::StaleEpoch) => {
                self.shared.count(|counts| counts.stale += 1);
                return false;
            }
            Err(AppendError::InputsGone(_)) => self.shared.count(|counts| counts.gone += 1),
            Err(error) => panic!("{error}"),
        }
        true
    }
}

/// Repeatedly asks a random agent in the name of another through `store`, and withdraws about half
/// of the questions.
async fn ask(shared: Arc<Shared>, store: PostgresStore) {
    while shared.goes_on() {
        let (from, to) = (fastrand::usize(..AGENTS), fastrand::usize(..AGENTS));
        let asker = settled!(store.find_agent(&shared.team.agents[from]))
            .unwrap()
            .unwrap();
        let question = shared.team.said_by(from, to, InputKind::Question);
        let session = &shared.team.session;
        match settled!(store.ask(session, question.clone(), asker.epoch, 16)).unwrap() {
            AskOutcome::Asked { .. } | AskOutcome::Known { .. } => {
                shared.count(|counts| counts.asked += 1)
            }
            AskOutcome::Cycle(_) => shared.count(|counts| counts.cycles += 1),
            AskOutcome::StaleEpoch => {}
            other @ (AskOutcome::NotFound | AskOutcome::TooDeep(_)) => panic!("{other:?}"),
        }
        if fastrand::bool() {
            settled!(store.withdraw(session, &question.id)).unwrap();
        }
    }
}

/// Repeatedly claims the orchestrator and rewinds the log by a few rows.
async fn rewind(shared: Arc<Shared>, store: PostgresStore, node: NodeId) {
    let (session, lead) = (&shared.team.session, shared.team.lead());
    while shared.goes_on() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let seen = settled!(store.find_agent(lead)).unwrap().unwrap().epoch;
        let claim = || LeaseClaim::Lead { after_death: false };
        let Some(lease) = settled!(store.claim(session, lead, seen, claim(), &node)).unwrap()
        else {
            continue;
        };
        let to = settled!(store.head(session)).unwrap() - fastrand::i64(0..4);
        match settled!(store.rewind(session, lease.epoch, to, "a test")) {
            Ok(_) => shared.count(|counts| counts.rewinds += 1),
            Err(StoreError::StaleEpoch(_) | StoreError::BadRequest(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

const KILL: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1";

const CYCLE: &str = "WITH RECURSIVE w(first, a) AS (SELECT sender, agent_id FROM inputs WHERE waiting
  UNION SELECT w.first, i.agent_id FROM w JOIN inputs i ON i.sender = w.a AND i.waiting) SELECT 1 FROM w WHERE first = a LIMIT 1";

async fn kill_and_look(shared: Arc<Shared>, mut connection: sqlx::PgConnection) {
    while shared.goes_on() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let killed = connection.execute(KILL).await.unwrap().rows_affected();
        shared.count(|counts| counts.killed += usize::try_from(killed).unwrap());
        assert!(
            connection.fetch_optional(CYCLE).await.unwrap().is_none(),
            "agents wait in a circle"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rules_hold_under_kills_and_lost_answers() {
    let world = Private::create().await;
    let team = Team::start(&world, AGENTS).await;
    let shared = Arc::new(Shared {
        team,
        began: Instant::now(),
        acknowledged: Mutex::default(),
        counts: Mutex::default(),
    });
    let (mut queues, mut tasks) = (JoinSet::new(), JoinSet::new());
    for _ in 0..NODES {
        let (store, node) = (world.store().await, NodeId::mint());
        let session = shared.team.session.clone();
        let lossy = Arc::new(Lossy(store.clone()));
        let (queue, work) = AppendQueue::new(lossy, session, node.clone());
        queues.spawn(work);
        for agent in 0..AGENTS {
            let (shared, store, queue, node) =
                (shared.clone(), store.clone(), queue.clone(), node.clone());
            tasks.spawn(
                Writer {
                    shared,
                    store,
                    queue,
                    node,
                    agent,
                }
                .run(),
            );
        }
        tasks.spawn(ask(shared.clone(), store));
    }
    tasks.spawn(rewind(shared.clone(), world.store().await, NodeId::mint()));
    tasks.spawn(kill_and_look(
        shared.clone(),
        world.0.connect().await.unwrap(),
    ));
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    queues.join_all().await;
    check(&shared, &mut world.0.connect().await.unwrap()).await;
}

async fn check(shared: &Shared, connection: &mut sqlx::PgConnection) {
    let counts = std::mem::take(&mut *shared.counts.lock().unwrap());
    let log = settled!(shared.team.store.head(&shared.team.session)).unwrap();
    println!("{log} rows, {counts:?}");
    assert!(counts.all_tried(), "{counts:?}");

    let log = whole_log(&shared.team, None).await;
    assert_log_is_sound(&log);
    let acknowledged = shared.acknowledged.lock().unwrap().clone();
    let mut written = BTreeMap::new();
    for event in log.iter().filter(|event| event.kind == "message") {
        let data: serde_json::Value = serde_json::from_str(event.data.get()).unwrap();
        written.insert(
            event.seq.unwrap(),
            data["message"]["content"][0]["text"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }
    assert_eq!(written, acknowledged);
    let number = |text| -> i64 { sqlx::Row::get(text, 0) };
    let sums = "SELECT (SELECT sum(output_tokens)::bigint FROM agents) - (SELECT output_tokens FROM sessions)";
    assert_eq!(number(&connection.fetch_one(sums).await.unwrap()), 0);
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(
        connection
            .fetch_one(deadlocks)
            .await
            .unwrap()
            .get::<i64, _>(0),
        0
    );
}
