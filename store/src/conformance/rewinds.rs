//! Cases for rewinds: the chosen message and the rows after it are hidden but kept, and agents
//! continue without them.

use planck_common::{
    AgentId, CallId, Seq,
    command::AgentState,
    envelope::Envelope,
    event::{self, EventKind, InputKind, ToolEnd, TurnEnd, TurnOutcome},
    message::{Custom, MessageBody, MessageMetadata, MessageRole, Part},
};
use serde_json::{json, value::RawValue};

use super::{
    World, events,
    team::{Team, consumed, ended, entry, message, turn_end, turn_start, warnings},
};
use crate::{Batch, BatchOutcome, InputOutcome, StoreError};
use planck_agent::Entry;

pub async fn a_rewind_hides_and_fences(world: &dyn World) {
    let team = Team::start(world, 2).await;
    team.log(
        0,
        vec![
            turn_start(1),
            message("2"),
            turn_end(1),
            turn_start(2),
            message("5"),
        ],
    )
    .await;
    team.log(1, vec![message("6")]).await;
    assert!(matches!(
        team.store.rewind(&team.session, 2, 5, "me").await,
        Err(StoreError::StaleEpoch(_))
    ));
    let rewound = team.store.rewind(&team.session, 1, 5, "me").await.unwrap();
    assert_eq!((rewound.head, rewound.stopped), (8, vec![]));
    let epochs: Vec<_> = team.agents.iter().map(|agent| (agent.clone(), 2)).collect();
    assert_eq!(rewound.agents, epochs);
    assert_eq!(
        team.append(team.batch(1, 6, warnings(1))).await,
        BatchOutcome::StaleEpoch
    );

    let log = events::all(&team, None).await;
    let hidden: Vec<(Seq, Option<Seq>)> = log
        .iter()
        .map(|event| (event.seq.unwrap(), event.hidden_by))
        .collect();
    assert_eq!(
        hidden,
        [
            (1, None),
            (2, None),
            (3, None),
            (4, None),
            (5, Some(8)),
            (6, Some(8)),
            (7, None),
            (8, None)
        ]
    );
    assert_eq!(
        (log[6].kind.as_str(), log[6].epoch, log[6].turn),
        ("turn_end", 2, 2)
    );
    let last = log.last().unwrap();
    assert_eq!(
        (last.kind.as_str(), last.epoch, last.prev, last.turn),
        ("rewound", 2, Some(7), 2)
    );
    assert_eq!(
        (&last.agent_id, &last.node_id, last.data.get()),
        (team.lead(), &team.node, r#"{"to":5,"by":"me"}"#)
    );

    let messages = team
        .store
        .messages(&team.session, None, None, None)
        .await
        .unwrap();
    assert_eq!(messages.messages.len(), 1);
    assert!(
        team.store
            .load(&team.session, &team.agents[1])
            .await
            .unwrap()
            .is_empty()
    );
    let loaded: Vec<_> = team
        .store
        .load(&team.session, team.lead())
        .await
        .unwrap()
        .iter()
        .map(|row| row.seq)
        .collect();
    assert_eq!(loaded, [1, 2, 3, 4, 7, 8]);
    assert_eq!(
        team.write(Batch {
            epoch: 2,
            ..team.batch(0, 8, warnings(1))
        })
        .await,
        [9]
    );
    assert_eq!(
        team.write(Batch {
            epoch: 2,
            ..team.batch(1, 6, warnings(1))
        })
        .await,
        [10]
    );
}

pub async fn a_rewind_ends_inputs_of_what_it_hides(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let (before, open, done) = (
        team.prompt(0),
        team.prompt(0),
        team.said_by(0, 1, InputKind::Task),
    );
    let (unread_prompt, unread_task) = (team.prompt(1), team.said_by(0, 1, InputKind::Task));
    for input in [&before, &open, &done, &unread_prompt, &unread_task] {
        team.put(input).await;
    }
    let (_, _) = team.ask(0, 1).await;
    let turn = |agent, prev, number, input| {
        team.batch(
            agent,
            prev,
            vec![message("early"), turn_start(number), message("late")],
        )
        .with(|save| save.marks = vec![consumed(input, number)])
    };
    team.write(turn(0, 0, 1, &before)).await;
    team.write(
        team.batch(0, 3, vec![turn_end(1)])
            .with(|save| save.marks = vec![ended(&before, "completed", None)]),
    )
    .await;
    let to = team.write(turn(0, 4, 2, &open)).await[0];
    team.write(turn(1, 0, 1, &done)).await;
    team.write(
        team.batch(1, 10, vec![turn_end(1)])
            .with(|save| save.marks = vec![ended(&done, "completed", None)]),
    )
    .await;
    team.store.rewind(&team.session, 1, to, "me").await.unwrap();
    for (input, outcome) in [
        (&before, Some("completed")),
        (&open, Some("rewound")),
        (&done, Some("rewound")),
        (&unread_prompt, None),
        (&unread_task, Some("rewound")),
    ] {
        let row = team
            .store
            .input(&team.session, &input.id)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            (row.outcome.as_ref().map(InputOutcome::name), row.waiting),
            (outcome, false)
        );
    }
    assert!(
        team.store
            .tasks(&team.session, &team.agents[1])
            .await
            .unwrap()
            .is_empty()
    );
}

