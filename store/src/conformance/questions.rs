//! Cases for questions: the store records which agent waits for which, so it can refuse a question
//! that would close a cycle.

use planck_common::{InputId, event::InputKind};

use super::{
    World,
    team::{Team, consumed, ended, turn_end, turn_start},
};
use crate::{AskOutcome, NewInput};

impl Team {
    pub async fn ask(&self, from: usize, to: usize) -> (NewInput, AskOutcome) {
        self.ask_within(from, to, 16).await
    }

    async fn ask_within(&self, from: usize, to: usize, max_depth: u32) -> (NewInput, AskOutcome) {
        let question = self.said_by(from, to, InputKind::Question);
        let asked = self
            .store
            .ask(&self.session, question.clone(), 1, max_depth)
            .await
            .unwrap();
        (question, asked)
    }

    fn asked(&self) -> AskOutcome {
        AskOutcome::Asked {
            node: Some(self.node.clone()),
        }
    }

    fn cycle(&self, path: &[usize]) -> AskOutcome {
        AskOutcome::Cycle(
            path.iter()
                .map(|agent| self.agents[*agent].clone())
                .collect(),
        )
    }
}

pub async fn a_cycle_is_refused(world: &dyn World) {
    let team = Team::start(world, 4).await;
    assert_eq!(team.ask(0, 1).await.1, team.asked());
    assert_eq!(team.ask(0, 3).await.1, team.asked());
    let (held_up, asked) = team.ask(1, 2).await;
    assert_eq!(asked, team.asked());
    assert_eq!(team.ask(2, 0).await.1, team.cycle(&[2, 0, 1, 2]));
    assert_eq!(team.ask(1, 0).await.1, team.cycle(&[1, 0, 1]));
    assert_eq!(team.ask(3, 3).await.1, team.cycle(&[3, 3]));
    assert!(
        team.store
            .withdraw(&team.session, &held_up.id)
            .await
            .unwrap()
    );
    assert_eq!(team.ask(2, 0).await.1, team.asked());
}

pub async fn depth_is_bounded(world: &dyn World) {
    let team = Team::start(world, 4).await;
    assert_eq!(team.ask_within(0, 1, 2).await.1, team.asked());
    assert_eq!(team.ask_within(1, 2, 2).await.1, team.asked());
    assert_eq!(team.ask_within(2, 3, 2).await.1, AskOutcome::TooDeep(3));
    assert_eq!(team.ask_within(2, 3, 3).await.1, team.asked());
}

pub async fn asking_again_finds_the_question(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let (question, _) = team.ask(0, 1).await;
    let again = || team.store.ask(&team.session, question.clone(), 1, 16);
    let waiting = async || {
        team.store
            .input(&team.session, &question.id)
            .await
            .unwrap()
            .unwrap()
            .waiting
    };
    team.write(
        team.batch(1, 0, vec![turn_start(1)])
            .with(|save| save.marks = vec![consumed(&question, 1)]),
    )
    .await;
    assert!(
        !team
            .store
            .withdraw(&team.session, &question.id)
            .await
            .unwrap()
    );
    assert!(!waiting().await);
    assert_eq!(again().await.unwrap(), AskOutcome::Known { outcome: None });
    assert!(waiting().await);
    team.write(
        team.batch(1, 1, vec![turn_end(1)])
            .with(|save| save.marks = vec![ended(&question, "completed", Some("yes"))]),
    )
    .await;
    assert_eq!(
        again().await.unwrap(),
        AskOutcome::Known {
            outcome: Some("completed".into())
        }
    );
    assert!(!waiting().await);
}

pub async fn only_the_holder_asks(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let question = team.said_by(0, 1, InputKind::Question);
    assert_eq!(
        team.store
            .ask(&team.session, question.clone(), 2, 16)
            .await
            .unwrap(),
        AskOutcome::StaleEpoch
    );
    assert!(
        team.store
            .input(&team.session, &question.id)
            .await
            .unwrap()
            .is_none()
    );
    let nobody = NewInput {
        id: InputId::mint(),
        agent: planck_common::AgentId::mint(),
        ..question.clone()
    };
    assert_eq!(
        team.store.ask(&team.session, nobody, 1, 16).await.unwrap(),
        AskOutcome::NotFound
    );
    team.store
        .release(&team.session, &team.agents[1], 1, true)
        .await
        .unwrap();
    assert_eq!(
        team.store
            .ask(&team.session, question, 1, 16)
            .await
            .unwrap(),
        AskOutcome::NotFound
    );
}

pub async fn an_answer_ends_the_wait(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let (question, _) = team.ask(0, 1).await;
    assert!(matches!(team.ask(1, 0).await.1, AskOutcome::Cycle(_)));
    let marks = vec![
        consumed(&question, 1),
        ended(&question, "completed", Some("so")),
    ];
    team.write(
        team.batch(1, 0, vec![turn_start(1), turn_end(1)])
            .with(|save| save.marks = marks),
    )
    .await;
    let row = team
        .store
        .input(&team.session, &question.id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((row.waiting, row.answer.as_deref()), (false, Some("so")));
    assert_eq!(team.ask(1, 0).await.1, team.asked());
}
