//! Cases for inboxes: any node can put an input, and putting it twice stores it once. Only the
//! holder of the agent's lease can consume it.

use std::collections::BTreeSet;

use planck_common::{InputId, NodeId, command::InputMode, event::InputKind, spec::OutputSpec};
use tokio::task::JoinSet;

use super::{
    World,
    team::{Team, consumed, new_session, tick, turn_start, warnings},
};
use crate::{InputOutcome, NewInput, PutResult, StoreError, Stray, TaskRecord};

pub async fn a_put_is_idempotent(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let other = world.open(&NodeId::mint()).await;
    team.log(0, warnings(3)).await;
    let input = team.prompt(0);
    let PutResult::Put { head, node, epoch } =
        other.put(&team.session, input.clone()).await.unwrap()
    else {
        panic!("not put")
    };
    assert_eq!((head, node, epoch), (3, Some(team.node.clone()), 1));
    team.log(0, warnings(1)).await;
    let PutResult::Known(known) = team.store.put(&team.session, input.clone()).await.unwrap()
    else {
        panic!("put twice")
    };
    assert_eq!((&known.input, known.head, known.outcome), (&input, 3, None));

    let elsewhere = NewInput {
        agent: team.agents[1].clone(),
        ..input
    };
    assert!(matches!(
        team.store.put(&team.session, elsewhere).await,
        Err(StoreError::BadRequest(_))
    ));
    let nobody = NewInput {
        agent: planck_common::AgentId::mint(),
        ..team.prompt(0)
    };
    assert!(matches!(
        team.store.put(&team.session, nobody).await.unwrap(),
        PutResult::NotFound
    ));
    let nowhere = team
        .store
        .put(&planck_common::SessionId::mint(), team.prompt(0))
        .await;
    assert!(
        matches!(nowhere, Err(StoreError::NotFound(_))),
        "{nowhere:?}"
    );
}

/// The author of the first put stays, also if the prompt is put again under another name.
pub async fn a_prompt_keeps_its_author(world: &dyn World) {
    let mut session = new_session(1);
    let lead = session.spec.lead.clone();
    let written = |id: &str, by: Option<&str>| NewInput {
        id: InputId::parse(id).unwrap(),
        agent: lead.clone(),
        kind: InputKind::Prompt,
        mode: InputMode::Queue,
        sender: None,
        by: by.map(str::to_owned),
        reply_to: None,
        content: "[]".into(),
        fresh: false,
        output: None,
        at: tick(),
    };
    let (first, second, third) = (
        written("first", Some("ann")),
        written("second", Some("bob")),
        written("third", None),
    );
    session.prompt = Some(first.clone());
    let (id, node) = (session.id.clone(), NodeId::mint());
    let store = world.open(&node).await;
    store.create(session, &node).await.unwrap();
    for input in [&second, &third] {
        store.put(&id, input.clone()).await.unwrap();
    }
    let renamed = NewInput {
        by: Some("cid".into()),
        ..second.clone()
    };
    let again = store.put(&id, renamed).await.unwrap();
    assert!(matches!(again, PutResult::Known(known) if known.input == second));
    let stored = store.open_inputs(&id, &lead).await.unwrap();
    let stored: Vec<NewInput> = stored.into_iter().map(|row| row.input).collect();
    assert_eq!(stored, [first, second, third]);
}

pub async fn an_inbox_is_bounded_by_bytes(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let content = format!(
        "[{{\"type\":\"text\",\"text\":\"{}\"}}]",
        "x".repeat(8_000_000)
    );
    let large = || NewInput {
        content: content.clone(),
        ..team.prompt(0)
    };
    let mut put = Vec::new();
    for _ in 0..8 {
        put.push(large());
        team.put(put.last().unwrap()).await;
    }
    let refused = team.store.put(&team.session, large()).await;
    assert!(
        matches!(&refused, Err(StoreError::Limit(why)) if why.contains("64 MiB")),
        "{refused:?}"
    );
    let again = team.store.put(&team.session, put[0].clone()).await.unwrap();
    assert!(
        matches!(again, PutResult::Known(_)),
        "what was accepted stays accepted"
    );
    team.put(&team.prompt(0)).await;
    team.put(&team.prompt(1)).await;
    team.write(
        team.batch(0, 0, vec![turn_start(1)])
            .with(|save| save.marks = vec![consumed(&put[0], 1)]),
    )
    .await;
    team.put(&large()).await;
}

