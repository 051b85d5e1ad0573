//! Cases for waits: the log opens and ends them, and one answer is stored for each.

use std::slice;

use planck_common::{
    AgentId, CallId, NodeId, Timestamp,
    command::{ListWaits, WaitRow},
    event::{EventKind, json},
    permission::{Rule, RuleAction},
    wait::{WaitAnswer, WaitClosed, WaitDecision, WaitKind, WaitOpened, WaitScope, WaitState},
};
use serde_json::value::RawValue;

use super::{
    World,
    team::{Team, entry, message, tick},
};
use crate::{AnswerOutcome, BatchOutcome};
use planck_agent::Entry;

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.into()).unwrap()
}

/// Returns the data of a wait that does not expire. Its request contains what JSON functions of
/// databases stumble on.
pub fn wait(kind: WaitKind) -> WaitOpened {
    WaitOpened {
        id: CallId::mint(),
        call_id: None,
        kind,
        title: "run `ls`?".into(),
        request: raw(
            r#"{"tool":"bash","args":{"id":"x","a":"\\u0000 \u0000\u0000","digest":"y"}}"#,
        ),
        digest: "d1".into(),
        options: None,
        schema: None,
        rule: None,
        state: None,
        expires_at: None,
    }
}

pub fn approval() -> WaitOpened {
    wait(WaitKind::Approval)
}

pub fn late() -> WaitOpened {
    WaitOpened {
        state: None,
        expires_at: Some(tick()),
        ..approval()
    }
}

pub fn opened(wait: &WaitOpened) -> Entry {
    entry(EventKind::WaitOpened, 1, json(wait))
}

pub fn closed(wait: &WaitOpened, decision: WaitDecision) -> Entry {
    let closed = WaitClosed {
        id: wait.id.clone(),
        call_id: None,
        decision,
        by: None,
        reason: None,
        scope: None,
    };
    entry(EventKind::WaitClosed, 1, json(&closed))
}

pub fn says(decision: WaitDecision, by: &str) -> WaitAnswer {
    WaitAnswer {
        decision,
        args: None,
        value: None,
        reason: Some("because \0".into()),
        scope: None,
        by: Some(by.into()),
        at: tick(),
    }
}

pub fn of_state(state: WaitState) -> ListWaits {
    ListWaits {
        state: Some(state),
        ..ListWaits::default()
    }
}

impl Team {
    pub async fn open_wait(&self, agent: usize, wait: &WaitOpened) {
        self.log(agent, vec![opened(wait)]).await;
    }

    pub async fn wait(&self, wait: &WaitOpened) -> WaitRow {
        let row = self.store.wait(&self.session, &wait.id).await.unwrap();
        row.unwrap()
    }

    pub async fn answer(&self, wait: &WaitOpened, answer: &WaitAnswer) -> AnswerOutcome {
        let answered = self
            .store
            .answer(&self.session, &wait.id, &wait.digest, answer)
            .await;
        answered.unwrap()
    }

    /// Answers a wait, and panics unless the answer is stored.
    pub async fn allow(&self, agent: usize, wait: &WaitOpened) {
        let answered = self.answer(wait, &says(WaitDecision::Allow, "ann")).await;
        let AnswerOutcome::Answered { agent: of, node } = answered else {
            panic!("{answered:?}")
        };
        assert_eq!((&of, node), (&self.agents[agent], Some(self.node.clone())));
    }

    /// Returns the ids of all waits of all sessions that a list in pages of `limit` shows.
    pub async fn list(&self, filter: ListWaits) -> Vec<CallId> {
        let mut filter = filter;
        let mut ids = vec![];
        loop {
            let page = self.store.waits(None, &filter).await.unwrap();
            ids.extend(page.waits.into_iter().map(|wait| wait.id));
            filter.after = page.next;
            if filter.after.is_none() {
                return ids;
            }
        }
    }

    pub async fn swept(&self) -> Vec<AgentId> {
        let alive = [self.node.clone()];
        let strays = self.store.sweep(&alive).await.unwrap();
        strays.into_iter().map(|stray| stray.agent).collect()
    }
}

pub fn refused(outcome: AnswerOutcome) -> (WaitRow, Option<WaitAnswer>) {
    let AnswerOutcome::Refused { row, answer } = outcome else {
        panic!("{outcome:?}")
    };
    (*row, answer.map(|answer| *answer))
}

