//! Cases for baselines: which of them the next call of a session has to compare.

use planck_common::{CallId, NodeId};

use super::{World, team::Team};
use crate::{CallBaseline, LeaseClaim};

impl Team {
    /// Stores the baseline of a call of an agent whose lease has epoch 1.
    pub async fn baseline(&self, agent: usize, call: &str) -> CallBaseline {
        let baseline = CallBaseline {
            call: CallId::parse(call).unwrap(),
            agent: self.agents[agent].clone(),
            epoch: 1,
            roots: format!("roots of {call}"),
        };
        let put = self.store.put_baseline(&self.session, &baseline).await;
        put.unwrap();
        baseline
    }

    async fn undecided(&self) -> Vec<CallBaseline> {
        self.store.undecided_baselines(&self.session).await.unwrap()
    }
}

pub async fn baselines_of_changes_and_of_lost_calls_are_undecided(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let (first, second) = (team.baseline(0, "a").await, team.baseline(1, "b").await);
    assert_eq!(team.undecided().await, [], "both calls run");

    let changed = team
        .store
        .baseline_changed(&team.session, &first.call)
        .await;
    changed.unwrap();
    assert_eq!(team.undecided().await, std::slice::from_ref(&first));

    // A second try of the call changes nothing.
    let again = CallBaseline {
        roots: "other".into(),
        ..first.clone()
    };
    let put = team.store.put_baseline(&team.session, &again).await;
    put.unwrap();
    assert_eq!(team.undecided().await, std::slice::from_ref(&first));

    let calls = [first.call, CallId::parse("unknown").unwrap()];
    let removed = team.store.remove_baselines(&team.session, &calls).await;
    removed.unwrap();
    assert_eq!(team.undecided().await, []);

    let thief = NodeId::mint();
    let claim = LeaseClaim::Lead { after_death: true };
    let store = world.open(&thief).await;
    let lead = team.baseline(0, "c").await;
    let claimed = store
        .claim(&team.session, team.lead(), 1, claim, &thief)
        .await;
    claimed.unwrap();
    assert!(team.undecided().await.contains(&lead), "its node was lost");
    assert!(
        !team.undecided().await.contains(&second),
        "its call still runs"
    );
}
