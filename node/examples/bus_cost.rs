//! Measures the CPU time that publishing costs when events arrive as fast as models produce them.
//! `bus_cost [window_ms] [events_per_second] [seconds]` prints one JSON line.

use std::{env, fs, time::Duration};

use anyhow::{Context, Result};
use bytes::Bytes;
use nix::sys::resource::{UsageWho, getrusage};
use planck_bus::{Bus, NatsBus, NatsOptions, OutboxLimits, Published};
use planck_common::{AgentId, SessionId};
use planck_tests::nats::NatsServer;
use tokio::time::{Instant, MissedTickBehavior, interval};

const AGENTS: usize = 100;
const NATS_SETTLES: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut args = env::args().skip(1).map(|arg| arg.parse::<f64>());
    let mut next = |default: f64| {
        args.next()
            .transpose()
            .map(|value| value.unwrap_or(default))
    };
    let (window_ms, rate, seconds) = (next(5.0)?, next(5000.0)?, next(5.0)?);
    let server = NatsServer::start()?;
    let limits = OutboxLimits {
        window: Duration::from_secs_f64(window_ms / 1000.0),
        ..OutboxLimits::default()
    };
    let bus = NatsBus::connect(NatsOptions {
        limits,
        ..NatsOptions::new(server.url())
    })
    .await?;
    tokio::time::sleep(NATS_SETTLES).await;

    let pid = server.pid().context("no server")?;
    let (own, servers) = (own_cpu()?, server_cpu(pid)?);
    let events = publish(&bus, rate, Duration::from_secs_f64(seconds)).await?;
    bus.flush(Duration::from_secs(5)).await?;
    let (own, servers) = (own_cpu()? - own, server_cpu(pid)? - servers);
    let each = |seconds: f64| seconds * 1e6 / f64::from(events);
    println!(
        r#"{{"window_ms":{window_ms},"events":{events},"own_us_per_event":{:.2},"server_us_per_event":{:.2},"forgotten":{}}}"#,
        each(own),
        each(servers),
        bus.dropped()
    );
    Ok(())
}

/// Publishes events. Each agent publishes at times of its own, as with real models.
async fn publish(bus: &NatsBus, rate: f64, time: Duration) -> Result<u32> {
    let payload = Bytes::from(vec![b'x'; 350]);
    let ids: Vec<(SessionId, AgentId)> = (0..AGENTS)
        .map(|n| Ok((format!("session{n}").parse()?, format!("agent{n}").parse()?)))
        .collect::<Result<_>>()?;
    let mut tick = interval(Duration::from_millis(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (began, mut events) = (Instant::now(), 0);
    while began.elapsed() < time {
        tick.tick().await;
        while f64::from(events) < rate * began.elapsed().as_secs_f64() {
            let (session_id, agent_id) = ids
                .get(events as usize % AGENTS)
                .context("no agent")?
                .clone();
            bus.publish_event(Published {
                session_id,
                agent_id,
                seq: None,
                payload: payload.clone(),
            });
            events += 1;
            tokio::task::yield_now().await;
        }
    }
    Ok(events)
}

fn own_cpu() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Returns the CPU time of all threads of the server, which the kernel counts in ticks of 10 ms.
fn server_cpu(pid: i32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = stat.rsplit(')').next().context("no stat")?;
    let ticks: Vec<f64> = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / 100.0)
}
