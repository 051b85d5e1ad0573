//! Cases for appends: only the holder of the lease can write, each batch is written completely or
//! not at all, and repeating a batch does not write it twice.

use planck_common::{InputId, NodeId, Seq, command::AgentState, event::InputKind, usage::Usage};

use super::{
    World,
    team::{Team, consumed, ended, entry, message, turn_end, turn_start, warnings},
};
use crate::{Batch, BatchOutcome, InputOutcome, LeaseClaim, PutResult, StoreError};

pub async fn the_log_is_dense_and_chained(world: &dyn World) {
    let team = Team::start(world, 3).await;
    let batches = [
        team.batch(0, 0, warnings(2)),
        team.batch(1, 0, warnings(1)),
        team.batch(2, 0, warnings(3)),
    ];
    let done = team
        .store
        .append(&team.session, &team.node, &batches)
        .await
        .unwrap();
    let expected = [vec![1, 2], vec![3], vec![4, 5, 6]].map(BatchOutcome::Written);
    assert_eq!(done.batches, expected);
    assert_eq!(team.write(team.batch(0, 2, warnings(2))).await, [7, 8]);
    assert_eq!(team.store.head(&team.session).await.unwrap(), 8);

    let prevs: Vec<(Seq, Seq)> = chain(&team).await;
    assert_eq!(
        prevs,
        [
            (1, 0),
            (2, 1),
            (3, 0),
            (4, 0),
            (5, 4),
            (6, 5),
            (7, 2),
            (8, 7)
        ]
    );
}

pub async fn a_batch_sent_again_is_not_doubled(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let input = team.prompt(0);
    team.put(&input).await;
    let batch = team
        .batch(0, 0, vec![turn_start(1), message("do it")])
        .with(|save| {
            save.marks = vec![consumed(&input, 1)];
            save.usage = Usage {
                input_tokens: 5,
                ..Usage::default()
            };
        });
    let both = [batch.clone(), team.batch(1, 0, warnings(1))];
    let first = team
        .store
        .append(&team.session, &team.node, &both)
        .await
        .unwrap();
    let again = team
        .store
        .append(&team.session, &team.node, &both)
        .await
        .unwrap();
    assert_eq!(first.batches, again.batches);
    assert_eq!(
        (first.session, again.session.input_tokens),
        (again.session, 5)
    );
    assert_eq!(team.write(batch).await, [1, 2]);
    assert_eq!(team.store.head(&team.session).await.unwrap(), 3);
}

pub async fn a_resend_is_found_after_the_lease_moved(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let batch = team.batch(0, 0, warnings(2));
    assert_eq!(team.write(batch.clone()).await, [1, 2]);
    let other = NodeId::mint();
    let claim = LeaseClaim::Lead { after_death: true };
    team.store
        .claim(&team.session, team.lead(), 1, claim, &other)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(team.append(batch).await, BatchOutcome::Written(vec![1, 2]));
    assert_eq!(
        team.append(team.batch(0, 0, warnings(3))).await,
        BatchOutcome::StaleEpoch
    );
    assert_eq!(
        team.append(team.batch(0, 2, warnings(1))).await,
        BatchOutcome::StaleEpoch
    );
}

pub async fn each_batch_stands_alone(world: &dyn World) {
    let team = Team::start(world, 3).await;
    team.store
        .release(&team.session, &team.agents[1], 1, false)
        .await
        .unwrap();
    let wrong_prev = team.batch(2, 7, warnings(1));
    let batches = [
        team.batch(0, 0, warnings(1)),
        team.batch(1, 0, warnings(1)),
        wrong_prev,
    ];
    let done = team
        .store
        .append(&team.session, &team.node, &batches)
        .await
        .unwrap();
    assert_eq!(
        done.batches,
        [
            BatchOutcome::Written(vec![1]),
            BatchOutcome::StaleEpoch,
            BatchOutcome::StaleEpoch
        ]
    );
    assert_eq!(team.store.head(&team.session).await.unwrap(), 1);
}

