//! Fuzz targets with a node in this process: commands that the node answers, and damaged copies of
//! a session file that the node has written.

#![allow(clippy::expect_used, reason = "a target that cannot start has failed")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use planck_common::{
    NodeId,
    command::{ListSessions, SessionsVerb},
    subject::{Address, Target},
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::{
    bus::{Bus, MemoryBus, MemoryHub},
    config::{self, Sources},
    node::{self, RunningNode},
};
use planck_store::{
    SessionStore,
    sqlite::{SqliteOptions, SqliteStore},
};

/// The deadline for an answer. A command that takes longer counts as a hang.
const DEADLINE: Duration = Duration::from_secs(10);

struct Served {
    runtime: Runtime,
    bus: Arc<dyn Bus>,
    /// The name and the content of the file of a session whose turn has ended.
    file: (PathBuf, Vec<u8>),
    _node: RunningNode,
    _folder: TempDir,
}

/// Sends a command, and asserts that the request does not time out. The first line is the subject,
/// and the rest is the body.
pub(super) fn command(bytes: &[u8]) {
    let served = served();
    let mut lines = bytes.splitn(2, |byte| *byte == b'\n');
    let subject = lines.next().and_then(|line| std::str::from_utf8(line).ok());
    let Some(address) = subject.and_then(Address::parse) else {
        return;
    };
    let body = Bytes::copy_from_slice(lines.next().unwrap_or_default());
    let reply = served
        .runtime
        .block_on(served.bus.request(&address, body, DEADLINE));
    assert!(
        !matches!(reply, Err(crate::bus::BusError::TimedOut { .. })),
        "a command was not answered"
    );
}

/// Opens a session file with some bytes changed. Of every four input bytes, the first three select
/// a position, and the fourth is its new value.
pub(super) fn session_file(bytes: &[u8]) {
    let served = served();
    let (name, whole) = &served.file;
    let mut changed = whole.clone();
    for patch in bytes.chunks_exact(4) {
        let [a, b, c, value] = *patch else { continue };
        let at = u32::from_be_bytes([0, a, b, c]) as usize % changed.len().max(1);
        if let Some(byte) = changed.get_mut(at) {
            *byte = value;
        }
    }
    let Ok(folder) = TempDir::new() else { return };
    if fs::write(folder.path().join(name), changed).is_ok() {
        served.runtime.block_on(look(folder.path()));
    }
}

/// Reads everything that can be read, as a node and as a command that only reads. Damaged data must
/// cause an error and not a panic.
async fn look(folder: &Path) {
    if let Ok(store) = SqliteStore::open(SqliteOptions::new(folder), &NodeId::mint()).await {
        read_all(&store).await;
    }
    if let Ok(store) = SqliteStore::look(SqliteOptions::new(folder)).await {
        read_all(&store).await;
    }
}

async fn read_all(store: &dyn SessionStore) {
    let every = ListSessions {
        state: None,
        limit: None,
        after: None,
    };
    let Ok(page) = store.sessions(every).await else {
        return;
    };
    for session in page.sessions {
        let _record = store.session(session.id.as_str()).await;
        let _events = store.events(&session.id, 1, 1_000, None).await;
        let _messages = store.messages(&session.id, None, None, None).await;
        let _exits = store.unreported_exits(&session.id).await;
        let _work = store.work(&session.id, None).await;
        for agent in store.agents(&session.id).await.unwrap_or_default() {
            let _rows = store.load(&session.id, &agent.id).await;
            let _inputs = store.open_inputs(&session.id, &agent.id).await;
            let _tasks = store.tasks(&session.id, &agent.id).await;
        }
    }
    let _strays = store.sweep(&[]).await;
}

fn served() -> &'static Served {
    static SERVED: OnceLock<Served> = OnceLock::new();
    SERVED.get_or_init(|| start().expect("a node in this process starts"))
}

fn start() -> anyhow::Result<Served> {
    let runtime = Runtime::new()?;
    let within = runtime.enter();
    let folder = TempDir::new()?;
    let (store, work) = (folder.path().join("sessions"), folder.path().join("work"));
    fs::create_dir(&work)?;
    let environment = BTreeMap::from_iter(
        [
            ("PLANCK_STORE_URL", format!("sqlite:{}", store.display())),
            ("PLANCK_MODELS_DEFAULT", "llama_cpp:none".into()),
            // No server listens at this address, so every turn ends with an error at once.
            (
                "PLANCK_PROVIDERS_LLAMA_CPP_BASE_URL",
                "http://127.0.0.1:9".into(),
            ),
            ("PLANCK_PROVIDERS_LLAMA_CPP_MAX_ATTEMPTS", "1".into()),
        ]
        .map(|(name, value): (&str, String)| (name.into(), value)),
    );
    let home = Some(folder.path().into());
    let loaded = config::load(&Sources {
        home,
        folder: work.clone(),
        environment,
        ..Sources::default()
    })?;
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new(Arc::new(MemoryHub::default())));
    let running = runtime.block_on(node::open_on(&loaded.config, bus.clone()))?;
    let start = serde_json::json!({ "name": "seed", "dir": work, "prompt": "hello" });
    let address = Address {
        target: Target::Sessions,
        verb: SessionsVerb::Start.name().into(),
    };
    runtime.block_on(bus.request(&address, Bytes::from(start.to_string()), DEADLINE))?;
    let file = runtime.block_on(written(&store))?;
    drop(within);
    Ok(Served {
        runtime,
        bus,
        file,
        _node: running,
        _folder: folder,
    })
}

/// Waits 2 s for the session's turn to end. Returns the name and the content of the session's file,
/// including the rows in its write-ahead log.
async fn written(store: &Path) -> anyhow::Result<(PathBuf, Vec<u8>)> {
    tokio::time::sleep(Duration::from_secs(2)).await;
    let files = fs::read_dir(store)?.flatten().map(|entry| entry.path());
    let ends = |path: &PathBuf| path.to_string_lossy().ends_with("_seed.db");
    let path = files
        .into_iter()
        .find(ends)
        .ok_or_else(|| anyhow::anyhow!("the session has no file"))?;
    let copy = TempDir::new()?;
    let name = PathBuf::from(path.file_name().unwrap_or_default());
    let to = copy.path().join(&name);
    fs::copy(&path, &to)?;
    let wal = |path: &Path| PathBuf::from(format!("{}-wal", path.display()));
    if wal(&path).exists() {
        fs::copy(wal(&path), wal(&to))?;
        // Opening and closing the store moves the write-ahead log into the file.
        look(copy.path()).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok((name, fs::read(&to)?))
}
