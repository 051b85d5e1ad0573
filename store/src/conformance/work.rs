//! Cases for the work that a prompt caused: each input is found with the turn in which its sender put
//! it, and with what its reader does.

use planck_common::{
    InputId, Seq,
    command::{AgentState, SessionState},
    event::{EventKind, InputKind},
    wait::WaitDecision,
};
use serde_json::json;

use super::{
    World,
    team::{Team, consumed, ended, entry, message, turn_end, turn_start},
    waits::{approval, opened, says},
};
use crate::{Batch, BatchOutcome, InputReader, NewInput, WorkInput, WorkRows};
use planck_agent::Entry;

impl Team {
    async fn work(&self, of: &NewInput) -> WorkRows {
        let found = self.store.work(&self.session, Some(&of.id)).await.unwrap();
        found.expect("the input is there")
    }

    /// Opens a turn that consumes these inputs.
    async fn open(&self, agent: usize, turn: u32, inputs: &[&NewInput]) -> Vec<Seq> {
        let prev = self.record(agent).await.last_seq;
        let batch = self
            .batch(agent, prev, vec![turn_start(turn)])
            .with(|save| save.marks = inputs.iter().map(|input| consumed(input, turn)).collect());
        self.write(batch).await
    }

    /// Returns the batch that ends a turn and these inputs, and that puts others.
    async fn ending(&self, agent: usize, turn: u32, of: &[&NewInput], puts: &[&NewInput]) -> Batch {
        let prev = self.record(agent).await.last_seq;
        self.batch(agent, prev, vec![turn_end(turn)]).with(|save| {
            save.marks = of
                .iter()
                .map(|input| ended(input, "completed", None))
                .collect();
            save.puts = puts.iter().map(|put| (*put).clone()).collect();
            save.state = AgentState::Idle;
        })
    }

    async fn stands(&self, agent: usize, entries: Vec<Entry>, state: AgentState) {
        let prev = self.record(agent).await.last_seq;
        self.write(
            self.batch(agent, prev, entries)
                .with(|save| save.state = state),
        )
        .await;
    }
}

fn row<'a>(rows: &'a WorkRows, input: &NewInput) -> &'a WorkInput {
    let found = rows.rest.iter().find(|row| row.id == input.id);
    found.expect("the input is among the rows")
}

pub async fn an_input_is_found_with_the_turn_that_sent_it(world: &dyn World) {
    let team = Team::start(world, 3).await;
    let (before, prompt, other) = (team.prompt(2), team.prompt(0), team.prompt(0));
    team.put(&before).await;
    team.put(&prompt).await;
    team.open(0, 1, &[&prompt]).await;
    let task = team.said_by(0, 1, InputKind::Task);
    team.put(&task).await;
    team.write(team.ending(0, 1, &[&prompt], &[]).await).await;
    team.put(&other).await;
    team.open(0, 2, &[&other]).await;
    let note = team.said_by(0, 2, InputKind::Note);
    team.put(&note).await;
    team.open(1, 1, &[&task]).await;
    // The response is put in the statement that ends the turn, beside a row of another agent.
    let response = team.said_by(1, 0, InputKind::Response);
    let end = team.ending(1, 1, &[&task], &[&response]).await;
    let lead = team.record(0).await.last_seq;
    let beside = team.batch(0, lead, vec![message("beside")]);
    let done = team
        .store
        .append(&team.session, &team.node, &[end, beside])
        .await
        .unwrap();
    assert!(
        done.batches
            .iter()
            .all(|batch| matches!(batch, BatchOutcome::Written(_)))
    );

    let rows = team.work(&prompt).await;
    assert_eq!((rows.is_cut, rows.is_shut), (false, false));
    assert_eq!(
        rows.head,
        team.store.head(&team.session).await.unwrap(),
        "the head is that of the rows"
    );
    let root = rows.root.as_ref().unwrap();
    assert_eq!(
        (&root.id, &root.agent, &root.sender, root.cause, root.turn),
        (&prompt.id, team.lead(), &None, None, Some(1))
    );
    assert_eq!(root.outcome, Some("completed".into()));
    assert_eq!(rows.rest.len(), 5, "all later inputs, and the open one");
    let facts = |input| {
        let row = row(&rows, input);
        (row.cause, row.turn, row.outcome.is_some())
    };
    assert!(!row(&rows, &before).is_later && row(&rows, &task).is_later);
    assert_eq!(facts(&before), (None, None, false));
    assert_eq!(facts(&task), (Some(1), Some(1), true));
    assert_eq!(facts(&other), (None, Some(2), false));
    assert_eq!(facts(&note), (Some(2), None, false));
    assert_eq!(facts(&response), (Some(1), None, false));
    assert_eq!(row(&rows, &response).sender, Some(team.agents[1].clone()));

    let rows = team.work(&other).await;
    assert!(rows.rest.iter().all(|row| row.id != task.id));
    let unknown = InputId::mint();
    let unknown = team.store.work(&team.session, Some(&unknown)).await;
    assert!(unknown.unwrap().is_none());

    let open = async || team.store.work(&team.session, None).await.unwrap().unwrap();
    let rows = open().await;
    assert_eq!((rows.root.is_none(), rows.rest.len()), (true, 4));
    team.write(team.ending(0, 2, &[&other, &response], &[]).await)
        .await;
    team.write(team.ending(2, 1, &[&before, &note], &[]).await)
        .await;
    let rows = open().await;
    assert_eq!(rows.rest.len(), 0);
    assert_eq!(rows.head, team.store.head(&team.session).await.unwrap());
}