pub async fn a_gone_input_stops_its_batch_only(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let (gone, there, unknown) = (
        team.said_by(1, 0, InputKind::Question),
        team.prompt(0),
        team.prompt(0),
    );
    team.put(&gone).await;
    team.put(&there).await;
    assert!(team.store.withdraw(&team.session, &gone.id).await.unwrap());
    let marks = [&gone, &there, &unknown]
        .map(|input| consumed(input, 1))
        .to_vec();
    let batches = [
        team.batch(0, 0, vec![turn_start(1)])
            .with(|save| save.marks = marks),
        team.batch(1, 0, warnings(1)),
    ];
    let done = team
        .store
        .append(&team.session, &team.node, &batches)
        .await
        .unwrap();
    let missing: Vec<InputId> = vec![gone.id, unknown.id];
    assert_eq!(
        done.batches,
        [
            BatchOutcome::InputsGone(missing),
            BatchOutcome::Written(vec![1])
        ]
    );
    let left = team
        .store
        .input(&team.session, &there.id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(left.turn, None);

    team.write(
        team.batch(0, 0, vec![turn_start(1)])
            .with(|save| save.marks = vec![consumed(&there, 1)]),
    )
    .await;
    let twice = team
        .batch(0, 2, vec![turn_start(2)])
        .with(|save| save.marks = vec![consumed(&there, 2)]);
    assert_eq!(
        team.append(twice).await,
        BatchOutcome::InputsGone(vec![there.id.clone()])
    );
    let not_its_own = team
        .batch(1, 1, warnings(1))
        .with(|save| save.marks = vec![ended(&there, "stopped", None)]);
    assert_eq!(
        team.append(not_its_own).await,
        BatchOutcome::InputsGone(vec![there.id])
    );
}

pub async fn consuming_and_ending_are_marked(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let (asked, at_once) = (team.said_by(1, 0, InputKind::Question), team.prompt(0));
    team.put(&asked).await;
    team.put(&at_once).await;
    team.write(
        team.batch(0, 0, vec![turn_start(1)])
            .with(|save| save.marks = vec![consumed(&asked, 1)]),
    )
    .await;
    let marks = vec![
        ended(&asked, "completed", Some("42")),
        consumed(&at_once, 1),
        ended(&at_once, "completed", None),
    ];
    team.write(
        team.batch(0, 1, vec![turn_end(1)])
            .with(|save| save.marks = marks),
    )
    .await;
    for (id, answer) in [(&asked.id, Some("42")), (&at_once.id, None)] {
        let input = team.store.input(&team.session, id).await.unwrap().unwrap();
        assert_eq!(
            (
                input.turn,
                input.outcome.as_ref().map(InputOutcome::name),
                input.answer.as_deref()
            ),
            (Some(1), Some("completed"), answer)
        );
    }
    assert!(
        team.store
            .open_inputs(&team.session, team.lead())
            .await
            .unwrap()
            .is_empty()
    );
}

pub async fn a_batch_without_rows_can_be_sent_again(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let input = team.prompt(0);
    team.put(&input).await;
    let batch = team
        .batch(0, 0, vec![])
        .with(|save| save.marks = vec![ended(&input, "busy", None)]);
    for _ in 0..2 {
        assert_eq!(
            team.append(batch.clone()).await,
            BatchOutcome::Written(vec![])
        );
    }
    let other = team
        .batch(0, 0, vec![])
        .with(|save| save.marks = vec![ended(&input, "stopped", None)]);
    assert_eq!(
        team.append(other).await,
        BatchOutcome::InputsGone(vec![input.id.clone()])
    );
    team.store
        .release(&team.session, team.lead(), 1, false)
        .await
        .unwrap();
    assert_eq!(
        team.append(team.batch(0, 0, vec![])).await,
        BatchOutcome::StaleEpoch
    );
}

pub async fn puts_go_with_their_batch(world: &dyn World) {
    let team = Team::start(world, 3).await;
    let task = team.said_by(0, 1, InputKind::Task);
    let to_stopped = team.said_by(0, 2, InputKind::Note);
    team.store
        .release(&team.session, &team.agents[2], 1, true)
        .await
        .unwrap();
    let batch = team
        .batch(0, 0, warnings(2))
        .with(|save| save.puts = vec![task.clone(), to_stopped.clone()]);
    let stale = Batch {
        epoch: 7,
        ..team
            .batch(0, 0, warnings(1))
            .with(|save| save.puts = vec![team.said_by(0, 1, InputKind::Task)])
    };
    assert_eq!(team.append(stale).await, BatchOutcome::StaleEpoch);
    for _ in 0..2 {
        assert_eq!(team.write(batch.clone()).await, [1, 2]);
    }
    let open = team
        .store
        .open_inputs(&team.session, &team.agents[1])
        .await
        .unwrap();
    let seen: Vec<_> = open
        .iter()
        .map(|row| &row.input)
        .map(|i| (&i.id, i.kind, &i.sender, &i.content))
        .collect();
    assert_eq!(
        seen,
        [(&task.id, InputKind::Task, &task.sender, &task.content)]
    );
    assert!(
        team.store
            .input(&team.session, &to_stopped.id)
            .await
            .unwrap()
            .is_none()
    );
    assert!(matches!(
        team.store.put(&team.session, task).await.unwrap(),
        PutResult::Known(_)
    ));
}

pub async fn usage_is_added_once(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let usage = Usage {
        input_tokens: 1,
        output_tokens: 20,
        cache_read_tokens: 300,
        cache_write_tokens: 4000,
        cost_usd: 0.1,
    };
    let batches = [0, 1].map(|agent| {
        team.batch(agent, 0, warnings(2))
            .with(|save| save.usage = usage)
    });
    for _ in 0..2 {
        let done = team
            .store
            .append(&team.session, &team.node, &batches)
            .await
            .unwrap();
        assert_eq!(done.session, usage + usage);
    }
    let third = team
        .batch(1, 4, warnings(1))
        .with(|save| save.usage = usage);
    let done = team
        .store
        .append(&team.session, &team.node, &[third])
        .await
        .unwrap();
    assert_eq!(done.session, usage + usage + usage);
    assert_eq!(
        team.store
            .session(&team.session)
            .await
            .unwrap()
            .unwrap()
            .totals,
        done.session
    );
    assert_eq!(
        (team.record(0).await.totals, team.record(1).await.totals),
        (usage, usage + usage)
    );
}

pub async fn the_state_is_that_of_the_batch(world: &dyn World) {
    let team = Team::start(world, 1).await;
    assert_eq!(team.record(0).await.state, AgentState::Idle);
    let states = [
        AgentState::Streaming,
        AgentState::ExecutingTools,
        AgentState::Compacting,
        AgentState::Idle,
    ];
    for (prev, state) in (0..).zip(states) {
        team.write(
            team.batch(0, prev, warnings(1))
                .with(|save| save.state = state),
        )
        .await;
        assert_eq!(team.record(0).await.state, state);
    }
}

pub async fn bad_data_is_refused_alone(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let nul = entry(
        planck_common::event::EventKind::Warning,
        1,
        "{\"code\":\"a\0b\",\"message\":\"\"}",
    );
    let batches = [team.batch(0, 0, vec![nul]), team.batch(1, 0, warnings(1))];
    let done = team
        .store
        .append(&team.session, &team.node, &batches)
        .await
        .unwrap();
    assert!(
        matches!(done.batches[0], BatchOutcome::Refused(_)),
        "{:?}",
        done.batches
    );
    assert_eq!(done.batches[1], BatchOutcome::Written(vec![1]));
}

pub async fn two_batches_of_one_agent_are_refused(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let twice = [team.batch(0, 0, warnings(1)), team.batch(0, 1, warnings(1))];
    let refused = team.store.append(&team.session, &team.node, &twice).await;
    assert!(matches!(refused, Err(StoreError::BadRequest(_))));
    assert_eq!(team.store.head(&team.session).await.unwrap(), 0);
}

/// Returns the `seq` and `prev` of each row of the log.
pub async fn chain(team: &Team) -> Vec<(Seq, Seq)> {
    let events = super::events::all(team, None).await;
    events
        .iter()
        .map(|event| (event.seq.unwrap(), event.prev.unwrap()))
        .collect()
}
