//! Cases for lists of waits over sessions, for sweeps, and for the end of a session.

use planck_common::{
    CallId, NodeId,
    command::{AgentState, ListWaits, SessionState},
    wait::{WaitDecision, WaitKind, WaitOpened, WaitState},
};
use serde_json::value::RawValue;

use super::{
    World,
    team::Team,
    waits::{approval, closed, of_state, opened, says, wait},
};
use crate::{Batch, LeaseClaim, StoreError};

fn ids(waits: &[WaitOpened]) -> Vec<CallId> {
    waits.iter().map(|wait| wait.id.clone()).collect()
}

pub async fn waits_of_all_sessions_come_in_pages(world: &dyn World) {
    let teams = [
        Team::start(world, 1).await,
        Team::start(world, 1).await,
        Team::start(world, 1).await,
    ];
    let mut waits = vec![];
    for n in 0..12 {
        let kind = if n % 4 == 0 {
            WaitKind::Question
        } else {
            WaitKind::Approval
        };
        let wait = wait(kind);
        teams[n % 3].open_wait(0, &wait).await;
        waits.push(wait);
    }
    let team = &teams[0];
    let page = |limit, filter: ListWaits| ListWaits {
        limit: Some(limit),
        ..filter
    };
    for limit in [1, 5, 12, 500] {
        let listed = team.list(page(limit, ListWaits::default())).await;
        assert_eq!(listed, ids(&waits), "in pages of {limit}");
        let newest = ListWaits {
            newest: true,
            ..ListWaits::default()
        };
        let mut listed = team.list(page(limit, newest)).await;
        listed.reverse();
        assert_eq!(listed, ids(&waits), "the newest first, in pages of {limit}");
    }
    let questions = ListWaits {
        kind: Some(WaitKind::Question),
        ..ListWaits::default()
    };
    let newest = ListWaits {
        newest: true,
        ..page(2, ListWaits::default())
    };
    let of_session = team.store.waits(Some(&teams[2].session), &newest).await;
    let of_session = of_session.unwrap();
    let listed: Vec<CallId> = of_session
        .waits
        .iter()
        .map(|wait| wait.id.clone())
        .collect();
    assert_eq!(listed, [&waits[11], &waits[8]].map(|wait| wait.id.clone()));
    let rest = ListWaits {
        after: of_session.next,
        ..newest
    };
    let rest = team
        .store
        .waits(Some(&teams[2].session), &rest)
        .await
        .unwrap();
    let listed: Vec<CallId> = rest.waits.into_iter().map(|wait| wait.id).collect();
    assert_eq!(listed, [&waits[5], &waits[2]].map(|wait| wait.id.clone()));
    let expected = [&waits[0], &waits[4], &waits[8]].map(|wait| wait.id.clone());
    assert_eq!(team.list(page(2, questions)).await, expected);

    for wait in &waits {
        let begin = wait.id.as_str()[..18].to_owned();
        let named = ListWaits {
            id: Some(begin.clone()),
            ..ListWaits::default()
        };
        let listed = team.list(named.clone()).await;
        assert!(listed.contains(&wait.id), "{listed:?}");
        assert!(listed.iter().all(|id| id.starts_with(&begin)), "{listed:?}");
        let of_session = ListWaits {
            session: Some("one".into()),
            ..named
        };
        let listed = team.store.waits(Some(&team.session), &of_session).await;
        let listed = listed.unwrap().waits;
        assert!(listed.iter().all(|wait| wait.id.starts_with(&begin)));
    }

    for (n, wait) in waits.iter().enumerate().take(3) {
        teams[n % 3].allow(0, wait).await;
    }
    assert_eq!(
        team.list(page(2, of_state(WaitState::Answered))).await,
        ids(&waits[..3])
    );
    teams[1]
        .log(0, vec![closed(&waits[1], WaitDecision::Allow)])
        .await;
    assert_eq!(
        team.list(of_state(WaitState::Closed)).await,
        ids(&waits[1..2])
    );
    assert_eq!(
        team.list(page(4, ListWaits::default())).await,
        ids(&waits[3..])
    );

    let first = page(2, ListWaits::default());
    let first = team
        .store
        .waits(Some(&teams[2].session), &first)
        .await
        .unwrap();
    let next = ListWaits {
        after: first.next.clone(),
        ..ListWaits::default()
    };
    let rest = team
        .store
        .waits(Some(&teams[2].session), &next)
        .await
        .unwrap();
    let listed: Vec<CallId> = first
        .waits
        .into_iter()
        .chain(rest.waits)
        .map(|wait| wait.id)
        .collect();
    assert_eq!(
        listed,
        [&waits[5], &waits[8], &waits[11]].map(|wait| wait.id.clone())
    );
    assert_eq!(rest.next, None);
    let unknown = planck_common::SessionId::mint();
    let unknown = team
        .store
        .waits(Some(&unknown), &ListWaits::default())
        .await;
    assert!(unknown.unwrap().waits.is_empty());
    let malformed = ListWaits {
        after: Some("yesterday".into()),
        ..ListWaits::default()
    };
    let malformed = team.store.waits(None, &malformed).await.unwrap_err();
    assert_eq!(
        malformed.to_string(),
        "`after` is not the `next` of a page: `yesterday`"
    );
    assert!(matches!(malformed, StoreError::BadRequest(_)));
}

