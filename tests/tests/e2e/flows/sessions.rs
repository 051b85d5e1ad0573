//! The remaining verbs of a session, and the lists.

use anyhow::Result;
use planck_common::{
    command::{
        Aborted, Events, HeadAt, Messages, Models, Nodes, Removed, SessionState, SessionVerb,
        Sidecars, Started, Teams,
    },
    event::Event,
    message::{Message, MessageRole, Part},
    reply::Code,
    subject::{Address, Target},
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    caller::{list_of, session_at},
    eventually::eventually,
    world::{Backend, World},
};
use serde_json::{Value, json};

use super::events::assert_dense;

fn texts(messages: &[Message]) -> Vec<String> {
    let text = |message: &Message| {
        let texts = message.content.iter().filter_map(|part| match part {
            Part::Text { text, .. } => Some(text.as_str()),
            _ => None,
        });
        texts.collect::<String>()
    };
    messages.iter().map(text).collect()
}

async fn rewound(backend: Backend) -> Result<()> {
    let world = World::start(backend, super::prompts::script()).await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let started = world.caller.start(&world.solo()).await?;
    let session = started.session_id.as_str();
    for text in ["one", "two", "three"] {
        let prompted = world.caller.prompt(session, text).await?;
        recorder.answered(&prompted.prompt_id).await?;
    }
    let messages = world.caller.messages(session, None).await?;
    assert_eq!(
        texts(&messages),
        ["one", "Quick.", "two", "Quick.", "three", "Quick."]
    );
    let slow = world.caller.prompt(session, "slow").await?;
    super::prompts::streaming(&world, &started.orchestrator).await?;

    let rewind = session_at(session, SessionVerb::Rewind);
    let refusal = world.caller.refusal(&rewind, &json!({ "to": 1 })).await?;
    assert_eq!(refusal.code, Code::BadRequest);
    assert!(
        world
            .caller
            .snapshot(&started.orchestrator)
            .await?
            .running
            .is_some(),
        "a wrong rewind ends nothing"
    );
    let HeadAt { head } = world
        .caller
        .ask(&rewind, &json!({ "to": messages[2].id }))
        .await?;
    recorder.answered(&slow.prompt_id).await?;
    recorder
        .until("the rewind is told", |event| {
            event.kind == "rewound" && event.seq == Some(head)
        })
        .await?;
    assert_eq!(
        texts(&world.caller.messages(session, None).await?),
        ["one", "Quick."]
    );
    let refusal = world
        .caller
        .refusal(&rewind, &json!({ "to": messages[2].id }))
        .await?;
    assert_eq!(refusal.code, Code::BadRequest, "it is hidden by now");

    let log = world.caller.log(session, 1).await?;
    let hidden: Vec<_> = log
        .iter()
        .filter(|event| event.hidden_by.is_some())
        .collect();
    assert!(
        hidden
            .iter()
            .all(|event| event.hidden_by == Some(head) && event.seq >= Some(messages[2].id)),
        "{hidden:?}"
    );
    let prompted = world.caller.prompt(session, "four").await?;
    recorder.answered(&prompted.prompt_id).await?;
    assert_eq!(
        texts(&world.caller.messages(session, None).await?),
        ["one", "Quick.", "four", "Quick."]
    );
    let seqs: Vec<_> = world
        .caller
        .log(session, 1)
        .await?
        .iter()
        .map(|event| event.seq.unwrap())
        .collect();
    assert_eq!(seqs, (1..).take(seqs.len()).collect::<Vec<_>>());
    world.check_model()?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_hides_messages_and_keeps_the_log_on_sqlite() -> Result<()> {
    rewound(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on SQLite is always run: make test-all"]
async fn a_rewind_hides_messages_and_keeps_the_log_on_postgres() -> Result<()> {
    rewound(Backend::Postgres).await
}

async fn read_in_pages(backend: Backend) -> Result<()> {
    let world = World::start(backend, super::prompts::script()).await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let started = world.caller.start(&world.solo()).await?;
    let session = started.session_id.as_str();
    for text in ["one", "two"] {
        let prompted = world.caller.prompt(session, text).await?;
        recorder.answered(&prompted.prompt_id).await?;
    }
    let checkpoint = Address::agent(&started.orchestrator, "checkpoint");
    let _: Value = world
        .caller
        .ask(&checkpoint, &json!({ "summary": "So far, so good." }))
        .await?;
    let prompted = world.caller.prompt(session, "three").await?;
    recorder.answered(&prompted.prompt_id).await?;

    let read = session_at(session, SessionVerb::Messages);
    let page = async |before: Option<i64>| -> Result<(Vec<String>, Option<i64>)> {
        let page: Messages = world
            .caller
            .ask(
                &read,
                &json!({ "before": before, "agent": started.orchestrator }),
            )
            .await?;
        let messages: Vec<Message> = page
            .messages
            .iter()
            .map(|text| serde_json::from_str(text.get()))
            .collect::<Result<_, _>>()?;
        Ok((texts(&messages), page.before))
    };
    let (latest, before) = page(None).await?;
    assert_eq!(latest, ["So far, so good.", "three", "Quick."]);
    let (earlier, before) = page(before).await?;
    assert_eq!(
        (earlier, before),
        (
            vec!["one".into(), "Quick.".into(), "two".into(), "Quick.".into()],
            None
        )
    );

    let events = session_at(session, SessionVerb::Events);
    let (mut from, mut seqs) = (1, Vec::new());
    loop {
        let page: Events = world
            .caller
            .ask(
                &events,
                &json!({ "from": from, "limit": 4, "agent": started.orchestrator }),
            )
            .await?;
        assert!(page.events.len() <= 4);
        seqs.extend(page.events.iter().map(|event| {
            serde_json::from_str::<Value>(event.get()).unwrap()["seq"]
                .as_i64()
                .unwrap()
        }));
        from = page.next;
        if page.next > page.head {
            break;
        }
    }
    assert_eq!(seqs, (1..from).collect::<Vec<_>>());
    let end: Events = world
        .caller
        .ask(&events, &json!({ "from": from + 1000 }))
        .await?;
    assert_eq!((end.events.len(), end.head), (0, from - 1));
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_and_events_are_read_in_pages_on_sqlite() -> Result<()> {
    read_in_pages(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on SQLite is always run: make test-all"]
async fn messages_and_events_are_read_in_pages_on_postgres() -> Result<()> {
    read_in_pages(Backend::Postgres).await
}

async fn resumed_and_removed(backend: Backend) -> Result<()> {
    let world = World::start(backend, super::prompts::script()).await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let started = world.caller.start(&world.solo()).await?;
    let (session, name) = (started.session_id.as_str(), started.name.as_str());
    let none: Aborted = world
        .caller
        .ask(&session_at(name, SessionVerb::Abort), &json!({}))
        .await?;
    assert!(none.aborted.is_empty());
    let slow = world.caller.prompt(name, "slow").await?;
    super::prompts::streaming(&world, &started.orchestrator).await?;
    let one: Aborted = world
        .caller
        .ask(&session_at(name, SessionVerb::Abort), &json!({}))
        .await?;
    assert_eq!(one.aborted, std::slice::from_ref(&started.orchestrator));
    recorder.answered(&slow.prompt_id).await?;

    let _: Value = world
        .caller
        .ask(&session_at(session, SessionVerb::Close), &json!({}))
        .await?;
    let head = world.caller.session(session).await?.head;
    let resumed: Started = world
        .caller
        .ask(
            &session_at(session, SessionVerb::Resume),
            &json!({ "reason": "more" }),
        )
        .await?;
    assert_eq!(
        (resumed.state, &resumed.orchestrator),
        (SessionState::Open, &started.orchestrator)
    );
    assert_eq!(
        (resumed.seq, resumed.node_id),
        (head, node.id().clone()),
        "what comes of it is read from seq + 1"
    );
    let news = eventually("the resumption is in the log", async || {
        let news = world.caller.log(session, resumed.seq + 1).await.ok()?;
        (!news.is_empty()).then_some(news)
    });
    let Some(Ok(Event::SessionResumed(event))) = news.await?[0].event() else {
        panic!("no session_resumed")
    };
    assert_eq!((event.reason.as_str(), event.from_node), ("more", None));
    let again: Started = world
        .caller
        .ask(&session_at(session, SessionVerb::Resume), &json!({}))
        .await?;
    assert_eq!(again.session_id, resumed.session_id);
    let log = world.caller.log(session, 1).await?;
    let resumptions: Vec<_> = log
        .iter()
        .filter(|event| event.kind == "session_resumed")
        .collect();
    assert_eq!(resumptions.len(), 1, "once is enough: {resumptions:?}");
    assert_dense(&log);

    let delete = session_at(name, SessionVerb::Delete);
    let Removed { removed } = world.caller.ask(&delete, &json!({})).await?;
    assert_eq!((removed.agents, removed.inputs), (1, 1));
    assert!(removed.events >= log.len() as u64, "{removed:?}");
    assert_eq!(
        world.caller.refusal(&delete, &json!({})).await?.code,
        Code::NotFound
    );
    let refusal = world
        .caller
        .refusal(&Address::agent(&started.orchestrator, "info"), &json!({}))
        .await?;
    assert_eq!(refusal.code, Code::NotFound);
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_resumed_and_removed_on_sqlite() -> Result<()> {
    resumed_and_removed(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on SQLite is always run: make test-all"]
async fn sessions_are_resumed_and_removed_on_postgres() -> Result<()> {
    resumed_and_removed(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
async fn teams_models_and_sidecars_are_listed() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new().always(Reply::text("Yes."))).await?;
    let node = world
        .node_with(&[("PLANCK_NODE_NAME", "one"), ("PLANCK_NODE_CAPACITY", "7")])
        .await?;
    let nodes: Nodes = world
        .caller
        .read(&list_of(Target::Nodes), &json!({}))
        .await?;
    let [listed] = nodes.nodes.as_slice() else {
        panic!("{nodes:?}")
    };
    assert_eq!(
        (
            &listed.id,
            listed.name.as_str(),
            listed.capacity,
            listed.agents
        ),
        (node.id(), "one", 7, 0)
    );
    let own: planck_common::command::NodeInfo = world
        .caller
        .ask(&Address::node(node.id(), "info"), &json!({}))
        .await?;
    assert_eq!(
        (own.id, own.started_at),
        (listed.id.clone(), listed.started_at)
    );
    let models: Models = world
        .caller
        .read(&list_of(Target::Models), &json!({}))
        .await?;
    assert!(
        models
            .models
            .iter()
            .all(|model| model.id == format!("{}:{}", model.provider, model.model))
    );
    let teams: Teams = world
        .caller
        .read(&list_of(Target::Teams), &json!({}))
        .await?;
    assert!(teams.teams.is_empty());
    let sidecars: Sidecars = world
        .caller
        .read(&list_of(Target::Sidecars), &json!({}))
        .await?;
    assert!(sidecars.sidecars.is_empty());
    let started = world.caller.start(&world.solo()).await?;
    let messages = world.caller.messages(&started.session_id, None).await?;
    assert!(
        messages
            .iter()
            .all(|message| message.role != MessageRole::Assistant)
    );
    node.leave().await
}
