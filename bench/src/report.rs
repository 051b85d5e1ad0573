//! Prints the results of a benchmark as a table.

use super::measure::{BenchLine, Contender};
use crate::warn;

#[derive(Debug, Default)]
pub struct BenchReport {
    lines: Vec<BenchLine>,
    /// The load of the machine before each repetition.
    loads: Vec<f64>,
}

/// The minimum, the median and the maximum of some values.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        Some(Self {
            least: *values.first()?,
            median: *values.get(values.len() / 2)?,
            most: *values.last()?,
        })
    }

    fn shown(spread: Option<Self>) -> String {
        spread.map_or_else(
            || "-".into(),
            |Self {
                 least,
                 median,
                 most,
             }| format!("{least:.3}/{median:.3}/{most:.3}"),
        )
    }
}

impl BenchReport {
    /// Adds a repetition, and the load of the machine before it.
    pub fn add(&mut self, line: BenchLine, load: f64) {
        self.lines.push(line);
        self.loads.push(load);
    }

    /// Prints a row for each workload with CPU times in milliseconds per unit of its work. `turns`
    /// is the time of the turns, `all` includes the start of their sessions, and `bare` is the time
    /// of the bare loop. Each has its minimum, median and maximum. The ratios compare the medians
    /// with the bare loop's.
    pub fn print(&self) {
        let mut named: Vec<&str> = Vec::new();
        for line in &self.lines {
            if !named.contains(&line.workload.as_str()) {
                named.push(&line.workload);
            }
        }
        let (least, most) = self
            .loads
            .iter()
            .fold((f64::MAX, 0.0_f64), |(least, most), load| {
                (least.min(*load), most.max(*load))
            });
        warn(&format!(
            "CPU in ms as minimum/median/maximum; load of the machine {least:.1} to {most:.1}"
        ));
        warn(&format!(
            "{:<15} {:<10} {:>20} {:>20} {:>20} {:>6} {:>6} {:>7} {:>8} {:>8} {:>9}",
            "",
            "per",
            "turns",
            "all",
            "bare",
            "turns",
            "all",
            "nats",
            "p50 ms",
            "p99 ms",
            "peak MiB"
        ));
        for workload in named {
            self.row(workload);
        }
    }

    fn row(&self, workload: &str) {
        let Some(first) = self.lines.iter().find(|line| line.workload == workload) else {
            return;
        };
        let each = |line: &BenchLine, seconds: f64| seconds * 1e3 / unit(line).0;
        let own = |of: fn(&BenchLine) -> f64| {
            Spread::of(self.values(workload, Contender::Node, |line| each(line, of(line))))
        };
        let turns = own(|line| line.cpu_s);
        let all = own(|line| line.cpu_s + line.start_cpu_s);
        let bare =
            Spread::of(self.values(workload, Contender::Bare, |line| each(line, line.cpu_s)));
        let ratio = |own: Option<Spread>| match (own, bare) {
            (Some(own), Some(bare)) => format!("{:.1}", own.median / bare.median),
            (Some(_) | None, Some(_) | None) => "-".into(),
        };
        let median = |of: fn(&BenchLine) -> f64| {
            Spread::of(self.values(workload, Contender::Node, of))
                .map_or(0.0, |spread| spread.median)
        };
        let nats = own(|line| line.aux_cpu_s).map_or(0.0, |spread| spread.median);
        warn(&format!(
            "{workload:<15} {:<10} {:>20} {:>20} {:>20} {:>6} {:>6} {nats:>7.3} {:>8.1} {:>8.1} {:>9.1}",
            unit(first).1,
            Spread::shown(turns),
            Spread::shown(all),
            Spread::shown(bare),
            ratio(turns),
            ratio(all),
            median(|line| line.p50_ms),
            median(|line| line.p99_ms),
            median(|line| line.peak_kib as f64) / 1024.0,
        ));
        if let Some(idle) = first.idle {
            let of = |kib: u64| kib as f64 / 1024.0 * 1_000.0 / idle.agents as f64;
            warn(&format!(
                "{:<15} per 1,000 agents: {:.1} MiB loaded, {:.1} MiB parked",
                "",
                of(idle.loaded_kib),
                of(idle.parked_kib)
            ));
        }
    }

    fn values(
        &self,
        workload: &str,
        contender: Contender,
        of: impl Fn(&BenchLine) -> f64,
    ) -> Vec<f64> {
        let chosen = self
            .lines
            .iter()
            .filter(|line| line.workload == workload && line.contender == contender);
        chosen.map(of).collect()
    }
}

/// Returns the number by which a workload's cost is divided, and the unit of the quotient.
fn unit(line: &BenchLine) -> (f64, &'static str) {
    let requests = |calls: usize| (line.tools / calls) as f64;
    match line.workload.as_str() {
        "start" => (1.0, "process"),
        "burst" | "stream" | "stream-sessions" => (line.deltas as f64 / 1_000.0, "1k deltas"),
        "rounds" | "long" => (requests(1), "round"),
        "wide" => (requests(8), "round"),
        _ => (line.turns.max(1) as f64, "turn"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_extremes_and_the_median() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]);
        assert_eq!(Spread::shown(spread), "1.000/2.000/3.000");
        assert_eq!(Spread::shown(Spread::of(Vec::new())), "-");
    }
}
