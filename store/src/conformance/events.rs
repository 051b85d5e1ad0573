//! Cases for reading the log in pages of envelopes.

use planck_common::{AgentId, NodeId, Seq, envelope::Envelope, event::EventKind};

use super::{
    World,
    team::{Team, entry, message, warnings},
};

/// Reads the whole log, or all rows of one agent, in pages of three rows.
pub async fn all(team: &Team, agent: Option<&AgentId>) -> Vec<Envelope> {
    let (mut events, mut from) = (vec![], 1);
    loop {
        let page = team
            .store
            .events(&team.session, from, 3, agent)
            .await
            .unwrap();
        assert!(page.events.len() <= 3);
        events.extend(
            page.events
                .iter()
                .map(|text| serde_json::from_str::<Envelope>(text.get()).unwrap()),
        );
        if page.next > page.head {
            return events;
        }
        assert!(page.next > from, "no progress at {from}");
        from = page.next;
    }
}

fn seqs(events: &[Envelope]) -> Vec<Seq> {
    events.iter().map(|event| event.seq.unwrap()).collect()
}

pub async fn events_come_in_pages(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let empty = team.store.events(&team.session, 1, 10, None).await.unwrap();
    assert_eq!((empty.events.len(), empty.next, empty.head), (0, 1, 0));
    team.log(0, warnings(4)).await;
    team.log(1, warnings(4)).await;
    assert_eq!(seqs(&all(&team, None).await), (1..=8).collect::<Vec<_>>());
    let page = team.store.events(&team.session, 3, 4, None).await.unwrap();
    assert_eq!((page.events.len(), page.next, page.head), (4, 7, 8));
    let rest = team
        .store
        .events(&team.session, 7, 500, None)
        .await
        .unwrap();
    assert_eq!((rest.events.len(), rest.next), (2, 9));
    let beyond = team
        .store
        .events(&team.session, 100, 500, None)
        .await
        .unwrap();
    assert_eq!((beyond.events.len(), beyond.head), (0, 8));
    team.log(0, warnings(600)).await;
    assert_eq!(
        team.store
            .events(&team.session, 1, 9999, None)
            .await
            .unwrap()
            .events
            .len(),
        500
    );
}

pub async fn a_page_is_bounded_in_bytes(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let large = "x".repeat(300 * 1024);
    let huge = "x".repeat(2 * 1024 * 1024);
    team.log(
        0,
        vec![
            message(&large),
            message(&large),
            message(&huge),
            message("small"),
        ],
    )
    .await;
    let mut from = 1;
    for (size, next) in [(1, 2), (1, 3), (1, 4), (1, 5)] {
        let page = team
            .store
            .events(&team.session, from, 500, None)
            .await
            .unwrap();
        assert_eq!((page.events.len(), page.next), (size, next));
        from = next;
    }
}

pub async fn an_agents_events_keep_their_seqs(world: &dyn World) {
    let team = Team::start(world, 2).await;
    for agent in [0, 1, 0, 1, 0, 1, 1] {
        team.log(agent, warnings(1)).await;
    }
    assert_eq!(seqs(&all(&team, Some(&team.agents[1])).await), [2, 4, 6, 7]);
    assert_eq!(seqs(&all(&team, Some(&team.agents[0])).await), [1, 3, 5]);
}

pub async fn an_envelope_is_that_of_its_writer(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let first = message("a \"quoted\" \u{1F600} text\n");
    let second = entry(EventKind::AgentStopped, 7, r#"{"reason":"a \u0000 in it"}"#);
    team.log(0, vec![first.clone(), second.clone()]).await;
    let other = NodeId::mint();
    let claim = crate::LeaseClaim::Lead { after_death: false };
    team.store
        .claim(&team.session, team.lead(), 1, claim, &other)
        .await
        .unwrap()
        .unwrap();
    let writer = planck_common::envelope::Writer {
        agent_id: team.lead().clone(),
        session_id: team.session.clone(),
        team_id: team.record(0).await.team,
        node_id: team.node.clone(),
        epoch: 1,
    };
    let page = team
        .store
        .events(&team.session, 1, 500, None)
        .await
        .unwrap();
    for (seq, (entry, text)) in (1..).zip([first, second].iter().zip(&page.events)) {
        let row = planck_common::envelope::RowPosition {
            seq,
            prev: seq - 1,
            hidden_by: None,
        };
        assert_eq!(
            text.get(),
            writer.durable(entry.kind, entry.place, row, &entry.body)
        );
    }
    assert_eq!(page.events.len(), 2);
}
