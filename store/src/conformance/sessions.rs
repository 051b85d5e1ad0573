//! Cases for sessions: creation happens once, names are unique, and sessions can be listed, closed
//! and deleted.

use planck_common::{
    NodeId, SessionName, Timestamp,
    command::{AgentState, ListSessions, SessionActivity, SessionState},
    event::EventKind,
    spec::SessionLimits,
};
use serde_json::json;

use super::{
    World,
    team::{Team, entry, message, new_agent, new_session, tick, turn_start, warning, warnings},
};
use crate::{Created, StoreError};
use planck_agent::Entry;

pub async fn a_session_is_created_once(world: &dyn World) {
    let node = NodeId::mint();
    let (store, other) = (world.open(&node).await, world.open(&NodeId::mint()).await);
    let mut session = new_session(2);
    let prompt = Team {
        store: store.clone(),
        node: node.clone(),
        session: session.id.clone(),
        agents: vec![session.agents[0].id.clone()],
    }
    .prompt(0);
    session.prompt = Some(prompt.clone());
    let Created::New(record, created) = store.create(session.clone(), &node).await.unwrap() else {
        panic!("it was there before")
    };
    assert_eq!(
        (record.state, record.head, record.agents),
        (SessionState::Open, 0, 2)
    );
    assert_eq!(
        (&record.spec, &record.metadata, &record.owner),
        (&session.spec, &session.metadata, &Some(node.clone()))
    );
    assert_eq!(record.created_at, session.at);

    let Created::Known(known) = other
        .create(session.clone(), &NodeId::mint())
        .await
        .unwrap()
    else {
        panic!("created twice")
    };
    assert_eq!(
        (known.id, &known.name, known.owner),
        (record.id.clone(), &record.name, Some(node.clone()))
    );

    let recorded = other.recorded(&record.id).await.unwrap();
    let stored = other.agents(&record.id).await.unwrap();
    assert_eq!(
        format!("{:?}", (&record, &created)),
        format!("{:?}", (recorded.as_ref().unwrap(), &stored)),
        "what `create` returns is what the store holds"
    );
    assert_eq!(recorded.map(|found| found.name), Some(record.name.clone()));
    let unknown = other.recorded(&planck_common::SessionId::mint()).await;
    assert!(unknown.unwrap().is_none());

    let agents = other.agents(&record.id).await.unwrap();
    let leases: Vec<_> = agents
        .iter()
        .map(|a| (&a.id, a.node.clone(), a.epoch, a.last_seq, a.incarnation))
        .collect();
    let expected: Vec<_> = session
        .agents
        .iter()
        .zip([1, 0])
        .map(|(a, i)| (&a.id, Some(node.clone()), 1, 0, i))
        .collect();
    assert_eq!(leases, expected);
    assert_eq!(
        (&agents[0].spec, &agents[0].team),
        (&session.agents[0].spec, &session.spec.team_id)
    );
    let open = other.open_inputs(&record.id, &agents[0].id).await.unwrap();
    assert_eq!(
        open.iter()
            .map(|row| (&row.input.id, row.head))
            .collect::<Vec<_>>(),
        [(&prompt.id, 0)]
    );
    assert_eq!(other.id().await.unwrap(), store.id().await.unwrap());
}

pub async fn names_are_unique_and_made_up(world: &dyn World) {
    let node = NodeId::mint();
    let store = world.open(&node).await;
    let Created::New(made_up, _) = store.create(new_session(1), &node).await.unwrap() else {
        panic!("known")
    };
    assert!(
        made_up
            .name
            .split_once('-')
            .is_some_and(|(adjective, noun)| !adjective.is_empty() && !noun.is_empty())
    );

    let name = SessionName::parse("my-session").unwrap();
    let named = |name: &SessionName| crate::NewSession {
        name: Some(name.clone()),
        ..new_session(1)
    };
    let Created::New(record, _) = store.create(named(&name), &node).await.unwrap() else {
        panic!("known")
    };
    assert_eq!(record.name, name);
    assert!(matches!(
        store.create(named(&name), &node).await,
        Err(StoreError::Exists(_))
    ));

    let other = world.open(&NodeId::mint()).await;
    for key in [name.as_str(), record.id.as_str()] {
        assert_eq!(
            other.session(key).await.unwrap().map(|s| s.id),
            Some(record.id.clone()),
            "{key}"
        );
    }
    assert!(other.session("no-such-session").await.unwrap().is_none());
}