pub async fn a_rewind_names_the_agents_that_it_stops(world: &dyn World) {
    let team = Team::start(world, 3).await;
    let spawned = |agent: usize| {
        let body =
            json!({"id": team.agents[agent], "name": "x", "type": "worker", "node_id": team.node});
        entry(EventKind::WorkerSpawned, 1, body.to_string())
    };
    team.log(0, vec![spawned(1), message("2"), spawned(2)])
        .await;
    let rewound = team.store.rewind(&team.session, 1, 2, "me").await.unwrap();
    assert_eq!(rewound.stopped, [team.agents[2].clone()]);
    let record = team.record(2).await;
    assert_eq!((record.state, record.node), (AgentState::Stopped, None));
    assert_eq!(team.record(1).await.state, AgentState::Idle);
}

/// Returns an answer with a call, and the message with its result. The arguments contain what JSON
/// functions of databases stumble on.
fn round() -> (Entry, Entry) {
    let call_id = CallId::mint();
    let args = r#"{"role":"custom","a":"\\u0000 \u0000"}"#.to_owned();
    let call = Part::ToolCall {
        id: "1".into(),
        call_id: call_id.clone(),
        name: "read".into(),
        args: RawValue::from_string(args).unwrap(),
        invalid: None,
        signature: None,
    };
    let result = Part::ToolResult {
        id: "1".into(),
        call_id,
        text: "done".into(),
        error: false,
    };
    (
        saved(MessageRole::Assistant, call),
        saved(MessageRole::ToolResult, result),
    )
}

fn saved(role: MessageRole, part: Part) -> Entry {
    let body = MessageBody {
        custom: (role == MessageRole::Custom).then_some(Custom::Summary),
        role,
        content: vec![part],
        metadata: MessageMetadata::default(),
    };
    entry(EventKind::Message, 1, event::json(&body))
}

/// Nothing loads a stopped agent again, so nothing gives results to its calls.
pub async fn a_rewind_leaves_no_call_of_a_stopped_agent_without_its_result(world: &dyn World) {
    use MessageRole::{Assistant, Custom as Summary, ToolResult, User};
    let team = Team::start(world, 3).await;
    let mut results = Vec::new();
    for agent in [1, 2] {
        let ((call, result), (last_call, last_result)) = (round(), round());
        let began = vec![turn_start(1), message("go"), call, result, last_call];
        team.log(agent, began).await;
        let summary = saved(MessageRole::Custom, Part::text("in short"));
        results.push(vec![summary, last_result, turn_end(1)]);
    }
    let mut to = 0;
    for agent in [2, 1] {
        to = team.log(agent, results.remove(agent - 1)).await[1];
    }
    let (session, stopped) = (&team.session, &team.agents[1]);
    team.store.release(session, stopped, 1, true).await.unwrap();
    team.store.rewind(&team.session, 1, to, "me").await.unwrap();
    let shown = async |agent: &AgentId| {
        let log = events::all(&team, Some(agent)).await;
        let shown = log
            .iter()
            .filter(|event| event.hidden_by.is_none() && event.kind == "message");
        let roles = shown.map(|event| {
            let Some(Ok(event::Event::Message(saved))) = event.event() else {
                panic!("{} cannot be read", event.kind)
            };
            saved.message.role
        });
        roles.collect::<Vec<_>>()
    };
    assert_eq!(shown(stopped).await, [User, Assistant, ToolResult, Summary]);
    // The other agent continues, and a rewind to its results would leave it with the last call.
    let whole = [User, Assistant, ToolResult, Assistant, Summary, ToolResult];
    assert_eq!(shown(&team.agents[2]).await, whole);
}

