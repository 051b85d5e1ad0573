//! Cases in which several nodes work at once and some answers of the store are lost.

use std::{collections::BTreeMap, sync::Arc};

use planck_common::{
    AgentId, NodeId, Seq, SessionId, command::SessionState, envelope::Envelope, event::InputKind,
};
use tokio::task::JoinSet;

use super::{
    World, events,
    team::{Team, message, new_agent, new_session, save, warnings},
};
use crate::{
    AgentCreation, Appended, AskOutcome, Batch, BatchOutcome, Created, InputOutcome, LeaseClaim,
    NewSession, PutResult, SessionStore, StoreError,
};

const ROUNDS: usize = 30;

pub async fn one_of_many_claims_wins(world: &dyn World) {
    let team = Team::start(world, 1).await;
    for seen in 1..=5 {
        let mut claims = JoinSet::new();
        for _ in 0..4 {
            let node = NodeId::mint();
            let (store, session, lead) = (
                world.open(&node).await,
                team.session.clone(),
                team.lead().clone(),
            );
            let claim = LeaseClaim::Lead { after_death: true };
            claims.spawn(async move {
                store
                    .claim(&session, &lead, seen, claim, &node)
                    .await
                    .unwrap()
            });
        }
        let won: Vec<_> = claims.join_all().await.into_iter().flatten().collect();
        assert_eq!(
            won.iter()
                .map(|lease| (lease.epoch, lease.incarnation))
                .collect::<Vec<_>>(),
            [(seen + 1, seen + 1)]
        );
    }
}

/// A writer for one agent. It ignores some answers of the store as if they were lost, and then
/// sends the same batch again.
struct Writer {
    store: Arc<dyn SessionStore>,
    node: NodeId,
    session: SessionId,
    batch: Batch,
    seen: Vec<Seq>,
}

