//! Sessions of a real node on the memory bus, with SQLite in a temporary folder.

use std::time::Duration;

use planck_common::{
    SessionId,
    command::{SessionState, Start},
    spec::Member,
};
use tempfile::TempDir;

use super::{Hop, IfClosed};
use crate::{
    config::{Address, Config},
    node::{self, Running},
};

struct Scene {
    folder: TempDir,
    running: Running,
}

impl Scene {
    async fn open() -> Self {
        let folder = TempDir::new().unwrap();
        let mut config = Config::default();
        let store = folder.path().join("sessions");
        config.store.url = Address::new(format!("sqlite:{}", store.display()));
        config.models.default = Some("ollama:none".into());
        let running = node::open(&config).await.unwrap();
        Self { folder, running }
    }

    /// A session whose lead is idle on this node.
    async fn start(&self) -> SessionId {
        let lead = Member {
            r#type: "lead".into(),
            ..Member::default()
        };
        let request = Start {
            session_id: None,
            name: None,
            team: None,
            members: Some(vec![lead]),
            workspace: None,
            dir: Some(self.folder.path().display().to_string()),
            prompt: None,
            prompt_id: None,
            limits: None,
            on_node_death: None,
            metadata: serde_json::Map::new(),
        };
        let node = self.running.node();
        let started = node.start_session(request, Hop::Last).await.unwrap();
        started.session_id
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn close_wins_over_a_sweep_that_saw_the_session_open() {
    for if_closed in [IfClosed::Leave, IfClosed::OpenIfPrompted(&[])] {
        let scene = Scene::open().await;
        let id = scene.start().await;
        let node = scene.running.node();

        let alone = node.host().alone(&id).await.unwrap();
        let session = node.find_session(&id).await.unwrap();
        let taking_up = node.take_up(&id, "its node died or left", if_closed);
        let closing = async {
            // The other one waits by then.
            tokio::time::sleep(Duration::from_millis(50)).await;
            node.close_lost(&session, &alone).await.unwrap();
            drop(alone);
        };
        let (taken_up, ()) = tokio::join!(taking_up, closing);
        taken_up.unwrap();

        assert_eq!(
            node.find_session(&id).await.unwrap().state,
            SessionState::Closed
        );
        assert_eq!(node.find_lead(&session).await.unwrap().node, None);

        node.take_up(&id, "prompted", IfClosed::Open).await.unwrap();
        assert_eq!(
            node.find_session(&id).await.unwrap().state,
            SessionState::Open
        );
        scene.running.shut_down(Duration::ZERO).await;
    }
}
