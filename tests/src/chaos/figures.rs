//! The figures of a run, as people and programs read them.

use std::{fmt, time::Duration};

use super::{faults::Failover, judge::Found};

#[derive(Debug, Clone)]
pub struct Figures {
    pub failovers: Vec<Failover>,
    pub found: Found,
}

impl Figures {
    pub fn new(failovers: Vec<Failover>, found: Found) -> Self {
        Self { failovers, found }
    }

    /// The time under which this share of failovers stayed.
    pub fn resumed(&self, share: f64) -> Option<Duration> {
        quantile(self.failovers.iter().map(|failover| failover.resumed), share)
    }

    /// The time under which this share of deaths was found out.
    pub fn detected(&self, share: f64) -> Option<Duration> {
        quantile(self.failovers.iter().filter_map(|failover| failover.detected), share)
    }
}

fn quantile(times: impl Iterator<Item = Duration>, share: f64) -> Option<Duration> {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    let last = times.len().checked_sub(1)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let at = (last as f64 * share).ceil() as usize;
    times.get(at).copied()
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |time: Option<Duration>| time.map_or("-".to_owned(), |time| format!("{:.2} s", time.as_secs_f64()));
        let row = |of: &dyn Fn(f64) -> Option<Duration>| [0.0, 0.5, 0.99, 1.0].map(|share| shown(of(share))).join("  ");
        writeln!(f, "                 min     p50     p99     max")?;
        writeln!(f, "detected      {}", row(&|share| self.detected(share)))?;
        writeln!(f, "gone on       {}", row(&|share| self.resumed(share)))?;
        let Found { prompts, events, executions, interrupted, convicted } = &self.found;
        writeln!(f, "nodes ended   {}, convicted {convicted}", self.failovers.len())?;
        writeln!(f, "prompts       {prompts} acknowledged, each with one end")?;
        writeln!(f, "events        {events} in the logs, each told once to the attached clients")?;
        write!(f, "tools         {executions} ran, none twice; {interrupted} calls answered as interrupted")
    }
}
