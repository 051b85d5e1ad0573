//! The figures of a run, for people and programs.

use std::{fmt, time::Duration};

use super::{checks::Found, faults::Failover, team::Round};

#[derive(Debug, Clone)]
pub struct Figures {
    pub failovers: Vec<Failover>,
    /// The number of faults that stopped or killed a nats-server. No node may end because of them.
    pub disturbed: u32,
    pub found: Found,
}

impl Figures {
    /// Returns the time within which this share of failovers completed, or `None` if there was no
    /// failover.
    pub fn resumed(&self, share: f64) -> Option<Duration> {
        quantile(
            self.failovers.iter().map(|failover| failover.resumed),
            share,
        )
    }

    /// Returns the time within which this share of deaths was detected, or `None` if no death was
    /// detected.
    pub fn detected(&self, share: f64) -> Option<Duration> {
        quantile(
            self.failovers
                .iter()
                .filter_map(|failover| failover.detected),
            share,
        )
    }
}

fn quantile(times: impl Iterator<Item = Duration>, share: f64) -> Option<Duration> {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    let last = times.len().checked_sub(1)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    let at = (last as f64 * share).ceil() as usize;
    times.get(at).copied()
}

const HEAD: &str = "                 min     p50     p99     max";

fn row(of: impl Fn(f64) -> Option<Duration>) -> String {
    let shown = |time: Option<Duration>| {
        time.map_or("-".to_owned(), |time| {
            format!("{:.2} s", time.as_secs_f64())
        })
    };
    [0.0, 0.5, 0.99, 1.0]
        .map(|share| shown(of(share)))
        .join("  ")
}

/// Returns a table of how long the teams' rounds took.
pub fn of_teams(rounds: &[Round]) -> String {
    let of = |what: fn(&Round) -> Duration| row(|share| quantile(rounds.iter().map(what), share));
    let lines = [
        HEAD.to_owned(),
        format!("spawned       {}", of(|round| round.spawned)),
        format!("detected      {}", of(|round| round.detected)),
        format!("then stopped  {}", of(|round| round.stopped)),
        format!(
            "teams         {}, none left a process or a model call behind",
            rounds.len()
        ),
    ];
    lines.join("\n")
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}")?;
        writeln!(f, "detected      {}", row(|share| self.detected(share)))?;
        writeln!(f, "gone on       {}", row(|share| self.resumed(share)))?;
        let Found {
            prompts,
            events,
            executions,
            interrupted,
            declared_dead,
            wrongly,
        } = &self.found;
        writeln!(
            f,
            "nodes ended   {}, declared dead {declared_dead}; {wrongly} that nothing was done to",
            self.failovers.len()
        )?;
        writeln!(f, "NATS          {} faults of it alone", self.disturbed)?;
        writeln!(f, "prompts       {prompts} acknowledged, each with one end")?;
        writeln!(
            f,
            "events        {events} in the logs, each told once to the attached clients"
        )?;
        write!(
            f,
            "tools         {executions} ran, none twice; {interrupted} calls answered as interrupted; 0 processes left behind"
        )
    }
}
