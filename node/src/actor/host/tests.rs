//! Tests of the tasks of an agent that follow each other on one node.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use planck_common::event::EventKind;
use serde_json::json;
use tokio::sync::Notify;

use super::*;
use crate::{
    Agent, Runtime, ScriptedModel, Tool, ToolContext,
    actor::{Hosting, Opening},
};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct NoArguments {}

/// How the only call of a test stands.
#[derive(Clone, Default)]
struct Call {
    has_begun: Arc<Notify>,
    has_ended: Arc<AtomicBool>,
}

impl Call {
    /// Returns a tool that needs some time to end after it was cancelled.
    fn tool(&self) -> Tool {
        let call = self.clone();
        let function = move |context: ToolContext, _: NoArguments| {
            let call = call.clone();
            async move {
                call.has_begun.notify_one();
                context.cancelled().await;
                tokio::time::sleep(Duration::from_millis(100)).await;
                call.has_ended.store(true, Ordering::SeqCst);
                Ok::<_, std::convert::Infallible>("ended")
            }
        };
        Tool::new("slow", "Ends a while after its cancellation.", function)
    }
}

/// Another node rewinds the session of an agent in the middle of a call. Then this node starts the
/// agent under its new epoch.
async fn rewound_amid_a_call() {
    let call = Call::default();
    let model = ScriptedModel::new().call("slow", json!({})).text("done");
    let builder = Runtime::builder().scripted_model(model).tool(call.tool());
    let runtime = builder.start().await.unwrap();
    let session = runtime.start(Agent::new("one")).await.unwrap();
    session.prompt("go").await.unwrap();
    call.has_begun.notified().await;

    let (store, host) = (
        &runtime.services().handles.store,
        &runtime.services().handles.host,
    );
    let hosting = host.hostings().remove(0);
    let (id, agent) = (hosting.session.id.clone(), hosting.agent.clone());
    let log = store.load(&id, &agent).await.unwrap();
    let message = log.iter().find(|row| row.kind == EventKind::Message);
    let to = message.unwrap().seq;
    let rewound = store.rewind(&id, hosting.epoch, to, "another node").await;
    let (_, epoch) = rewound.unwrap().agents.remove(0);
    host.start(Hosting {
        epoch,
        opening: Opening::default(),
        ..hosting
    });

    assert_eq!(host.info(&agent).await.unwrap().epoch, epoch);
    assert!(call.has_ended.load(Ordering::SeqCst));
    runtime.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn task_of_an_agent_begins_after_the_calls_of_the_one_before() {
    // An actor that is dropped also finds its mailbox closed, and could see either first.
    for _ in 0..6 {
        rewound_amid_a_call().await;
    }
}

#[test]
fn sessions_are_listed_until_they_are_too_many() {
    let record = MissingRecord::default();
    let one = SessionId::mint();
    record.add(&one);
    assert_eq!(record.take(), MissingAgents::InAnySession);
    assert_eq!(record.take(), MissingAgents::In(BTreeSet::new()));
    record.add(&one);
    record.add(&one);
    assert_eq!(record.take(), MissingAgents::In(BTreeSet::from([one])));
    for _ in 0..LISTED {
        record.add(&SessionId::mint());
    }
    assert!(matches!(record.take(), MissingAgents::In(sessions) if sessions.len() == LISTED));
    for _ in 0..=LISTED {
        record.add(&SessionId::mint());
    }
    assert_eq!(record.take(), MissingAgents::InAnySession);
    record.add_all();
    assert_eq!(record.take(), MissingAgents::InAnySession);
}