pub async fn a_reader_is_found_with_what_it_waits_for(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let prompt = team.prompt(0);
    team.put(&prompt).await;
    let reader = async || team.work(&prompt).await.root.unwrap().reader.unwrap();
    let is = |state| InputReader {
        state,
        open_waits: 0,
        answers: 0,
        calls: 0,
    };
    assert_eq!(reader().await, is(AgentState::Idle));
    team.open(0, 1, &[&prompt]).await;
    assert_eq!(reader().await, is(AgentState::Streaming));

    let call = |kind, id: &str| {
        let args = json!({"call_id": "other", "text": "\u{0}"});
        entry(kind, 1, json!({"args": args, "call_id": id}).to_string())
    };
    // Only the calls of the latest answer count. The second is refused, so it never started.
    let started = vec![
        call(EventKind::ToolStart, "of an earlier round"),
        message("an answer"),
        call(EventKind::ToolEnd, "refused"),
        call(EventKind::ToolStart, "a"),
        call(EventKind::ToolStart, "b"),
    ];
    team.stands(0, started, AgentState::ExecutingTools).await;
    let works = InputReader {
        calls: 2,
        ..is(AgentState::ExecutingTools)
    };
    assert_eq!(reader().await, works);
    let (question, _) = team.ask(0, 1).await;
    let rows = team.work(&prompt).await;
    let asked = row(&rows, &question);
    assert!(asked.waiting && asked.cause == Some(1), "{asked:?}");
    let ended = vec![call(EventKind::ToolEnd, "a")];
    team.stands(0, ended, AgentState::ExecutingTools).await;
    assert_eq!(reader().await, InputReader { calls: 1, ..works });

    let wait = approval();
    let waits = vec![call(EventKind::ToolEnd, "b"), opened(&wait)];
    team.stands(0, waits, AgentState::Waiting).await;
    let waits = InputReader {
        open_waits: 1,
        ..is(AgentState::Waiting)
    };
    assert_eq!(reader().await, waits);
    let answer = says(WaitDecision::Allow, "ann");
    team.store
        .answer(&team.session, &wait.id, &wait.digest, &answer)
        .await
        .unwrap();
    let answered = InputReader {
        answers: 1,
        ..is(AgentState::Waiting)
    };
    assert_eq!(reader().await, answered);
}

pub async fn a_closed_session_without_holders_is_shut(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let prompt = team.prompt(0);
    team.put(&prompt).await;
    team.store
        .set_state(&team.session, 1, SessionState::Closed)
        .await
        .unwrap();
    assert!(!team.work(&prompt).await.is_shut, "an agent has a holder");
    team.store
        .release(&team.session, team.lead(), 1, false)
        .await
        .unwrap();
    assert!(team.work(&prompt).await.is_shut);
}

pub async fn the_end_of_a_turn_is_found(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let prompt = team.prompt(0);
    team.put(&prompt).await;
    let end = async |turn, after| {
        let lead = team.lead();
        let found = team.store.turn_end(&team.session, lead, turn, after).await;
        found.unwrap().map(|row| (row.seq, row.kind))
    };
    team.open(0, 1, &[&prompt]).await;
    team.log(1, vec![turn_start(1), turn_end(1)]).await;
    assert_eq!(end(1, 0).await, None, "another agent's turn ended");
    let ends = vec![
        message("the answer"),
        turn_end(1),
        turn_start(2),
        entry(EventKind::Error, 2, "{}"),
    ];
    let seqs = team.log(0, ends).await;
    assert_eq!(end(1, 0).await, Some((seqs[1], EventKind::TurnEnd)));
    assert_eq!(end(2, seqs[1]).await, Some((seqs[3], EventKind::Error)));
    assert_eq!(end(3, 0).await, None);
}
