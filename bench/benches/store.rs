//! Measures the CPU and wall time of new sessions, appends and puts on SQLite.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a bench ends at the first surprise"
)]

use std::{sync::Arc, time::Instant};

use nix::sys::resource::{UsageWho, getrusage};
use planck_agent::{Entry, Mark, Save, Ticket, effect::Change};
use planck_common::{
    AgentId, CallId, InputId, NodeId, Seq, SessionId, Timestamp,
    command::{AgentState, InputMode},
    envelope::EventPlace,
    event::{EventKind, InputKind},
    usage::Usage,
};
use planck_store::{
    Baselines as _, Batch, BatchOutcome, CallBaseline, Inbox as _, Log as _, NewInput,
    SessionRecords as _, sqlite::SqliteOptions, sqlite::SqliteStore,
};
use serde_json::json;

#[path = "session.rs"]
mod session;

use session::session;

const APPENDS: u32 = 5_000;
const SESSIONS: u32 = 500;

/// Returns the CPU time of all threads of this process, in microseconds.
fn cpu() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1e6 + time.tv_usec() as f64;
    micros(usage.user_time()) + micros(usage.system_time())
}

fn entries(count: usize) -> Vec<Entry> {
    let body = json!({"role": "assistant", "content": [{"type": "text", "text": "x".repeat(600)}]})
        .to_string();
    let place = EventPlace {
        turn: 1,
        request: 1,
        at: Timestamp::now(),
    };
    vec![
        Entry {
            kind: EventKind::Message,
            place,
            body
        };
        count
    ]
}

fn prompt(agent: &AgentId) -> NewInput {
    NewInput {
        id: InputId::mint(),
        agent: agent.clone(),
        kind: InputKind::Prompt,
        mode: InputMode::Queue,
        sender: None,
        by: None,
        reply_to: None,
        content: r#"[{"type":"text","text":"do it"}]"#.into(),
        fresh: false,
        output: None,
        at: Timestamp::now(),
    }
}

fn usage() -> Usage {
    Usage {
        input_tokens: 100,
        output_tokens: 20,
        cost_usd: 0.001,
        ..Usage::default()
    }
}

/// Runs an operation `rounds` times, and prints the CPU time and the wall time of one run in
/// microseconds.
async fn measure(what: &str, rounds: u32, mut once: impl AsyncFnMut(u32)) {
    let (cpu_before, began) = (cpu(), Instant::now());
    for round in 0..rounds {
        once(round).await;
    }
    let each = |micros: f64| micros / f64::from(rounds);
    println!(
        "{what}: {:.1} µs of CPU, {:.1} µs",
        each(cpu() - cpu_before),
        each(began.elapsed().as_secs_f64() * 1e6)
    );
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    measure_all(false).await;
    measure_all(true).await;
}

async fn measure_all(full_sync: bool) {
    let folder = tempfile::tempdir().unwrap();
    let node = NodeId::mint();
    let options = SqliteOptions {
        full_sync,
        ..SqliteOptions::new(folder.path())
    };
    let store = SqliteStore::open(options, &node).await.unwrap();
    let new = session(1);
    let (id, agent) = (new.id.clone(), new.agents[0].id.clone());
    store.create(new, &node).await.unwrap();
    let mut prev = 0;
    let mut append = async |rows, marks| {
        prev = append(&store, &id, &node, batch(&agent, prev, rows, marks)).await;
    };
    let sync = if full_sync { "FULL" } else { "NORMAL" };
    measure_sessions(&store, &node, sync).await;
    measure(&format!("append of 3 rows, {sync}"), APPENDS, async |_| {
        append(3, vec![]).await
    })
    .await;
    measure(&format!("append of 1 row, {sync}"), APPENDS, async |_| {
        append(1, vec![]).await
    })
    .await;
    let put_and_consume = async |turn| {
        let input = prompt(&agent);
        store.put(&id, input.clone()).await.unwrap();
        let change = Change::Consumed { turn };
        append(
            2,
            vec![Mark {
                input: input.id,
                change,
            }],
        )
        .await;
    };
    let baseline = |n: usize| CallBaseline {
        call: CallId::parse(&format!("call-{n}")).unwrap(),
        agent: agent.clone(),
        epoch: 1,
        roots: "x".repeat(512),
    };
    let what = format!("what a call of bash needs for protected files, {sync}");
    measure(&what, APPENDS, async |n| {
        let row = baseline(n as usize);
        store.undecided_baselines(&id).await.unwrap();
        store.put_baseline(&id, &row).await.unwrap();
        store.remove_baselines(&id, &[row.call]).await.unwrap();
    })
    .await;
    let what = format!("put and its consumption, {sync}");
    measure(&what, APPENDS, put_and_consume).await;
}

/// Measures creating a session, alone and with six appends of one to six rows.
async fn measure_sessions(store: &SqliteStore, node: &NodeId, sync: &str) {
    measure(&format!("new session, {sync}"), SESSIONS, async |_| {
        store.create(session(1), node).await.unwrap();
    })
    .await;
    let what = format!("new session and six appends, {sync}");
    measure(&what, SESSIONS, async |_| {
        let new = session(1);
        let (id, agent) = (new.id.clone(), new.agents[0].id.clone());
        store.create(new, node).await.unwrap();
        let mut prev = 0;
        for rows in 1..=6 {
            let batch = batch(&agent, prev, rows, vec![]);
            prev = append(store, &id, node, batch).await;
        }
    })
    .await;
}

fn batch(agent: &AgentId, prev: Seq, rows: usize, marks: Vec<Mark>) -> Batch {
    let save = Save {
        ticket: Ticket(0),
        entries: entries(rows),
        marks,
        puts: vec![],
        usage: usage(),
        state: AgentState::Streaming,
        beside: false,
    };
    Batch {
        agent: agent.clone(),
        epoch: 1,
        prev,
        saves: vec![Arc::new(save)],
    }
}

/// Appends a batch, and returns the number of its last row.
async fn append(store: &SqliteStore, session: &SessionId, node: &NodeId, batch: Batch) -> Seq {
    let done = store.append(session, node, &[batch]).await.unwrap();
    let BatchOutcome::Written(seqs) = &done.batches[0] else {
        panic!("{done:?}")
    };
    *seqs.last().unwrap()
}
