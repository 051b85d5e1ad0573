//! Measures calls of a tool that are made in several ways in turn, and compares their times.

use std::time::{Duration, Instant};

use anyhow::Result;
use async_trait::async_trait;
use serde::Serialize;
use tokio::task::JoinSet;

use super::measure::quantile;
use crate::{say, warn};

/// The numbers of concurrent callers that are measured. Each caller starts its next call as soon as
/// it has an answer.
const CALLERS: [usize; 2] = [1, 64];

/// The number of calls of each way that precede the measurements with the same number of callers.
const WARM_UP: usize = 200;

/// One of the concurrent callers of a tool.
#[async_trait]
pub trait ToolCaller: Send {
    async fn call(&mut self) -> Result<()>;
}

/// A way to call a tool.
pub struct Way<'a> {
    name: &'static str,
    /// Creates one of the concurrent callers.
    caller: Box<dyn Fn() -> Box<dyn ToolCaller> + 'a>,
}

impl<'a> Way<'a> {
    pub fn new<C: ToolCaller + 'static>(name: &'static str, caller: impl Fn() -> C + 'a) -> Self {
        Self {
            name,
            caller: Box::new(move || Box::new(caller())),
        }
    }
}

/// One measurement, as it is printed.
#[derive(Debug, Clone, Serialize)]
struct Timed {
    way: &'static str,
    callers: usize,
    calls: usize,
    us_per_call: f64,
    p50_us: f64,
    p99_us: f64,
}

/// Measures the ways in turn, `repeat` times, and prints each measurement. At the end prints the
/// medians as a table. A ratio compares a way's time per call with that of the first way.
pub async fn compare(ways: &[Way<'_>], calls: usize, repeat: u32) -> Result<()> {
    let mut timed = Vec::new();
    for callers in CALLERS {
        for way in ways {
            time(way, callers, WARM_UP).await?;
        }
        for _ in 0..repeat {
            for way in ways {
                let line = time(way, callers, calls).await?;
                say(&(serde_json::to_string(&line)? + "\n"))?;
                timed.push(line);
            }
        }
    }
    report(ways, &timed);
    Ok(())
}

/// Distributes the calls among concurrent callers. Returns the total time divided by the number of
/// calls, and the median and the 99th percentile of the time of one call.
async fn time(way: &Way<'_>, callers: usize, calls: usize) -> Result<Timed> {
    let (mut working, began) = (JoinSet::new(), Instant::now());
    for _ in 0..callers {
        working.spawn(calls_of((way.caller)(), calls / callers));
    }
    let mut times: Vec<Duration> = Vec::with_capacity(calls);
    while let Some(done) = working.join_next().await {
        times.extend(done??);
    }
    let elapsed = began.elapsed();
    times.sort();
    let calls = times.len().max(1);
    let us = |share| quantile(&times, share) * 1e3;
    Ok(Timed {
        way: way.name,
        callers,
        calls,
        us_per_call: elapsed.as_secs_f64() * 1e6 / calls as f64,
        p50_us: us(0.5),
        p99_us: us(0.99),
    })
}

async fn calls_of(mut caller: Box<dyn ToolCaller>, calls: usize) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let began = Instant::now();
        caller.call().await?;
        times.push(began.elapsed());
    }
    Ok(times)
}

fn report(ways: &[Way<'_>], timed: &[Timed]) {
    warn(&format!(
        "{:>8} {:>9} {:>10} {:>7} {:>10} {:>10}",
        "callers", "way", "µs/call", "ratio", "p50 µs", "p99 µs"
    ));
    for callers in CALLERS {
        let median = |way: &str, of: fn(&Timed) -> f64| {
            let chosen = timed
                .iter()
                .filter(|timed| timed.way == way && timed.callers == callers);
            let mut values: Vec<f64> = chosen.map(of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        let time = |way: &Way<'_>| median(way.name, |timed| timed.us_per_call);
        let first = ways.first().map(time).unwrap_or_default();
        for way in ways {
            let (p50, p99) = (
                median(way.name, |timed| timed.p50_us),
                median(way.name, |timed| timed.p99_us),
            );
            warn(&format!(
                "{callers:>8} {:>9} {:>10.1} {:>7.2} {p50:>10.0} {p99:>10.0}",
                way.name,
                time(way),
                time(way) / first
            ));
        }
    }
}