impl Writer {
    async fn append(&self) -> Appended {
        loop {
            match self
                .store
                .append(&self.session, &self.node, std::slice::from_ref(&self.batch))
                .await
            {
                Ok(appended) if fastrand::u8(..10) > 2 => return appended,
                Ok(_lost) => {}
                Err(StoreError::Away(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Writes `rounds` batches, or fewer if another writer takes the lease. Returns the writer with
    /// the rows that the store acknowledged.
    async fn run(mut self, rounds: usize) -> Self {
        for _ in 0..rounds {
            self.batch.saves = vec![Arc::new(save(warnings(fastrand::usize(1..4))))];
            match self.append().await.batches.remove(0) {
                BatchOutcome::Written(seqs) => {
                    self.batch.prev = *seqs.last().unwrap();
                    self.seen.extend(seqs);
                }
                BatchOutcome::StaleEpoch => break,
                other @ (BatchOutcome::InputsGone(_) | BatchOutcome::Refused(_)) => {
                    panic!("{other:?}")
                }
            }
            tokio::task::yield_now().await;
        }
        self
    }
}

pub async fn racing_writers_with_lost_answers(world: &dyn World) {
    let team = Team::start(world, 3).await;
    let mut writers = JoinSet::new();
    for agent in 0..3 {
        let batch = team.batch(agent, 0, vec![]);
        let session = team.session.clone();
        let first = Writer {
            store: team.store.clone(),
            node: team.node.clone(),
            session,
            batch,
            seen: vec![],
        };
        let node = NodeId::mint();
        let mut second = Writer {
            store: world.open(&node).await,
            node,
            session: team.session.clone(),
            batch: first.batch.clone(),
            seen: vec![],
        };
        writers.spawn(first.run(ROUNDS));
        let claim = if agent == 0 {
            LeaseClaim::Lead { after_death: false }
        } else {
            LeaseClaim::Member(team.under(1))
        };
        writers.spawn(async move {
            tokio::task::yield_now().await;
            let claimed = second
                .store
                .claim(&second.session, &second.batch.agent, 1, claim, &second.node)
                .await;
            let lease = claimed.unwrap().unwrap();
            (second.batch.epoch, second.batch.prev) = (lease.epoch, lease.last_seq);
            second.run(ROUNDS).await
        });
    }
    let mut acknowledged: Vec<Seq> = writers
        .join_all()
        .await
        .into_iter()
        .flat_map(|writer| writer.seen)
        .collect();
    acknowledged.sort_unstable();
    let log = events::all(&team, None).await;
    assert_log_is_sound(&log);
    assert_eq!(
        acknowledged,
        log.iter()
            .map(|event| event.seq.unwrap())
            .collect::<Vec<_>>()
    );
}

/// Asserts that the numbers of the rows have no gaps, that `prev` links the rows of each agent, and
/// that epochs never decrease.
pub fn assert_log_is_sound(log: &[Envelope]) {
    let mut last: BTreeMap<AgentId, (Seq, i64)> = BTreeMap::new();
    for (seq, event) in (1..).zip(log) {
        assert_eq!(event.seq, Some(seq));
        let (prev, epoch) = last
            .insert(event.agent_id.clone(), (seq, event.epoch))
            .unwrap_or((0, 0));
        assert_eq!(event.prev, Some(prev), "at {seq}");
        assert!(event.epoch >= epoch, "at {seq}");
    }
}

pub async fn crossing_questions_never_make_a_cycle(world: &dyn World) {
    let team = Team::start(world, 3).await;
    let stores = [
        world.open(&NodeId::mint()).await,
        world.open(&NodeId::mint()).await,
        world.open(&NodeId::mint()).await,
    ];
    for _ in 0..ROUNDS {
        let mut asks = JoinSet::new();
        for (asker, store) in stores.iter().enumerate() {
            let question = team.said_by(asker, (asker + 1) % 3, InputKind::Question);
            let (store, session) = (store.clone(), team.session.clone());
            asks.spawn(async move {
                (
                    question.id.clone(),
                    store.ask(&session, question, 1, 16).await.unwrap(),
                )
            });
        }
        let asked = asks.join_all().await;
        let refused = asked
            .iter()
            .filter(|(_, asked)| matches!(asked, AskOutcome::Cycle(path) if path.len() == 4))
            .count();
        assert_eq!(refused, 1, "{asked:?}");
        for (question, _) in asked {
            if team
                .store
                .input(&team.session, &question)
                .await
                .unwrap()
                .is_some()
            {
                team.store.withdraw(&team.session, &question).await.unwrap();
            }
        }
    }
}

pub async fn no_input_slips_in_beside_a_stop(world: &dyn World) {
    let other = world.open(&NodeId::mint()).await;
    let team = Team::start(world, ROUNDS + 1).await;
    for agent in 1..=ROUNDS {
        let input = team.prompt(agent);
        let (put, stop) = tokio::join!(
            other.put(&team.session, input.clone()),
            team.store
                .release(&team.session, &team.agents[agent], 1, true)
        );
        stop.unwrap();
        let row = team.store.input(&team.session, &input.id).await.unwrap();
        match put.unwrap() {
            PutResult::Put { .. } => assert_eq!(
                row.unwrap().outcome.as_ref().map(InputOutcome::name),
                Some("stopped")
            ),
            PutResult::NotFound => assert!(row.is_none()),
            PutResult::Known(known) => panic!("{known:?}"),
        }
    }
}

pub async fn no_member_is_created_beside_a_claim_of_the_lead(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let thief = NodeId::mint();
    let other = world.open(&thief).await;
    for incarnation in 1..=10 {
        let agent = new_agent(&team.session, "created");
        let (created, claimed) = tokio::join!(
            team.create_agent(agent.clone(), incarnation),
            other.claim(
                &team.session,
                team.lead(),
                incarnation,
                LeaseClaim::Lead { after_death: true },
                &thief
            )
        );
        assert_eq!(claimed.unwrap().unwrap().incarnation, incarnation + 1);
        let there = team.store.find_agent(&agent.id).await.unwrap().is_some();
        match created {
            AgentCreation::Created { .. } => assert!(there),
            AgentCreation::TeamDead => assert!(!there),
            other @ (AgentCreation::Known(_)
            | AgentCreation::Full { .. }
            | AgentCreation::Refused(_)) => {
                panic!("{other:?}")
            }
        }
        let late = team
            .create_agent(new_agent(&team.session, "late"), incarnation)
            .await;
        assert!(matches!(late, AgentCreation::TeamDead));
    }
}

pub async fn a_session_that_many_create_is_created_once(world: &dyn World) {
    for _ in 0..20 {
        let (id, mut tries, mut readers) = (SessionId::mint(), JoinSet::new(), JoinSet::new());
        for _ in 0..3 {
            // Each node picks its own agent ids and session name.
            let (node, mut session) = (
                NodeId::mint(),
                NewSession {
                    id: id.clone(),
                    ..new_session(2)
                },
            );
            session
                .agents
                .iter_mut()
                .for_each(|agent| agent.session = id.clone());
            let store = world.open(&node).await;
            tries.spawn(async move {
                store.session(&session.id).await?;
                store.create(session, &node).await
            });
            let (reader, id) = (world.open(&NodeId::mint()).await, id.clone());
            readers.spawn(async move { while reader.session(&id).await.unwrap().is_none() {} });
        }
        let mut new = 0;
        while let Some(created) = tries.join_next().await {
            match created.unwrap().unwrap() {
                Created::New(record, _) => new += u32::from(record.id == id),
                Created::Known(record) => assert_eq!(record.id, id),
            }
        }
        assert_eq!(new, 1);
        while let Some(read) = readers.join_next().await {
            read.unwrap();
        }
    }
}

/// A call that runs concurrently with the removal of a session either takes effect before it or
/// fails because the session does not exist.
pub async fn a_call_beside_a_removal_finds_the_session_or_nothing(world: &dyn World) {
    for _ in 0..20 {
        let team = Team::start(world, 1).await;
        team.log(0, vec![message("1")]).await;
        team.store
            .set_state(&team.session, 1, SessionState::Closed)
            .await
            .unwrap();
        let mut others = JoinSet::new();
        for _ in 0..3 {
            let (store, session) = (world.open(&NodeId::mint()).await, team.session.clone());
            let (lead, input) = (team.lead().clone(), team.prompt(0));
            others.spawn(async move {
                loop {
                    let seen = [
                        store.session(&session).await.map(|found| found.is_some()),
                        store.events(&session, 1, 10, None).await.map(|_| true),
                        store
                            .messages(&session, None, None, None)
                            .await
                            .map(|_| true),
                        store
                            .put(&session, input.clone())
                            .await
                            .map(|put| !matches!(put, PutResult::NotFound)),
                        store.find_agent(&lead).await.map(|found| found.is_some()),
                        store.open_inputs(&session, &lead).await.map(|_| true),
                        store
                            .release(&session, &lead, 9, false)
                            .await
                            .map(|()| true),
                    ];
                    for error in seen.iter().filter_map(|seen| seen.as_ref().err()) {
                        let is_true = matches!(
                            error,
                            StoreError::NotFound(_)
                                | StoreError::StaleEpoch(_)
                                | StoreError::Away(_)
                        );
                        assert!(is_true, "{error:?}");
                    }
                    if !matches!(seen[0], Ok(true)) {
                        return;
                    }
                }
            });
        }
        tokio::task::yield_now().await;
        team.store.delete(&team.session).await.unwrap();
        while let Some(done) = others.join_next().await {
            done.unwrap();
        }
        assert!(team.store.session(&team.session).await.unwrap().is_none());
    }
}
