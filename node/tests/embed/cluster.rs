//! Tests of an embedded runtime that is a node of a cluster.

use planck_node::{Agent, Client, ScriptedModel};
use planck_tests::nats::NatsServer;
use tempfile::TempDir;

use super::{calls_count, counting, prompted, turn};

/// Two runtimes with the same name stand for two processes of one program.
#[tokio::test(flavor = "multi_thread")]
async fn runtime_with_nats_is_a_node_whose_sessions_continue_in_its_sibling() {
    let server = NatsServer::start().unwrap();
    let folder = TempDir::new().unwrap();
    let store = format!("sqlite:{}", folder.path().display());
    let start = |program, model| {
        counting(program, model)
            .name("counters")
            .nats(server.url())
            .store(&store)
            .set("node.drain_timeout", "5s")
            .start()
    };
    let one = start("one", calls_count(ScriptedModel::new()).text("First."))
        .await
        .unwrap();
    let session = one.start(Agent::new("counter")).await.unwrap();
    let first = turn(&session).await;
    assert_eq!(first.calls[0].result, "6 words, says one");

    // A client that is only connected to NATS finds the session, and prompts it after the first
    // runtime has left.
    let client = Client::connect(&server.url()).await.unwrap();
    assert!(client.session(session.id()).await.is_ok());
    let two = start("two", calls_count(ScriptedModel::new()).text("Second."))
        .await
        .unwrap();
    let id = session.id().clone();
    one.shut_down().await;
    let second = prompted(&client, &id).await;
    assert_eq!(second.calls[0].result, "6 words, says two");
    assert_eq!(second.end, Ok("Second.".into()));
    two.shut_down().await;
}
