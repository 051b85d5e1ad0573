//! Cases for the members of a session: how they are created, found, stopped and changed.

use std::slice;

use planck_common::{
    command::{AgentState, SessionState},
    event::{EventKind, InputKind},
    spec::SessionLimits,
};
use serde_json::json;

use super::{
    World,
    team::{Team, entry, message, new_agent},
};
use crate::{
    AgentCreation, HeldLease, InputOutcome, NAMESAKES, NewInput, NewMember, PutResult, StoreError,
    StoredInput,
};

pub async fn creating_an_agent_is_idempotent_and_bounded(world: &dyn World) {
    let limits = SessionLimits {
        max_agents: Some(2),
        ..SessionLimits::default()
    };
    let team = Team::start_with(world, 1, limits).await;
    let agent = new_agent(&team.session, "member");
    assert!(matches!(
        team.create_agent(agent.clone(), 2).await,
        AgentCreation::TeamDead
    ));

    let AgentCreation::Created { lease, name } = team.create_agent(agent.clone(), 1).await else {
        panic!("not created")
    };
    assert_eq!(
        (lease, name.as_str()),
        (
            HeldLease {
                epoch: 1,
                last_seq: 0,
                incarnation: 0
            },
            "member"
        )
    );
    let AgentCreation::Known(known) = team.create_agent(agent.clone(), 1).await else {
        panic!("created twice")
    };
    assert_eq!(
        (&known.id, &known.spec, known.node),
        (&agent.id, &agent.spec, Some(team.node.clone()))
    );
    assert_eq!(
        team.store
            .find_agent(&agent.id)
            .await
            .unwrap()
            .map(|a| a.session),
        Some(team.session.clone())
    );

    let refused = team
        .create_agent(new_agent(&team.session, "too many"), 1)
        .await;
    assert!(
        matches!(refused, AgentCreation::Full { max: 2 }),
        "{refused:?}"
    );
    assert_eq!(
        team.store
            .session(&team.session)
            .await
            .unwrap()
            .unwrap()
            .agents,
        2
    );
}

/// Creating agents in a batch gives each the outcome that creating it alone would give, in the
/// order of the batch.
pub async fn agents_of_a_batch_are_created_together(world: &dyn World) {
    let limits = SessionLimits {
        max_agents: Some(5),
        ..SessionLimits::default()
    };
    let team = Team::start_with(world, 1, limits).await;
    let agent = |name: &str| NewMember {
        agent: new_agent(&team.session, name),
        task: None,
    };
    let with_task = |name: &str| {
        let member = agent(name);
        let task = NewInput {
            agent: member.agent.id.clone(),
            ..team.said_by(0, 0, InputKind::Task)
        };
        NewMember {
            task: Some(task),
            ..member
        }
    };
    let known = with_task("known");
    assert!(matches!(
        team.create_agents(vec![known.clone()], 1).await[..],
        [AgentCreation::Created { .. }]
    ));

    let group = vec![
        agent("w"),
        known,
        with_task("w"),
        agent("agent 0"),
        agent("one too many"),
    ];
    let outcomes = team.create_agents(group.clone(), 1).await;
    let names = outcomes.iter().map(|outcome| match outcome {
        AgentCreation::Created {
            lease:
                HeldLease {
                    epoch: 1,
                    last_seq: 0,
                    ..
                },
            name,
        } => name.clone(),
        AgentCreation::Known(record) => format!("{} again", record.spec.name),
        AgentCreation::Full { max } => format!("over {max}"),
        other @ (AgentCreation::Created { .. }
        | AgentCreation::TeamDead
        | AgentCreation::Refused(_)) => panic!("{other:?}"),
    });
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["w", "known again", "w-2", "agent 0-2", "over 5"]
    );
    assert_eq!(
        team.store
            .session(&team.session)
            .await
            .unwrap()
            .unwrap()
            .agents,
        5
    );
    for (number, NewMember { agent, task }) in group.iter().enumerate() {
        let inbox = team
            .store
            .open_inputs(&team.session, &agent.id)
            .await
            .unwrap();
        let ids: Vec<_> = inbox.iter().map(|row| &row.input.id).collect();
        assert_eq!(
            ids,
            task.iter().map(|task| &task.id).collect::<Vec<_>>(),
            "of number {number}, once"
        );
        assert_eq!(
            team.store.find_agent(&agent.id).await.unwrap().is_some(),
            number < 4
        );
        for (StoredInput { input, .. }, task) in inbox.iter().zip(task) {
            assert_eq!(
                (&input.sender, &input.content, input.kind),
                (&task.sender, &task.content, InputKind::Task)
            );
        }
    }
    assert!(matches!(
        team.create_agents(vec![agent("late"), agent("later")], 2)
            .await[..],
        [AgentCreation::TeamDead, AgentCreation::TeamDead]
    ));
}

