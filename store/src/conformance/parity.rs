//! Cases in which SQLite and Postgres once behaved differently: checks, limits and error messages.

use planck_common::{
    AgentId, NodeId, SessionId,
    command::{AgentState, ListSessions, SessionState},
    event::InputKind,
};

use super::{
    World,
    team::{Team, consumed, message, new_agent, new_session, turn_start, warnings},
};
use crate::{
    AgentCreation, AskOutcome, BatchOutcome, LeadIncarnation, LeaseClaim, NewInput, NewMember,
    NewSession, StoreError, append::MOST_ROWS,
};

fn text<T>(result: Result<T, StoreError>) -> String {
    result
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default()
}

pub async fn errors_have_one_text(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let (store, id) = (&team.store, &team.session);
    let unknown = SessionId::mint();
    let agent = AgentId::mint();
    let name = store.session(id).await.unwrap().unwrap().name;
    let twin = NewSession {
        name: Some(name.clone()),
        ..new_session(1)
    };
    let put = team.said_by(0, 1, InputKind::Question);
    team.put(&put).await;
    let elsewhere = NewInput {
        agent: team.lead().clone(),
        ..put.clone()
    };
    let nul = NewInput {
        content: "\0".into(),
        ..team.prompt(0)
    };
    let nameless = team.said_by(0, 1, InputKind::Question);
    let nameless = NewInput {
        sender: None,
        ..nameless
    };
    let page = ListSessions {
        state: None,
        limit: None,
        after: Some("yesterday".into()),
    };
    let texts = [
        text(store.create(twin, &team.node).await),
        text(store.head(&unknown).await),
        text(store.release(id, &agent, 1, false).await),
        text(store.release(id, team.lead(), 7, false).await),
        text(store.set_state(id, 7, SessionState::Closed).await),
        text(store.delete(id).await),
        text(store.sessions(page).await),
        text(store.rewind(id, 1, 7, "me").await),
        text(store.rewind(id, 7, 7, "me").await),
        text(store.put(id, elsewhere).await),
        text(store.put(id, nul.clone()).await),
        text(store.ask(id, nameless, 1, 16).await),
    ];
    assert_eq!(
        texts,
        [
            format!("there is a session `{name}` already"),
            format!("there is no session {unknown}"),
            format!("there is no agent {agent} in session {id}"),
            format!("another node holds {} now", team.lead()),
            format!("another node holds the orchestrator of session {id} now"),
            format!("session {id} is open; close it first"),
            "`after` is not the `next` of a page: `yesterday`".into(),
            format!("session {id} has no visible message 7"),
            format!("another node holds the orchestrator of session {id} now"),
            format!("the id {} belongs to another input", put.id),
            format!("input {} holds a NUL byte", nul.id),
            "a question needs a sender".into(),
        ]
    );
}

pub async fn only_the_orchestrator_leads(world: &dyn World) {
    let team = Team::start(world, 3).await;
    let member_as_lead = LeadIncarnation {
        lead: team.agents[1].clone(),
        incarnation: 0,
    };
    let node = NodeId::mint();
    for (agent, claim) in [
        (1, LeaseClaim::Lead { after_death: true }),
        (2, LeaseClaim::Member(member_as_lead.clone())),
    ] {
        let agent = &team.agents[agent];
        let claimed = team
            .store
            .claim(&team.session, agent, 1, claim, &node)
            .await;
        assert_eq!(claimed.unwrap(), None);
    }
    let member = NewMember {
        agent: new_agent(&team.session, "late"),
        task: None,
    };
    let created = team
        .store
        .create_agents(&team.session, &[member], &member_as_lead, &node)
        .await
        .unwrap();
    assert!(
        matches!(created[..], [AgentCreation::TeamDead]),
        "{created:?}"
    );
}

pub async fn a_claim_of_an_unknown_agent_finds_none(world: &dyn World) {
    let team = Team::start(world, 1).await;
    for claim in [
        LeaseClaim::Lead { after_death: false },
        LeaseClaim::Member(team.under(1)),
    ] {
        let claimed = team
            .store
            .claim(&team.session, &AgentId::mint(), 1, claim, &team.node)
            .await;
        assert!(
            matches!(claimed, Err(StoreError::NotFound(_))),
            "{claimed:?}"
        );
    }
}

pub async fn a_released_agent_is_idle(world: &dyn World) {
    let team = Team::start(world, 1).await;
    team.log(0, warnings(1)).await;
    assert_eq!(team.record(0).await.state, AgentState::Streaming);
    team.store
        .release(&team.session, team.lead(), 1, false)
        .await
        .unwrap();
    assert_eq!(team.record(0).await.state, AgentState::Idle);
}