pub async fn a_rewind_needs_a_visible_message(world: &dyn World) {
    let team = Team::start(world, 1).await;
    team.log(0, vec![turn_start(1), message("2"), message("3")])
        .await;
    for (to, why) in [
        (1, "no message"),
        (9, "beyond the end"),
        (0, "before the first"),
    ] {
        assert!(
            matches!(
                team.store.rewind(&team.session, 1, to, "me").await,
                Err(StoreError::BadRequest(_))
            ),
            "{why}"
        );
    }
    team.store.rewind(&team.session, 1, 3, "me").await.unwrap();
    assert!(matches!(
        team.store.rewind(&team.session, 2, 3, "me").await,
        Err(StoreError::BadRequest(_))
    ));
    assert_eq!(
        team.store
            .rewind(&team.session, 2, 2, "me")
            .await
            .unwrap()
            .head,
        6
    );
}

pub async fn a_rewind_sent_again_is_the_same(world: &dyn World) {
    let team = Team::start(world, 2).await;
    team.log(0, vec![message("1"), message("2")]).await;
    let first = team.store.rewind(&team.session, 1, 2, "me").await.unwrap();
    let again = team.store.rewind(&team.session, 1, 2, "me").await.unwrap();
    assert_eq!(
        (first.head, first.agents, first.stopped),
        (again.head, again.agents, again.stopped)
    );
    assert_eq!(team.store.head(&team.session).await.unwrap(), 3);
    assert!(matches!(
        team.store.rewind(&team.session, 1, 1, "me").await,
        Err(StoreError::StaleEpoch(_))
    ));
}

/// Returns the number, agent, kind, turn and hidden flag of each row of the log.
async fn shape(team: &Team) -> Vec<(Seq, usize, String, u32, bool)> {
    let log = events::all(team, None).await;
    let agent = |id: &AgentId| team.agents.iter().position(|agent| agent == id).unwrap();
    let row = |event: &Envelope| {
        (
            event.seq.unwrap(),
            agent(&event.agent_id),
            event.kind.clone(),
            event.turn,
            event.hidden_by.is_some(),
        )
    };
    log.iter().map(row).collect()
}

fn row(
    seq: Seq,
    agent: usize,
    kind: &str,
    turn: u32,
    is_hidden: bool,
) -> (Seq, usize, String, u32, bool) {
    (seq, agent, kind.to_owned(), turn, is_hidden)
}

fn call(kind: EventKind, turn: u32, call: &str) -> Entry {
    entry(
        kind,
        turn,
        json!({"call_id": call, "id": "p", "name": "write", "result": "", "error": false})
            .to_string(),
    )
}