pub async fn the_log_opens_a_wait(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let question = WaitOpened {
        options: Some(vec!["yes".into()]),
        schema: Some(raw(r#"{"type":"string"}"#)),
        state: None,
        expires_at: Some(Timestamp::from_millis(253_370_764_800_123)),
        ..wait(WaitKind::Question)
    };
    let entry = opened(&question);
    let at = entry.place.at;
    let batch = team.batch(1, 0, vec![entry]);
    for _ in 0..2 {
        assert_eq!(
            team.append(batch.clone()).await,
            BatchOutcome::Written(vec![1])
        );
    }
    assert_eq!(
        team.list(ListWaits::default()).await,
        slice::from_ref(&question.id)
    );
    let row = team.wait(&question).await;
    assert_eq!(
        (row.session_id, row.agent_id),
        (team.session.clone(), team.agents[1].clone())
    );
    assert_eq!((row.kind, row.state), (WaitKind::Question, WaitState::Open));
    assert_eq!((row.opened_at, row.expires_at), (at, question.expires_at));
    assert_eq!((row.title, row.digest), (question.title, question.digest));
    assert_eq!(row.request.get(), question.request.get());
    assert_eq!(row.options, question.options);
    assert_eq!(row.schema.unwrap().get(), r#"{"type":"string"}"#);
    assert_eq!((row.decision, row.answered_at), (None, None));
    let elsewhere = planck_common::SessionId::mint();
    assert!(
        team.store
            .wait(&elsewhere, &question.id)
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        team.store
            .wait(&team.session, &CallId::mint())
            .await
            .unwrap()
            .is_none()
    );
}

pub async fn a_wait_is_answered_once(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let wait = approval();
    team.open_wait(1, &wait).await;
    team.allow(1, &wait).await;
    let row = team.wait(&wait).await;
    assert_eq!(
        (row.state, row.decision),
        (WaitState::Answered, Some(WaitDecision::Allow))
    );
    assert_eq!(
        (row.reason.as_deref(), row.answered_by.as_deref()),
        (Some("because \0"), Some("ann"))
    );

    let (row, stored) = refused(team.answer(&wait, &says(WaitDecision::Allow, "bob")).await);
    assert_eq!(
        (row.state, row.answered_by.as_deref()),
        (WaitState::Answered, Some("ann"))
    );
    let stored = stored.unwrap();
    assert!(stored.says_the_same(&says(WaitDecision::Allow, "ann")));
    assert!(!stored.says_the_same(&says(WaitDecision::Allow, "bob")));
    let (_, stored) = refused(team.answer(&wait, &says(WaitDecision::Deny, "bob")).await);
    assert_eq!(stored.unwrap().decision, WaitDecision::Allow);

    let answers = async |agent: usize| {
        let answers = team.store.answers(&team.session, &team.agents[agent]).await;
        let ids = answers.unwrap().into_iter();
        ids.map(|(id, answer)| (id, answer.decision))
            .collect::<Vec<_>>()
    };
    assert_eq!(answers(1).await, [(wait.id.clone(), WaitDecision::Allow)]);
    assert_eq!(answers(0).await, []);
    team.log(1, vec![closed(&wait, WaitDecision::Allow)]).await;
    assert_eq!(answers(1).await, []);
    let row = team.wait(&wait).await;
    assert_eq!(
        (row.state, row.decision),
        (WaitState::Closed, Some(WaitDecision::Allow))
    );
    let nowhere = planck_common::SessionId::mint();
    let answer = says(WaitDecision::Allow, "ann");
    let unknown = team.store.answer(&nowhere, &wait.id, "d1", &answer);
    assert!(matches!(unknown.await.unwrap(), AnswerOutcome::NotFound));
}

pub async fn one_of_racing_answers_wins(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let (one, two) = (NodeId::mint(), NodeId::mint());
    let (one, two) = (world.open(&one).await, world.open(&two).await);
    let waits: Vec<WaitOpened> = (0..10).map(|_| approval()).collect();
    team.log(0, waits.iter().map(opened).collect()).await;
    for wait in &waits {
        let answer = async |store: &dyn crate::SessionStore, decision| {
            let answer = says(decision, "ann");
            let answered = store.answer(&team.session, &wait.id, "d1", &answer).await;
            (decision, answered.unwrap())
        };
        let (allowed, denied) = tokio::join!(
            answer(&*one, WaitDecision::Allow),
            answer(&*two, WaitDecision::Deny)
        );
        let won: Vec<WaitDecision> = [allowed, denied]
            .into_iter()
            .filter(|(_, outcome)| matches!(outcome, AnswerOutcome::Answered { .. }))
            .map(|(decision, _)| decision)
            .collect();
        assert_eq!(won.len(), 1, "{won:?}");
        assert_eq!(team.wait(wait).await.decision, Some(won[0]));
    }
}

pub async fn an_answer_is_for_one_digest(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let wait = approval();
    team.open_wait(0, &wait).await;
    let other = WaitOpened {
        digest: "d2".into(),
        title: "run `rm`?".into(),
        ..wait.clone()
    };
    let (row, stored) = refused(team.answer(&other, &says(WaitDecision::Allow, "ann")).await);
    assert_eq!((row.state, row.digest.as_str()), (WaitState::Open, "d1"));
    assert!(stored.is_none());

    team.allow(0, &wait).await;
    team.open_wait(0, &other).await;
    let row = team.wait(&wait).await;
    assert_eq!(
        (row.state, row.title.as_str(), row.decision),
        (WaitState::Open, "run `rm`?", None)
    );
    refused(team.answer(&wait, &says(WaitDecision::Allow, "ann")).await);
    team.allow(0, &other).await;
    // The rows of one append count in their order.
    let again = vec![closed(&other, WaitDecision::Withdrawn), opened(&wait)];
    team.log(0, again).await;
    assert_eq!(team.wait(&wait).await.state, WaitState::Open);
    let over = vec![opened(&other), closed(&other, WaitDecision::Deny)];
    team.log(0, over).await;
    assert_eq!(team.wait(&wait).await.state, WaitState::Closed);
}

pub async fn a_late_answer_is_refused(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let late = late();
    let in_time = WaitOpened {
        state: None,
        expires_at: Some(Timestamp::from_millis(
            Timestamp::now().millis() + 3_600_000,
        )),
        ..approval()
    };
    team.log(0, vec![opened(&late), opened(&in_time)]).await;
    let (row, stored) = refused(team.answer(&late, &says(WaitDecision::Allow, "ann")).await);
    assert_eq!(
        (row.state, row.expires_at),
        (WaitState::Open, late.expires_at)
    );
    assert!(stored.is_none());
    team.allow(0, &in_time).await;
}

pub async fn late_waits_expire(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let never = approval();
    let opened_at = tick();
    let of_an_hour = WaitOpened {
        state: None,
        expires_at: Some(Timestamp::from_millis(opened_at.millis() + 3_600_000)),
        ..approval()
    };
    let mut first = opened(&of_an_hour);
    first.place.at = opened_at;
    let waits: Vec<WaitOpened> = (0..500).map(|_| late()).collect();
    team.log(0, vec![opened(&never), first]).await;
    for part in waits.chunks(200) {
        team.log(0, part.iter().map(opened).collect()).await;
    }
    for count in [500, 1, 0] {
        assert_eq!(team.store.expire_waits().await.unwrap(), count);
    }
    let before = Timestamp::now();
    let row = team.wait(&waits[0]).await;
    assert_eq!(
        (row.state, row.decision),
        (WaitState::Answered, Some(WaitDecision::Expired))
    );
    assert_eq!(row.reason.as_deref(), Some("nobody answered in time"));
    assert!(
        before.millis_since(row.answered_at.unwrap()) < 60_000,
        "{row:?}"
    );
    assert_eq!(team.wait(&never).await.state, WaitState::Open);
    let answers = team
        .store
        .answers(&team.session, team.lead())
        .await
        .unwrap();
    assert_eq!(answers.len(), 501);
    let why = Some("nobody answered within 1h");
    assert_eq!(team.wait(&of_an_hour).await.reason.as_deref(), why);
    assert_eq!(answers[0].0, of_an_hour.id);
    assert_eq!(answers[0].1.reason.as_deref(), why);
    assert_eq!(team.swept().await, team.agents);
}

pub async fn the_log_ends_a_wait(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let waits: Vec<WaitOpened> = (0..3).map(|_| approval()).collect();
    team.log(0, waits.iter().map(opened).collect()).await;
    team.allow(0, &waits[1]).await;
    // A row of another agent changes nothing.
    team.log(1, vec![closed(&waits[2], WaitDecision::Deny)])
        .await;
    let ends = vec![
        closed(&waits[0], WaitDecision::Withdrawn),
        closed(&waits[1], WaitDecision::Allow),
    ];
    team.log(0, ends).await;
    assert_eq!(team.list(ListWaits::default()).await, [waits[2].id.clone()]);
    assert_eq!(
        team.list(of_state(WaitState::Withdrawn)).await,
        [waits[0].id.clone()]
    );
    assert_eq!(
        team.list(of_state(WaitState::Closed)).await,
        [waits[1].id.clone()]
    );
    assert_eq!(
        team.wait(&waits[0]).await.decision,
        Some(WaitDecision::Withdrawn)
    );
    refused(
        team.answer(&waits[0], &says(WaitDecision::Allow, "ann"))
            .await,
    );
}

pub async fn a_rewind_withdraws_waits(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let (over, open, answered) = (session_wide(), approval(), approval());
    let to = team.log(0, vec![message("go")]).await[0];
    team.log(1, vec![opened(&over), opened(&answered)]).await;
    team.open_wait(0, &open).await;
    let answer = WaitAnswer {
        scope: Some(WaitScope::Session),
        ..says(WaitDecision::Allow, "ann")
    };
    team.answer(&over, &answer).await;
    team.allow(1, &answered).await;
    team.log(1, vec![closed(&over, WaitDecision::Allow)]).await;
    assert_eq!(rules(&team).await, slice::from_ref(&over.id));
    // A rewind that is refused withdraws nothing.
    team.store
        .rewind(&team.session, 7, to, "me")
        .await
        .unwrap_err();
    assert_eq!(team.wait(&open).await.state, WaitState::Open);
    team.store.rewind(&team.session, 1, to, "me").await.unwrap();
    for wait in [&open, &answered] {
        assert_eq!(team.wait(wait).await.state, WaitState::Withdrawn);
        refused(team.answer(wait, &says(WaitDecision::Deny, "ann")).await);
    }
    assert_eq!(team.wait(&over).await.state, WaitState::Closed);
    assert_eq!(rules(&team).await, [], "the rewind hides the wait");
    assert!(team.list(ListWaits::default()).await.is_empty());
    assert_eq!(team.swept().await, []);
}

pub fn session_wide() -> WaitOpened {
    let rule = Rule {
        tool: Some("bash".into()),
        effect: None,
        path: None,
        command: Some("ls *".into()),
        sidecar: None,
        action: RuleAction::Allow,
    };
    WaitOpened {
        rule: Some(rule),
        ..approval()
    }
}

async fn rules(team: &Team) -> Vec<CallId> {
    let rules = team.store.session_rules(&team.session).await.unwrap();
    rules.into_iter().map(|rule| rule.wait).collect()
}

pub async fn answers_add_rules_to_a_session(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let waits: Vec<WaitOpened> = (0..5).map(|_| session_wide()).chain([approval()]).collect();
    team.log(0, waits.iter().map(opened).collect()).await;
    let answer = |decision, scope| WaitAnswer {
        scope,
        ..says(decision, "ann")
    };
    for (wait, answer) in waits.iter().zip([
        answer(WaitDecision::Allow, Some(WaitScope::Session)),
        answer(WaitDecision::Allow, Some(WaitScope::Once)),
        answer(WaitDecision::Deny, Some(WaitScope::Session)),
        answer(WaitDecision::Allow, Some(WaitScope::Session)),
        answer(WaitDecision::Allow, Some(WaitScope::Session)),
        answer(WaitDecision::Allow, Some(WaitScope::Session)),
    ]) {
        team.answer(wait, &answer).await;
    }
    let ends = vec![
        closed(&waits[0], WaitDecision::Allow),
        closed(&waits[3], WaitDecision::Withdrawn),
    ];
    team.log(0, ends).await;
    let rules = team.store.session_rules(&team.session).await.unwrap();
    let found: Vec<_> = rules
        .iter()
        .map(|rule| (&rule.wait, rule.by.as_deref()))
        .collect();
    assert_eq!(
        found,
        [(&waits[0].id, Some("ann")), (&waits[4].id, Some("ann"))]
    );
    assert_eq!(Some(&rules[0].rule), waits[0].rule.as_ref());
}

pub async fn waits_of_a_stopped_agent_are_over(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let (open, answered) = (approval(), approval());
    team.log(1, vec![opened(&open), opened(&answered)]).await;
    team.allow(1, &answered).await;
    assert_eq!(team.swept().await, team.agents[1..]);
    let epoch = team.record(1).await.epoch;
    let release = team
        .store
        .release(&team.session, &team.agents[1], epoch, true);
    release.await.unwrap();
    let outcome = team.answer(&open, &says(WaitDecision::Allow, "ann")).await;
    assert!(matches!(outcome, AnswerOutcome::NotFound), "{outcome:?}");
    for state in [WaitState::Open, WaitState::Answered] {
        assert!(team.list(of_state(state)).await.is_empty(), "{state:?}");
    }
    assert_eq!(team.swept().await, []);
    assert_eq!(team.wait(&open).await.state, WaitState::Open);
}