/// Puts twelve inputs at once through the stores of two nodes. As many as fit are accepted, and the
/// others are refused with the limit as the reason.
pub async fn inputs_put_at_once_fit_the_bounds_together(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let stores = [team.store.clone(), world.open(&NodeId::mint()).await];
    let content = format!(
        "[{{\"type\":\"text\",\"text\":\"{}\"}}]",
        "x".repeat(7_900_000)
    );
    let mut puts = JoinSet::new();
    for (_, store) in (0..12).zip(stores.iter().cycle().cloned()) {
        let (session, input) = (
            team.session.clone(),
            NewInput {
                content: content.clone(),
                ..team.prompt(0)
            },
        );
        puts.spawn(async move {
            loop {
                match store.put(&session, input.clone()).await {
                    // A slow disk causes this error, so the loop puts the same input again.
                    Err(StoreError::Away(_)) => {}
                    put => return put,
                }
            }
        });
    }
    let (mut taken, mut refused) = (0, 0);
    for put in puts.join_all().await {
        match put {
            Ok(PutResult::Put { .. } | PutResult::Known(_)) => taken += 1,
            Err(StoreError::Limit(why)) if why.contains("64 MiB may wait") => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((taken, refused), (8, 4));
    assert_eq!(
        team.store
            .open_inputs(&team.session, team.lead())
            .await
            .unwrap()
            .len(),
        8
    );
    team.put(&team.prompt(1)).await;
}

pub async fn inputs_keep_their_fields_and_order(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let task = team.said_by(1, 0, InputKind::Task);
    let full = NewInput {
        mode: InputMode::Steer,
        reply_to: Some(task.id.clone()),
        fresh: true,
        output: Some(OutputSpec {
            schema: serde_json::json!({ "type": "object" }),
            name: Some("facts".into()),
        }),
        ..team.said_by(1, 0, InputKind::Note)
    };
    let inputs = [task, full, team.prompt(0), team.prompt(0)];
    for input in &inputs {
        team.put(input).await;
    }
    team.write(
        team.batch(0, 0, vec![turn_start(4)])
            .with(|save| save.marks = vec![consumed(&inputs[2], 4)]),
    )
    .await;
    let open = team
        .store
        .open_inputs(&team.session, team.lead())
        .await
        .unwrap();
    assert_eq!(open.len(), inputs.len());
    for (put, read) in inputs.iter().zip(&open) {
        assert_eq!((put, false), (&read.input, read.waiting));
    }
    assert_eq!(
        open.iter().map(|input| input.turn).collect::<Vec<_>>(),
        [None, None, Some(4), None]
    );
}

pub async fn an_input_may_wait_for_an_agent_without_holder(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let alive = [team.node.clone()];
    team.store
        .release(&team.session, team.lead(), 1, false)
        .await
        .unwrap();
    assert_eq!(team.store.sweep(&alive).await.unwrap(), []);
    let PutResult::Put {
        node: None,
        epoch: 2,
        ..
    } = team.store.put(&team.session, team.prompt(0)).await.unwrap()
    else {
        panic!("a node holds it")
    };
    team.put(&team.prompt(1)).await;
    let stray = Stray {
        session: team.session.clone(),
        agent: team.lead().clone(),
        node: None,
        epoch: 2,
    };
    let held = Stray {
        session: team.session.clone(),
        agent: team.prompt(1).agent,
        node: Some(team.node.clone()),
        epoch: 1,
    };
    for store in [&team.store, &world.open(&NodeId::mint()).await] {
        let found = store.sweep(&alive).await.unwrap();
        assert!(
            found.len() == 2 && found.contains(&stray) && found.contains(&held),
            "word of either may be lost: {found:?}"
        );
    }
}

/// Nothing but the unread inputs makes a sweep read the session.
pub async fn a_sweep_finds_what_the_holder_put_itself(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let alive = [team.node.clone()];
    let swept = async || {
        let found = team.store.sweep(&alive).await.unwrap();
        BTreeSet::from_iter(found.into_iter().map(|stray| stray.agent))
    };
    assert_eq!(swept().await, BTreeSet::new());
    let (question, prompt) = (team.said_by(1, 0, InputKind::Question), team.prompt(1));
    let asked = team.store.ask(&team.session, question.clone(), 1, 16);
    asked.await.unwrap();
    team.put(&prompt).await;
    for _ in 0..2 {
        assert_eq!(swept().await, BTreeSet::from_iter(team.agents.clone()));
    }
    for (agent, input) in [(0, &question), (1, &prompt)] {
        team.write(
            team.batch(agent, 0, vec![turn_start(1)])
                .with(|save| save.marks = vec![consumed(input, 1)]),
        )
        .await;
    }
    assert_eq!(swept().await, BTreeSet::new());
}

/// The holder of an agent puts an input and leaves. Each node that sweeps afterwards finds the
/// input, because none of them may be the one that takes the agent up.
pub async fn an_unread_input_is_found_until_it_is_read(world: &dyn World) {
    let team = Team::start(world, 1).await;
    team.put(&team.prompt(0)).await;
    let released = team.store.release(&team.session, team.lead(), 1, false);
    released.await.unwrap();
    for _ in 0..3 {
        let other = NodeId::mint();
        let found = world.open(&other).await.sweep(&[other]).await.unwrap();
        let agents: Vec<_> = found.iter().map(|stray| &stray.agent).collect();
        assert_eq!(agents, [team.lead()]);
    }
}

pub async fn tasks_are_known_until_answered(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let (first, second) = (
        team.said_by(0, 1, InputKind::Task),
        team.said_by(0, 1, InputKind::Task),
    );
    for input in [
        &first,
        &second,
        &team.said_by(0, 1, InputKind::Question),
        &team.said_by(1, 0, InputKind::Task),
    ] {
        team.put(input).await;
    }
    team.write(
        team.batch(1, 0, vec![turn_start(1)])
            .with(|save| save.marks = vec![consumed(&first, 1)]),
    )
    .await;
    let task = |input: &NewInput, consumed, responded| TaskRecord {
        id: input.id.clone(),
        from: input.sender.clone(),
        consumed,
        responded,
    };
    let tasks = || team.store.tasks(&team.session, &team.agents[1]);
    assert_eq!(
        tasks().await.unwrap(),
        [task(&first, true, false), task(&second, false, false)]
    );
    let response = NewInput {
        reply_to: Some(first.id.clone()),
        ..team.said_by(1, 0, InputKind::Response)
    };
    team.put(&response).await;
    let note = NewInput {
        reply_to: Some(second.id.clone()),
        ..team.said_by(1, 0, InputKind::Note)
    };
    team.put(&note).await;
    assert_eq!(
        tasks().await.unwrap(),
        [task(&first, true, true), task(&second, false, false)]
    );
}

pub async fn an_unread_question_is_withdrawn(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let (unread, read) = (
        team.said_by(1, 0, InputKind::Question),
        team.said_by(1, 0, InputKind::Question),
    );
    for question in [&unread, &read] {
        team.store
            .ask(&team.session, question.clone(), 1, 16)
            .await
            .unwrap();
    }
    team.write(
        team.batch(0, 0, vec![turn_start(1)])
            .with(|save| save.marks = vec![consumed(&read, 1)]),
    )
    .await;
    for (question, left, outcome) in [(&unread, true, Some("withdrawn")), (&read, false, None)] {
        assert_eq!(
            team.store
                .withdraw(&team.session, &question.id)
                .await
                .unwrap(),
            left
        );
        let row = team
            .store
            .input(&team.session, &question.id)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            (row.waiting, row.outcome.as_ref().map(InputOutcome::name)),
            (false, outcome)
        );
    }
    let open = team
        .store
        .open_inputs(&team.session, team.lead())
        .await
        .unwrap();
    assert_eq!(
        open.into_iter().map(|row| row.input.id).collect::<Vec<_>>(),
        [read.id]
    );
}
