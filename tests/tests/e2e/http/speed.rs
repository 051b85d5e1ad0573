//! Measurements of the front, for docs/performance.md. They print figures and compare none, because
//! times depend on the machine.

use std::{
    collections::HashMap,
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use planck_common::{envelope::Envelope, event::Event};
use planck_scripted_model::{Pace, Reply, Script};
use planck_tests::{
    eventually::within,
    front::{AUTHORIZATION, Front, open},
    node::memory,
    world::{Backend, World},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    net::TcpStream,
    time::Instant,
};

/// When each delta arrived, by its request and offset.
type Arrivals = Arc<Mutex<HashMap<(u32, usize), Instant>>>;

fn note(arrivals: &Arrivals, event: &[u8]) {
    let now = Instant::now();
    let Ok(event) = serde_json::from_slice::<Envelope>(event) else {
        return;
    };
    if let Some(Ok(Event::TextDelta(delta))) = event.event() {
        arrivals
            .lock()
            .unwrap()
            .insert((event.request, delta.offset), now);
    }
}

/// Returns the CPU time that a process has used, and its resident memory in KiB.
fn used(pid: u32) -> Result<(Duration, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .context("stat")?
        .split_whitespace()
        .collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    let memory = memory(pid.try_into()?)?;
    Ok((Duration::from_millis(ticks * 10), memory >> 10))
}

async fn listen(front: std::net::SocketAddr, path: &str, bearer: &str) -> Result<TcpStream> {
    let headers = [("Accept", "text/event-stream"), (AUTHORIZATION, bearer)];
    open(front, "GET", path, &headers, "").await
}

/// Reads a stream of events to its end without looking at it.
async fn drain(front: std::net::SocketAddr, path: String, bearer: String) -> Result<()> {
    let mut stream = listen(front, &path, &bearer).await?;
    let mut buffer = vec![0; 64 << 10];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

fn count() -> usize {
    let count = std::env::var("PLANCK_STREAM_CLIENTS").ok();
    count.and_then(|count| count.parse().ok()).unwrap_or(1_000)
}

/// Waits until so many streams are open.
async fn connected(front: &Front, count: usize) -> Result<()> {
    let open_now = format!("planck_http_streams {count}\n");
    within(
        Duration::from_secs(120),
        "all clients are connected",
        async || {
            let metrics = front.get("/metrics").await.ok()?;
            metrics.body.contains(&open_now).then_some(())
        },
    )
    .await
}

/// Measures clients of the AI SDK's wire, which join a turn that runs.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: cargo test -p planck-tests --test e2e -- --ignored --nocapture http::speed"]
async fn cost_of_clients_of_the_ai_sdk() -> Result<()> {
    let words: String = (0..20_000).map(|n| format!("word-{n} ")).collect();
    let reply = Reply::text(words).pace(Pace::per_second(50.0).chunk(20));
    let world = World::start(Backend::Sqlite, Script::new().always(reply)).await?;
    let _node = world.node().await?;
    let front = Front::start(world.planck()?, world.folder(), &["--front-only"]).await?;
    let pid = front.pid().context("the front ended")?;
    let bearer = format!("Bearer {}", front.key());
    let mut body = world.solo();
    body["prompt"] = "go".into();
    let started = front.post("/v1/sessions", &body).await?;
    let lead = started["orchestrator"].as_str().context("no agent")?;
    crate::flows::prompts::streaming(&world, lead).await?;
    let session = started["session_id"].as_str().context("no session")?;
    let path = format!("/ui/chat/{session}/stream");
    let subscriptions = || {
        let stats = world.nats.monitor("/subsz").ok()?;
        stats["num_subscriptions"].as_u64()
    };
    let (known, (busy, empty)) = (subscriptions(), used(pid)?);
    let began = Instant::now();
    let mut clients = Vec::new();
    while clients.len() < count() {
        // A node takes 256 requests at once.
        let more =
            (0..50).map(|_| tokio::spawn(drain(front.address(), path.clone(), bearer.clone())));
        clients.extend(more);
        connected(&front, clients.len()).await?;
    }
    let (joined, (joining, memory)) = (began.elapsed(), used(pid)?);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (after, end) = used(pid)?;
    println!(
        "{} clients of the AI SDK joined in {:.2} s with {:.2} s CPU; subscriptions {known:?} before, {:?} after; \
         CPU {:.2} s in the 10 s after; memory {empty} KiB before, {memory} KiB connected, {end} KiB at the end",
        clients.len(),
        joined.as_secs_f64(),
        (joining - busy).as_secs_f64(),
        subscriptions(),
        (after - joining).as_secs_f64(),
    );
    clients.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: cargo test -p planck-tests --test e2e -- --ignored --nocapture http::speed"]
async fn cost_of_stream_clients() -> Result<()> {
    let count = count();
    let words: String = (0..2_000).map(|n| format!("word-{n} ")).collect();
    let reply = Reply::text(words).pace(Pace::per_second(50.0).chunk(20));
    let world = World::start(Backend::Sqlite, Script::new().always(reply)).await?;
    let _node = world.node().await?;
    let front = Front::start(world.planck()?, world.folder(), &["--front-only"]).await?;
    let pid = front.pid().context("the front ended")?;
    let bearer = format!("Bearer {}", front.key());
    let started = front.post("/v1/sessions", &world.solo()).await?;
    let session = started["session_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sessions/{session}/events");
    let (_, empty) = used(pid)?;

    let clients: Vec<_> = (1..count)
        .map(|_| tokio::spawn(drain(front.address(), path.clone(), bearer.clone())))
        .collect();
    let (subscriber, client) = (Arrivals::default(), Arrivals::default());
    let mut published = world
        .caller
        .nats
        .subscribe(format!("session.{session}"))
        .await?;
    let heard = Arc::clone(&subscriber);
    tokio::spawn(async move {
        while let Some(message) = published.next().await {
            note(&heard, &message.payload);
        }
    });
    let heard = Arc::clone(&client);
    let stream = listen(front.address(), &path, &bearer).await?;
    tokio::spawn(async move {
        let mut lines = BufReader::new(stream).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if let Some(data) = line.strip_prefix("data: ") {
                note(&heard, data.as_bytes());
            }
        }
    });
    connected(&front, count).await?;

    let before = used(pid)?;
    let began = Instant::now();
    front
        .post(
            &format!("/v1/sessions/{session}/prompt"),
            &serde_json::json!({"text": "go"}),
        )
        .await?;
    tokio::time::sleep(Duration::from_secs(15)).await;
    let (after, took) = (used(pid)?, began.elapsed());

    let (subscriber, client) = (subscriber.lock().unwrap(), client.lock().unwrap());
    let later = |(key, at): (&(u32, usize), &Instant)| {
        let subscribed = subscriber.get(key)?;
        Some(at.saturating_duration_since(*subscribed).as_secs_f64() * 1e3)
    };
    let mut delays: Vec<f64> = client.iter().filter_map(later).collect();
    delays.sort_by(f64::total_cmp);
    let at = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize];
    println!(
        "{count} clients, {} deltas in {:.1} s: later than a subscriber by {:.2} ms (p50), {:.2} ms (p99); \
         CPU {:.2} s; memory {} KiB empty, {} KiB connected, {} KiB at the end",
        delays.len(),
        took.as_secs_f64(),
        at(0.5),
        at(0.99),
        (after.0 - before.0).as_secs_f64(),
        empty,
        before.1,
        after.1,
    );
    clients.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(())
}