pub async fn a_rewind_ends_what_is_open(world: &dyn World) {
    let team = Team::start(world, 3).await;
    let (shown, hidden) = (team.said_by(0, 1, InputKind::Task), team.prompt(0));
    team.put(&shown).await;
    team.put(&hidden).await;
    let usage =
        json!({"delta": {"input_tokens": 7, "cost_usd": 0.5}, "total": {}, "context_tokens": 1})
            .to_string();
    let begun = vec![
        turn_start(1),
        message("2"),
        call(EventKind::ToolStart, 1, "a"),
        call(EventKind::ToolStart, 1, "b"),
        call(EventKind::ToolEnd, 1, "b"),
        entry(EventKind::UsageDelta, 1, usage),
    ];
    team.write(
        team.batch(1, 0, begun)
            .with(|save| save.marks = vec![consumed(&shown, 1)]),
    )
    .await;
    let begun = vec![turn_start(1), message("8")];
    team.write(
        team.batch(0, 0, begun)
            .with(|save| save.marks = vec![consumed(&hidden, 1)]),
    )
    .await;
    team.log(2, vec![message("9")]).await;

    let rewound = team.store.rewind(&team.session, 1, 8, "me").await.unwrap();
    assert_eq!(rewound.head, 13);
    let expected = [
        row(7, 0, "turn_start", 1, false),
        row(8, 0, "message", 1, true),
        row(9, 2, "message", 1, true),
        row(10, 0, "turn_end", 1, false),
        row(11, 1, "tool_end", 1, false),
        row(12, 1, "turn_end", 1, false),
        row(13, 0, "rewound", 1, false),
    ];
    assert_eq!(shape(&team).await[6..], expected);
    let log = events::all(&team, None).await;
    let end: TurnEnd = serde_json::from_str(log[11].data.get()).unwrap();
    assert_eq!(
        (end.outcome, end.inputs, end.message),
        (TurnOutcome::Aborted, vec![shown.id.clone()], None)
    );
    assert_eq!((end.usage.input_tokens, end.usage.cost_usd), (7, 0.5));
    let end: ToolEnd = serde_json::from_str(log[10].data.get()).unwrap();
    assert_eq!(
        (end.call_id.as_str(), end.name.as_str(), end.error),
        ("a", "write", true)
    );
    assert_eq!(
        (log[10].prev, log[11].prev, log[12].prev, log[11].epoch),
        (Some(6), Some(11), Some(10), 2)
    );
    for input in [&shown, &hidden] {
        let outcome = team
            .store
            .input(&team.session, &input.id)
            .await
            .unwrap()
            .unwrap()
            .outcome;
        assert_eq!(outcome.as_ref().map(InputOutcome::name), Some("aborted"));
    }
    for agent in 0..3 {
        assert_eq!(team.record(agent).await.state, AgentState::Idle);
    }
    assert_eq!(
        team.write(Batch {
            epoch: 2,
            ..team.batch(1, 12, warnings(1))
        })
        .await,
        [14]
    );

    team.store.rewind(&team.session, 2, 2, "me").await.unwrap();
    let shown: Vec<Seq> = shape(&team)
        .await
        .into_iter()
        .filter(|row| !row.4)
        .map(|row| row.0)
        .collect();
    assert_eq!(
        shown,
        [1, 12, 15],
        "the end of a turn that is shown is shown, that of a hidden one is hidden"
    );
}

pub async fn a_rewind_leaves_one_end_to_a_turn_that_is_over(world: &dyn World) {
    let team = Team::start(world, 2).await;
    team.log(
        1,
        vec![
            turn_start(1),
            message("2"),
            call(EventKind::ToolStart, 1, "a"),
        ],
    )
    .await;
    team.log(0, vec![turn_start(1), message("5"), turn_end(1)])
        .await;
    team.log(
        1,
        vec![
            call(EventKind::ToolEnd, 1, "a"),
            message("8"),
            turn_end(1),
            turn_start(2),
            message("11"),
            turn_end(2),
        ],
    )
    .await;
    team.store
        .release(&team.session, &team.agents[1], 1, true)
        .await
        .unwrap();
    team.store.rewind(&team.session, 1, 5, "me").await.unwrap();
    let shown: Vec<_> = shape(&team)
        .await
        .into_iter()
        .filter(|row| !row.4)
        .collect();
    let expected = [
        row(1, 1, "turn_start", 1, false),
        row(2, 1, "message", 1, false),
        row(3, 1, "tool_start", 1, false),
        row(4, 0, "turn_start", 1, false),
        row(6, 0, "turn_end", 1, false),
        row(7, 1, "tool_end", 1, false),
        row(9, 1, "turn_end", 1, false),
        row(13, 0, "rewound", 1, false),
    ];
    assert_eq!(shown, expected);
    assert_eq!(team.record(1).await.state, AgentState::Stopped);
    let loaded: Vec<Seq> = team
        .store
        .load(&team.session, team.lead())
        .await
        .unwrap()
        .iter()
        .map(|row| row.seq)
        .collect();
    assert_eq!(loaded, [4, 6, 13]);
}
