//! Cases for pages of messages between checkpoints, and for the rows that an agent loads.

use planck_common::{Seq, event::EventKind, message::Message};

use super::{
    World,
    team::{Team, checkpoint, entry, message, turn_end, turn_start, warnings},
};

/// Returns the message ids of each page, from the newest page to the oldest.
async fn pages(team: &Team, agent: Option<usize>, limit: Option<u32>) -> Vec<Vec<Seq>> {
    let agent = agent.map(|agent| &team.agents[agent]);
    let (mut pages, mut before) = (vec![], None);
    loop {
        let page = team
            .store
            .messages(&team.session, agent, before, limit)
            .await
            .unwrap();
        let ids = page
            .messages
            .iter()
            .map(|text| serde_json::from_str::<Message>(text.get()).unwrap().id);
        pages.push(ids.collect());
        match page.before {
            None => return pages,
            Some(next) => assert!(
                before.is_none_or(|before| next < before),
                "no progress at {before:?}"
            ),
        }
        before = page.before;
    }
}

pub async fn a_page_begins_at_the_latest_checkpoint(world: &dyn World) {
    let team = Team::start(world, 1).await;
    assert_eq!(pages(&team, None, None).await, [Vec::<Seq>::new(); 1]);
    team.log(
        0,
        vec![
            message("1"),
            message("2"),
            turn_start(1),
            message("4"),
            message("5"),
        ],
    )
    .await;
    assert_eq!(pages(&team, None, None).await, [vec![1, 2, 4, 5]]);
    team.log(0, checkpoint(4)).await;
    team.log(0, vec![message("8"), turn_end(1), message("10")])
        .await;
    assert_eq!(
        pages(&team, None, None).await,
        [vec![6, 5, 8, 10], vec![1, 2, 4]]
    );
    team.log(0, checkpoint(8)).await;
    for agent in [None, Some(0)] {
        assert_eq!(
            pages(&team, agent, None).await,
            [vec![11, 10], vec![6, 5, 8], vec![1, 2, 4]]
        );
    }
    team.log(0, vec![entry(EventKind::Checkpoint, 1, r#"{"covers":11}"#)])
        .await;
    assert_eq!(
        pages(&team, None, None).await,
        [vec![], vec![11, 10], vec![6, 5, 8], vec![1, 2, 4]]
    );
}

pub async fn every_summary_is_on_a_page(world: &dyn World) {
    let team = Team::start(world, 1).await;
    team.log(0, warnings(1)).await;
    team.log(0, checkpoint(0)).await;
    for agent in [None, Some(0)] {
        assert_eq!(pages(&team, agent, None).await, [vec![2]]);
    }
    team.log(0, checkpoint(2)).await;
    for agent in [None, Some(0)] {
        assert_eq!(pages(&team, agent, None).await, [vec![4], vec![2]]);
    }
    team.log(0, vec![message("6")]).await;
    team.log(0, checkpoint(6)).await;
    for agent in [None, Some(0)] {
        assert_eq!(
            pages(&team, agent, None).await,
            [vec![7], vec![4, 6], vec![2]]
        );
        assert_eq!(
            pages(&team, agent, Some(1)).await,
            [vec![7], vec![4, 6], vec![2]]
        );
    }
}

pub async fn long_segments_come_in_parts(world: &dyn World) {
    let team = Team::start(world, 1).await;
    team.log(0, (1..=5).map(|n| message(&n.to_string())).collect())
        .await;
    assert_eq!(
        pages(&team, None, Some(2)).await,
        [vec![4, 5], vec![2, 3], vec![1]]
    );
    team.log(0, checkpoint(3)).await;
    team.log(0, vec![message("8"), message("9")]).await;
    assert_eq!(
        pages(&team, None, Some(2)).await,
        [vec![8, 9], vec![6, 4, 5], vec![2, 3], vec![1]]
    );
    assert_eq!(
        pages(&team, Some(0), Some(3)).await,
        [vec![5, 8, 9], vec![6, 4], vec![1, 2, 3]]
    );
    let large = "x".repeat(300 * 1024);
    team.log(0, vec![message(&large), message(&large)]).await;
    assert_eq!(
        pages(&team, None, None).await,
        [vec![11], vec![6, 4, 5, 8, 9, 10], vec![1, 2, 3]]
    );
}

pub async fn all_agents_messages_come_once(world: &dyn World) {
    let team = Team::start(world, 2).await;
    for n in 0..3 {
        team.log(0, vec![message("of the lead")]).await;
        team.log(1, vec![message(&format!("of the worker {n}"))])
            .await;
    }
    team.log(0, checkpoint(5)).await;
    team.log(1, checkpoint(2)).await;
    team.log(1, vec![message("11")]).await;
    assert_eq!(
        pages(&team, None, None).await,
        [vec![7, 6, 11], vec![9, 3, 4, 5], vec![1, 2]]
    );
    assert_eq!(pages(&team, Some(0), None).await, [vec![7], vec![1, 3, 5]]);
    assert_eq!(
        pages(&team, Some(1), None).await,
        [vec![9, 4, 6, 11], vec![2]]
    );
}

pub async fn an_agent_loads_what_it_needs(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let loaded = async |agent: usize| -> Vec<Seq> {
        let rows = team
            .store
            .load(&team.session, &team.agents[agent])
            .await
            .unwrap();
        rows.into_iter().map(|row| row.seq).collect()
    };
    assert_eq!(loaded(0).await, Vec::<Seq>::new());
    team.log(
        0,
        vec![turn_start(1), message("2"), turn_end(1), message("4")],
    )
    .await;
    team.log(1, warnings(1)).await;
    assert_eq!(loaded(0).await, [1, 2, 3, 4]);
    team.log(0, checkpoint(2)).await;
    assert_eq!(loaded(0).await, [3, 4, 6, 7]);
    team.log(0, vec![turn_start(2), message("9")]).await;
    team.log(0, checkpoint(9)).await;
    assert_eq!(loaded(0).await, [8, 9, 10, 11]);
    team.log(0, vec![turn_end(2)]).await;
    assert_eq!(loaded(0).await, [10, 11, 12]);
    let rows = team.store.load(&team.session, team.lead()).await.unwrap();
    assert_eq!((rows[2].kind, rows[2].place.turn), (EventKind::TurnEnd, 2));
    assert_eq!(loaded(1).await, [5]);
}