pub async fn agents_are_found_by_id_name_or_type(world: &dyn World) {
    let team = Team::start(world, 4).await;
    let of_type = async |r#type: &str, name: &str| {
        let mut agent = new_agent(&team.session, name);
        agent.spec.r#type = r#type.into();
        let id = agent.id.clone();
        assert!(matches!(
            team.create_agent(agent, 1).await,
            AgentCreation::Created { .. }
        ));
        id
    };
    let tester = of_type("tester", "kim").await;
    let matching = async |text: &str| {
        let meant = team
            .store
            .agents_matching(&team.session, text)
            .await
            .unwrap();
        meant.into_iter().map(|agent| agent.id).collect::<Vec<_>>()
    };
    assert_eq!(matching("kim").await, slice::from_ref(&tester));
    assert_eq!(matching(tester.as_str()).await, slice::from_ref(&tester));
    assert_eq!(matching("tester").await, slice::from_ref(&tester));
    assert_eq!(matching("worker").await, team.agents);
    assert_eq!(matching("nobody").await, []);
    let other = Team::start(world, 1).await;
    assert_eq!(
        other
            .store
            .agents_matching(&other.session, tester.as_str())
            .await
            .unwrap()
            .len(),
        0,
        "of another session"
    );

    let twin = of_type("tester", "sam").await;
    team.store
        .release(&team.session, &tester, 1, true)
        .await
        .unwrap();
    assert_eq!(
        matching("kim").await,
        slice::from_ref(&tester),
        "stopped ones too"
    );
    assert_eq!(
        matching("tester").await,
        [twin.clone(), tester.clone()],
        "last"
    );
    let namesake = of_type("coder", "tester").await;
    assert_eq!(
        matching("tester").await,
        [namesake],
        "a name goes before a type"
    );
    for number in 0..NAMESAKES {
        of_type("kim", &format!("kim {number}")).await;
    }
    assert_eq!(
        matching("kim").await.len(),
        1 + NAMESAKES as usize,
        "one of that name who is stopped, and those of that type"
    );
    of_type("kim", "one more").await;
    assert_eq!(matching("kim").await.len(), 1 + NAMESAKES as usize);
}

pub async fn names_of_created_agents_are_unique(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let mut names = vec![];
    for name in [
        "coder",
        "coder",
        "coder-2",
        "coder",
        &"x".repeat(64),
        &"x".repeat(64),
    ] {
        let agent = new_agent(&team.session, name);
        let AgentCreation::Created { name, .. } = team.create_agent(agent.clone(), 1).await else {
            panic!("not created")
        };
        assert_eq!(
            team.store
                .find_agent(&agent.id)
                .await
                .unwrap()
                .unwrap()
                .spec
                .name,
            name
        );
        names.push(name);
    }
    let long = "x".repeat(64);
    let shortened = format!("{}-2", "x".repeat(62));
    assert_eq!(
        names,
        [
            "coder",
            "coder-2",
            "coder-2-2",
            "coder-3",
            &long,
            &shortened
        ]
    );
}

pub async fn a_closed_session_gets_no_agents(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let create = || team.create_agent(new_agent(&team.session, "late"), 1);
    team.store
        .set_state(&team.session, 1, SessionState::Closed)
        .await
        .unwrap();
    assert!(matches!(create().await, AgentCreation::TeamDead));
    team.store
        .set_state(&team.session, 1, SessionState::Open)
        .await
        .unwrap();
    assert!(matches!(create().await, AgentCreation::Created { .. }));
}

pub async fn an_exit_is_found_until_it_is_reported(world: &dyn World) {
    let team = Team::start(world, 5).await;
    let stop = async |agent: usize, said: Option<&str>| {
        if let Some(reason) = said {
            team.log(
                agent,
                vec![entry(
                    EventKind::AgentStopped,
                    0,
                    json!({ "reason": reason }).to_string(),
                )],
            )
            .await;
        }
        team.store
            .release(&team.session, &team.agents[agent], 1, true)
            .await
            .unwrap();
    };
    let unreported = async || {
        let exits = team.store.unreported_exits(&team.session).await.unwrap();
        exits
            .into_iter()
            .map(|exit| (exit.id, exit.name, exit.reason))
            .collect::<Vec<_>>()
    };
    let exit = |agent: usize, reason: &str| {
        (
            team.agents[agent].clone(),
            format!("agent {agent}"),
            reason.to_owned(),
        )
    };
    let about =
        |kind, agent: usize| entry(kind, 0, json!({ "id": team.agents[agent] }).to_string());
    assert_eq!(unreported().await, []);
    stop(1, Some("enough")).await;
    stop(2, None).await;
    assert_eq!(unreported().await, [exit(1, "enough"), exit(2, "stopped")]);
    team.log(0, vec![about(EventKind::WorkerExit, 1)]).await;
    assert_eq!(unreported().await, [exit(2, "stopped")]);

    let to = team
        .log(
            0,
            vec![message("rewound"), about(EventKind::WorkerSpawned, 3)],
        )
        .await[0];
    let rewound = team.store.rewind(&team.session, 1, to, "me").await.unwrap();
    team.store
        .release(&team.session, &rewound.stopped[0], 2, true)
        .await
        .unwrap();
    assert_eq!(
        unreported().await,
        [exit(2, "stopped")],
        "an agent whose creation was rewound has no exit"
    );
}

pub async fn a_stopped_agent_takes_no_input(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let unread = team.said_by(0, 1, InputKind::Task);
    team.put(&unread).await;
    team.store
        .release(&team.session, &team.agents[1], 1, true)
        .await
        .unwrap();
    let record = team.record(1).await;
    assert_eq!((record.node, record.state), (None, AgentState::Stopped));
    let input = team
        .store
        .input(&team.session, &unread.id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        input.outcome.as_ref().map(InputOutcome::name),
        Some("stopped")
    );
    assert!(matches!(
        team.store.put(&team.session, team.prompt(1)).await.unwrap(),
        PutResult::NotFound
    ));
    assert!(matches!(
        team.store.put(&team.session, unread).await.unwrap(),
        PutResult::Known(_)
    ));
}

pub async fn a_spec_is_replaced_under_its_lease(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let mut spec = team.record(0).await.spec;
    spec.tools.push("write".into());
    let replace_spec = |epoch| {
        team.store
            .replace_spec(&team.session, team.lead(), epoch, &spec)
    };
    assert!(matches!(
        replace_spec(2).await,
        Err(StoreError::StaleEpoch(_))
    ));
    replace_spec(1).await.unwrap();
    assert_eq!(team.record(0).await.spec, spec);
}