pub async fn names_in_a_team_are_unique(world: &dyn World) {
    let node = NodeId::mint();
    let store = world.open(&node).await;
    let mut session = new_session(1);
    let id = session.id.clone();
    session
        .agents
        .extend(["coder", "coder", "coder"].map(|name| new_agent(&id, name)));
    store.create(session, &node).await.unwrap();
    let names: Vec<_> = store
        .agents(&id)
        .await
        .unwrap()
        .into_iter()
        .map(|agent| agent.spec.name)
        .collect();
    assert_eq!(names, ["agent 0", "coder", "coder-2", "coder-3"]);
}

pub async fn a_team_has_its_limit_from_the_start(world: &dyn World) {
    let node = NodeId::mint();
    let store = world.open(&node).await;
    let mut session = new_session(3);
    session.spec.limits = SessionLimits {
        max_agents: Some(2),
        ..SessionLimits::default()
    };
    assert!(matches!(
        store.create(session.clone(), &node).await,
        Err(StoreError::Limit(_))
    ));
    assert!(store.session(&session.id).await.unwrap().is_none());
}

pub async fn sessions_are_listed_in_pages(world: &dyn World) {
    let node = NodeId::mint();
    let store = world.open(&node).await;
    let mut ids = vec![];
    for _ in 0..5 {
        let Created::New(record, _) = store.create(new_session(1), &node).await.unwrap() else {
            panic!("known")
        };
        ids.insert(0, record.id);
    }
    store
        .set_state(&ids[1], 1, SessionState::Closed)
        .await
        .unwrap();
    for (state, expected) in [
        (None, ids.clone()),
        (Some(SessionState::Open), [&ids[..1], &ids[2..]].concat()),
        (Some(SessionState::Closed), vec![ids[1].clone()]),
    ] {
        let (mut seen, mut after) = (vec![], None);
        loop {
            let page = store
                .sessions(ListSessions {
                    state,
                    limit: Some(2),
                    after,
                })
                .await
                .unwrap();
            assert!(page.sessions.len() <= 2);
            seen.extend(page.sessions.into_iter().map(|row| row.id));
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        assert_eq!(seen, expected, "{state:?}");
    }
    let mut names = vec![];
    for id in &ids[..2] {
        names.push(store.recorded(id).await.unwrap().unwrap().name.to_string());
    }
    assert_eq!(store.session_names(2).await.unwrap(), names);
}

pub async fn a_list_shows_the_activity_of_sessions(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let expect = async |expected: SessionActivity, why: &str| {
        let every = ListSessions {
            state: None,
            limit: None,
            after: None,
        };
        let listed = team.store.sessions(every).await.unwrap().sessions;
        let row = listed.iter().find(|row| row.id == team.session).unwrap();
        assert_eq!(row.activity, expected, "{why}");
    };
    expect(SessionActivity::Idle, "nothing happened yet").await;
    let turn = async |agent: usize, entries: Vec<Entry>, state: AgentState| {
        let prev = team.record(agent).await.last_seq;
        let batch = team
            .batch(agent, prev, entries)
            .with(|save| save.state = state);
        team.write(batch).await;
    };
    let ended = |outcome: &str, message: &str| {
        let body = json!({"outcome": outcome, "message": message, "usage": {}, "inputs": []});
        entry(EventKind::TurnEnd, 1, body.to_string())
    };
    turn(1, vec![turn_start(1)], AgentState::ExecutingTools).await;
    expect(SessionActivity::Working, "a worker runs a tool").await;
    turn(1, vec![ended("limit", "")], AgentState::Idle).await;
    expect(SessionActivity::Idle, "a worker's limit is not the lead's").await;
    let quoted = "a\0 \"outcome\":\"limit\"";
    for (outcome, expected) in [
        ("limit", SessionActivity::Failed),
        ("completed", SessionActivity::Idle),
        ("truncated", SessionActivity::Failed),
        ("aborted", SessionActivity::Idle),
    ] {
        let entries = vec![turn_start(1), ended(outcome, quoted)];
        turn(0, entries, AgentState::Idle).await;
        expect(expected, outcome).await;
    }
    let error = entry(
        EventKind::Error,
        2,
        json!({"reason": "no", "code": "provider", "inputs": []}).to_string(),
    );
    turn(0, vec![turn_start(2), error], AgentState::Idle).await;
    expect(SessionActivity::Failed, "an error").await;
    turn(0, vec![turn_start(3)], AgentState::Streaming).await;
    expect(SessionActivity::Working, "the next turn runs").await;
    turn(0, vec![warning("asked")], AgentState::Waiting).await;
    expect(SessionActivity::Waiting, "an agent waits").await;
    turn(1, vec![turn_start(2)], AgentState::Streaming).await;
    expect(SessionActivity::Working, "another agent works").await;
    turn(1, vec![ended("completed", "")], AgentState::Idle).await;
    turn(0, vec![ended("completed", "")], AgentState::Idle).await;
    team.put(&team.prompt(1)).await;
    expect(SessionActivity::Waiting, "a prompt is not read yet").await;
    team.store
        .release(&team.session, &team.agents[1], 1, true)
        .await
        .unwrap();
    expect(SessionActivity::Idle, "a stopped agent reads no prompt").await;
}

pub async fn closing_needs_the_leads_lease(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let refused = team
        .store
        .set_state(&team.session, 2, SessionState::Closed)
        .await;
    assert!(matches!(refused, Err(StoreError::StaleEpoch(_))));
    team.store
        .set_state(&team.session, 1, SessionState::Closed)
        .await
        .unwrap();
    assert_eq!(
        team.store
            .session(&team.session)
            .await
            .unwrap()
            .unwrap()
            .state,
        SessionState::Closed
    );
    let nowhere = team
        .store
        .set_state(&planck_common::SessionId::mint(), 1, SessionState::Closed)
        .await;
    assert!(matches!(nowhere, Err(StoreError::NotFound(_))));
}

pub async fn a_session_gets_a_title_and_loses_it(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let other = world.open(&NodeId::mint()).await;
    let found = async || other.session(&team.session).await.unwrap().unwrap();
    let before = found().await;
    assert_eq!(before.title(), None);
    for title in [Some("Mend the 'parser'"), Some("ü"), None] {
        let metadata = found().await.with_title(title);
        let set = team.store.set_metadata(&team.session, &metadata).await;
        set.unwrap();
        assert_eq!(found().await.title().as_deref(), title);
        let rows = other.sessions(ListSessions::default()).await.unwrap();
        assert_eq!(rows.sessions[0].title.as_deref(), title);
    }
    assert_eq!(found().await.metadata, before.metadata);
    let nowhere = team
        .store
        .set_metadata(&planck_common::SessionId::mint(), &before.metadata)
        .await;
    assert!(matches!(nowhere, Err(StoreError::NotFound(_))));
}

pub async fn deleting_returns_what_it_removed(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let other = world.open(&NodeId::mint()).await;
    team.log(0, warnings(3)).await;
    team.log(1, vec![message("hello")]).await;
    team.put(&team.prompt(1)).await;
    assert_eq!(other.head(&team.session).await.unwrap(), 4);
    assert!(matches!(
        team.store.delete(&team.session).await,
        Err(StoreError::Busy(_))
    ));

    team.store
        .set_state(&team.session, 1, SessionState::Closed)
        .await
        .unwrap();
    let removed = team.store.delete(&team.session).await.unwrap();
    assert_eq!((removed.agents, removed.events, removed.inputs), (2, 4, 1));
    for store in [&team.store, &other] {
        assert!(store.session(&team.session).await.unwrap().is_none());
        assert!(store.find_agent(&team.agents[0]).await.unwrap().is_none());
        assert!(matches!(
            store.delete(&team.session).await,
            Err(StoreError::NotFound(_))
        ));
        assert!(matches!(
            store.head(&team.session).await,
            Err(StoreError::NotFound(_))
        ));
        assert!(
            store
                .put(&team.session, team.prompt(0))
                .await
                .is_err_and(|e| matches!(e, StoreError::NotFound(_)))
        );
    }
}

pub async fn old_closed_sessions_expire(world: &dyn World) {
    let (open, closed) = (Team::start(world, 1).await, Team::start(world, 1).await);
    for team in [&open, &closed] {
        team.log(0, warnings(1)).await;
    }
    let written = tick();
    closed
        .store
        .set_state(&closed.session, 1, SessionState::Closed)
        .await
        .unwrap();
    assert_eq!(
        open.store.expired(Timestamp::from_millis(0)).await.unwrap(),
        []
    );
    assert_eq!(
        open.store.expired(written).await.unwrap(),
        std::slice::from_ref(&closed.session)
    );
}
