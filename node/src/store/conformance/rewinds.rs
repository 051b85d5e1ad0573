//! Rewinding: what came later is hidden, not lost, and nobody goes on with it.

use planck_common::{
    Seq,
    event::{EventKind, InputKind},
};
use serde_json::json;

use super::{
    World, events,
    team::{Team, consumed, ended, entry, message, turn_end, turn_start, warnings},
};
use crate::store::{Batch, BatchOutcome, StoreError};

pub async fn a_rewind_hides_and_fences(world: &dyn World) {
    let team = Team::start(world, 2).await;
    team.log(0, vec![turn_start(1), message("2"), turn_end(1), turn_start(2), message("5")]).await;
    team.log(1, vec![message("6")]).await;
    assert!(matches!(team.store.rewind(&team.session, 2, 5, "me").await, Err(StoreError::StaleEpoch(_))));
    let rewound = team.store.rewind(&team.session, 1, 5, "me").await.unwrap();
    assert_eq!((rewound.head, rewound.unborn), (7, vec![]));
    let epochs: Vec<_> = team.agents.iter().map(|agent| (agent.clone(), 2)).collect();
    assert_eq!(rewound.agents, epochs);
    assert_eq!(team.append(team.batch(1, 6, warnings(1))).await, BatchOutcome::StaleEpoch);

    let log = events::all(&team, None).await;
    let hidden: Vec<(Seq, Option<Seq>)> = log.iter().map(|event| (event.seq.unwrap(), event.hidden_by)).collect();
    assert_eq!(hidden, [(1, None), (2, None), (3, None), (4, None), (5, Some(7)), (6, Some(7)), (7, None)]);
    let last = log.last().unwrap();
    assert_eq!((last.kind.as_str(), last.epoch, last.prev, last.turn), ("rewound", 2, Some(5), 1));
    assert_eq!((&last.agent_id, &last.node_id, last.data.get()), (team.lead(), &team.node, r#"{"to":5,"by":"me"}"#));

    let messages = team.store.messages(&team.session, None, None, None).await.unwrap();
    assert_eq!(messages.messages.len(), 1);
    assert!(team.store.load(&team.session, &team.agents[1]).await.unwrap().is_empty());
    let loaded: Vec<_> = team.store.load(&team.session, team.lead()).await.unwrap().iter().map(|row| row.seq).collect();
    assert_eq!(loaded, [1, 2, 3, 4, 7]);
    assert_eq!(team.write(Batch { epoch: 2, ..team.batch(0, 7, warnings(1)) }).await, [8]);
    assert_eq!(team.write(Batch { epoch: 2, ..team.batch(1, 6, warnings(1)) }).await, [9]);
}

pub async fn a_rewind_ends_inputs_of_what_it_hides(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let (before, open, done) = (team.prompt(0), team.prompt(0), team.said_by(0, 1, InputKind::Task));
    let (unread_prompt, unread_task) = (team.prompt(1), team.said_by(0, 1, InputKind::Task));
    for input in [&before, &open, &done, &unread_prompt, &unread_task] {
        team.put(input).await;
    }
    let (_, _) = team.ask(0, 1).await;
    let turn = |agent, prev, number, input| Batch {
        marks: vec![consumed(input, number)],
        ..team.batch(agent, prev, vec![message("early"), turn_start(number), message("late")])
    };
    team.write(turn(0, 0, 1, &before)).await;
    team.write(Batch { marks: vec![ended(&before, "completed", None)], ..team.batch(0, 3, vec![turn_end(1)]) }).await;
    let to = team.write(turn(0, 4, 2, &open)).await[0];
    team.write(turn(1, 0, 1, &done)).await;
    team.write(Batch { marks: vec![ended(&done, "completed", None)], ..team.batch(1, 10, vec![turn_end(1)]) }).await;
    team.store.rewind(&team.session, 1, to, "me").await.unwrap();
    for (input, outcome) in [
        (&before, Some("completed")),
        (&open, Some("rewound")),
        (&done, Some("rewound")),
        (&unread_prompt, None),
        (&unread_task, Some("rewound")),
    ] {
        let row = team.store.input(&team.session, &input.id).await.unwrap().unwrap();
        assert_eq!((row.outcome.as_deref(), row.waiting), (outcome, false));
    }
    assert!(team.store.tasks(&team.session, &team.agents[1]).await.unwrap().is_empty());
}

pub async fn a_rewind_names_the_unborn(world: &dyn World) {
    let team = Team::start(world, 3).await;
    let born = |agent: usize| {
        let body = json!({"id": team.agents[agent], "name": "x", "type": "worker", "node_id": team.node});
        entry(EventKind::WorkerSpawned, 1, body.to_string())
    };
    team.log(0, vec![born(1), message("2"), born(2)]).await;
    let rewound = team.store.rewind(&team.session, 1, 2, "me").await.unwrap();
    assert_eq!(rewound.unborn, [team.agents[2].clone()]);
}

pub async fn a_rewind_needs_a_visible_message(world: &dyn World) {
    let team = Team::start(world, 1).await;
    team.log(0, vec![turn_start(1), message("2"), message("3")]).await;
    for (to, why) in [(1, "no message"), (9, "beyond the end"), (0, "before the first")] {
        assert!(matches!(team.store.rewind(&team.session, 1, to, "me").await, Err(StoreError::BadRequest(_))), "{why}");
    }
    team.store.rewind(&team.session, 1, 3, "me").await.unwrap();
    assert!(matches!(team.store.rewind(&team.session, 2, 3, "me").await, Err(StoreError::BadRequest(_))));
    assert_eq!(team.store.rewind(&team.session, 2, 2, "me").await.unwrap().head, 5);
}

pub async fn a_rewind_sent_again_is_the_same(world: &dyn World) {
    let team = Team::start(world, 2).await;
    team.log(0, vec![message("1"), message("2")]).await;
    let first = team.store.rewind(&team.session, 1, 2, "me").await.unwrap();
    let again = team.store.rewind(&team.session, 1, 2, "me").await.unwrap();
    assert_eq!((first.head, first.agents, first.unborn), (again.head, again.agents, again.unborn));
    assert_eq!(team.store.head(&team.session).await.unwrap(), 3);
    assert!(matches!(team.store.rewind(&team.session, 1, 1, "me").await, Err(StoreError::StaleEpoch(_))));
}