pub async fn an_agent_is_found_by_the_type_of_its_new_spec(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let mut spec = team.record(0).await.spec;
    spec.r#type = "reviewer".into();
    let agent = AgentId::mint();
    let unknown = team
        .store
        .replace_spec(&team.session, &agent, 1, &spec)
        .await;
    assert!(
        matches!(unknown, Err(StoreError::NotFound(_))),
        "{unknown:?}"
    );
    team.store
        .replace_spec(&team.session, team.lead(), 1, &spec)
        .await
        .unwrap();
    for (kind, count) in [("reviewer", 1), ("worker", 0)] {
        let found = team.store.agents_matching(&team.session, kind).await;
        assert_eq!(found.unwrap().len(), count, "{kind}");
    }
}

pub async fn withdrawing_again_gives_the_same_answer(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let (question, _) = team.ask(0, 1).await;
    for _ in 0..2 {
        let withdrawn = team.store.withdraw(&team.session, &question.id).await;
        assert!(withdrawn.unwrap());
    }
}

pub async fn a_rewound_response_answers_no_task(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let task = team.said_by(0, 1, InputKind::Task);
    team.put(&task).await;
    let read = team
        .batch(1, 0, vec![turn_start(1)])
        .with(|save| save.marks = vec![consumed(&task, 1)]);
    team.write(read).await;
    let to = team.log(0, vec![message("from here on")]).await;
    let response = NewInput {
        reply_to: Some(task.id.clone()),
        ..team.said_by(1, 0, InputKind::Response)
    };
    team.put(&response).await;
    let responded = async || {
        let tasks = team.store.tasks(&team.session, &team.agents[1]).await;
        tasks
            .unwrap()
            .iter()
            .map(|task| task.responded)
            .collect::<Vec<_>>()
    };
    assert_eq!(responded().await, [true]);
    team.store
        .rewind(&team.session, 1, to[0], "me")
        .await
        .unwrap();
    assert_eq!(responded().await, [false]);
}

pub async fn the_last_page_of_a_list_names_no_next(world: &dyn World) {
    let node = NodeId::mint();
    let store = world.open(&node).await;
    for _ in 0..2 {
        store.create(new_session(1), &node).await.unwrap();
    }
    for (limit, has_next) in [(1, true), (2, false), (3, false)] {
        let page = ListSessions {
            state: None,
            limit: Some(limit),
            after: None,
        };
        let page = store.sessions(page).await.unwrap();
        assert_eq!(page.next.is_some(), has_next, "a page of {limit}");
    }
}

pub async fn asking_again_closes_no_cycle(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let (question, _) = team.ask(0, 1).await;
    let read = team
        .batch(1, 0, vec![turn_start(1)])
        .with(|save| save.marks = vec![consumed(&question, 1)]);
    team.write(read).await;
    let withdrawn = team.store.withdraw(&team.session, &question.id).await;
    assert!(!withdrawn.unwrap(), "it was read");
    team.ask(1, 0).await;
    let again = team
        .store
        .ask(&team.session, question, 1, 16)
        .await
        .unwrap();
    assert!(matches!(again, AskOutcome::Cycle(_)), "{again:?}");
}

pub async fn the_id_of_a_question_belongs_to_its_asker(world: &dyn World) {
    let team = Team::start(world, 3).await;
    let (question, _) = team.ask(0, 1).await;
    let other = NewInput {
        sender: Some(team.sender(2)),
        ..question
    };
    let asked = team.store.ask(&team.session, other, 1, 16).await;
    assert!(matches!(asked, Err(StoreError::BadRequest(_))), "{asked:?}");
}

pub async fn a_batch_of_too_many_rows_is_refused(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let refused = team.append(team.batch(0, 0, warnings(MOST_ROWS + 1))).await;
    assert!(matches!(refused, BatchOutcome::Refused(_)), "{refused:?}");
    let written = team.write(team.batch(0, 0, warnings(MOST_ROWS))).await;
    assert_eq!(written.len(), MOST_ROWS);
}

pub async fn a_member_with_bad_data_is_refused_alone(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let member = |name: &str| NewMember {
        agent: new_agent(&team.session, name),
        task: None,
    };
    let with_task = member("third");
    let task = NewInput {
        agent: with_task.agent.id.clone(),
        content: "\0".into(),
        ..team.said_by(0, 0, InputKind::Task)
    };
    let with_task = NewMember {
        task: Some(task),
        ..with_task
    };
    let members = vec![member("first"), member("a\0b"), with_task, member("fourth")];
    let created = team.create_agents(members, 1).await;
    assert!(
        matches!(
            &created[..],
            [
                AgentCreation::Created { .. },
                AgentCreation::Refused(name),
                AgentCreation::Refused(content),
                AgentCreation::Created { .. }
            ] if name.contains("NUL") && content.contains("NUL")
        ),
        "{created:?}"
    );
}