pub async fn a_page_of_waits_is_bounded_in_bytes(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let long = |bytes: usize| WaitOpened {
        request: RawValue::from_string(format!("\"{}\"", "x".repeat(bytes))).unwrap(),
        ..approval()
    };
    let waits = [
        long(600 * 1024),
        long(200 * 1024),
        long(200 * 1024),
        long(200 * 1024),
    ];
    for wait in &waits {
        team.open_wait(0, wait).await;
    }
    for session in [None, Some(&team.session)] {
        let mut filter = ListWaits::default();
        for expected in [&waits[..1], &waits[1..3], &waits[3..]] {
            let page = team.store.waits(session, &filter).await.unwrap();
            let listed: Vec<CallId> = page.waits.into_iter().map(|wait| wait.id).collect();
            assert_eq!(listed, ids(expected));
            filter.after = page.next;
        }
        assert_eq!(filter.after, None);
    }
}

pub async fn a_sweep_finds_answered_waits(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let wait = approval();
    team.open_wait(1, &wait).await;
    assert_eq!(team.swept().await, [], "nobody answered");
    let refused = WaitOpened {
        digest: "d2".into(),
        ..wait.clone()
    };
    team.answer(&refused, &says(WaitDecision::Allow, "ann"))
        .await;
    assert_eq!(team.swept().await, [], "the answer was refused");
    team.allow(1, &wait).await;
    team.put(&team.prompt(1)).await;
    assert_eq!(
        team.swept().await,
        team.agents[1..],
        "an agent is swept once"
    );
    let input = team.store.open_inputs(&team.session, &team.agents[1]).await;
    let withdrawn = team
        .store
        .withdraw(&team.session, &input.unwrap()[0].input.id)
        .await;
    assert!(withdrawn.unwrap());
    for _ in 0..2 {
        assert_eq!(
            team.swept().await,
            team.agents[1..],
            "until the answer is read"
        );
    }
    let free = team.store.release(&team.session, &team.agents[1], 1, false);
    free.await.unwrap();
    assert_eq!(
        team.swept().await,
        team.agents[1..],
        "also without a holder"
    );
    let claim = LeaseClaim::Member(team.under(1));
    let claimed = team
        .store
        .claim(&team.session, &team.agents[1], 2, claim, &team.node);
    let lease = claimed.await.unwrap().unwrap();
    let read = Batch {
        epoch: lease.epoch,
        ..team.batch(1, lease.last_seq, vec![closed(&wait, WaitDecision::Allow)])
    };
    team.write(read).await;
    for _ in 0..2 {
        assert_eq!(team.swept().await, []);
    }
    assert_eq!(team.list(of_state(WaitState::Closed)).await, [wait.id]);
}

pub async fn releasing_leaves_a_waiting_agent_waiting(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let waits = team
        .batch(0, 0, vec![opened(&approval())])
        .with(|save| save.state = AgentState::Waiting);
    team.write(waits).await;
    assert_eq!(team.record(0).await.state, AgentState::Waiting);
    let release = team.store.release(&team.session, team.lead(), 1, false);
    release.await.unwrap();
    assert_eq!(team.record(0).await.state, AgentState::Waiting);
    let node = NodeId::mint();
    let claim = LeaseClaim::Lead { after_death: true };
    let claimed = team
        .store
        .claim(&team.session, team.lead(), 2, claim, &node)
        .await;
    assert_eq!(claimed.unwrap().unwrap().epoch, 3);
    team.store
        .release(&team.session, team.lead(), 3, true)
        .await
        .unwrap();
    assert_eq!(team.record(0).await.state, AgentState::Stopped);
}

pub async fn waits_are_deleted_with_their_session(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let other = Team::start(world, 1).await;
    let (gone, kept) = (approval(), approval());
    team.open_wait(0, &gone).await;
    other.open_wait(0, &kept).await;
    team.store
        .set_state(&team.session, 1, SessionState::Closed)
        .await
        .unwrap();
    team.store.delete(&team.session).await.unwrap();
    assert_eq!(other.list(ListWaits::default()).await, [kept.id]);
    let gone = team.store.wait(&team.session, &gone.id).await.unwrap();
    assert!(gone.is_none());
}
