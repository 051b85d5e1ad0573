//! Prints the medians of a benchmark as a table.

use super::measure::BenchLine;
use crate::cli::output::warn;

#[derive(Debug, Default)]
pub struct BenchReport {
    lines: Vec<BenchLine>,
}

impl BenchReport {
    pub fn add(&mut self, line: BenchLine) {
        self.lines.push(line);
    }

    /// Prints a row for each workload, with the bare loop's median if it ran too.
    pub fn print(&self) {
        let mut named: Vec<&str> = Vec::new();
        for line in &self.lines {
            if !named.contains(&line.workload.as_str()) {
                named.push(&line.workload);
            }
        }
        warn(&format!(
            "{:<8} {:>22} {:>10} {:>7} {:>10} {:>9} {:>9}",
            "", "cpu", "bare", "ratio", "nats", "p99 ms", "peak MiB"
        ));
        for workload in named {
            self.row(workload);
        }
    }

    fn row(&self, workload: &str) {
        let Some(first) = self.lines.iter().find(|line| line.workload == workload) else {
            return;
        };
        let (count, unit) = unit(first);
        let each = |value: Option<f64>| value.map(|seconds| seconds * 1e3 / count);
        let own = each(self.median(workload, false, |line| line.cpu_s)).unwrap_or_default();
        let bare = each(self.median(workload, true, |line| line.cpu_s));
        let nats = each(self.median(workload, false, |line| line.aux_cpu_s)).unwrap_or_default();
        let p99 = self
            .median(workload, false, |line| line.p99_ms)
            .unwrap_or_default();
        let peak = self
            .median(workload, false, |line| line.peak_kib as f64)
            .unwrap_or_default()
            / 1024.0;
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
        };
        let ratio = number(bare.map(|bare| own / bare), 1);
        let cost = format!("{own:.3} ms {unit}");
        warn(&format!(
            "{workload:<8} {cost:>22} {:>10} {ratio:>7} {nats:>10.3} {p99:>9.1} {peak:>9.1}",
            number(bare, 3)
        ));
        if let Some(idle) = first.idle {
            let of = |kib: u64| kib as f64 / 1024.0 * 1_000.0 / idle.agents as f64;
            warn(&format!(
                "{:<8} per 1,000 agents: {:.1} MiB loaded, {:.1} MiB parked",
                "",
                of(idle.loaded_kib),
                of(idle.parked_kib)
            ));
        }
    }

    fn median(&self, workload: &str, bare: bool, of: impl Fn(&BenchLine) -> f64) -> Option<f64> {
        let chosen = self
            .lines
            .iter()
            .filter(|line| line.workload == workload && line.bare == bare);
        let mut values: Vec<f64> = chosen.map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }
}

/// Returns the number by which a workload's cost is divided, and the unit of the quotient.
fn unit(line: &BenchLine) -> (f64, &'static str) {
    let requests = |calls: usize| (line.tools / calls) as f64;
    match line.workload.as_str() {
        "start" => (1.0, "each"),
        "burst" | "stream" => (line.deltas as f64 / 1_000.0, "/1k deltas"),
        "rounds" | "long" => (requests(1), "/round"),
        "wide" => (requests(8), "/round"),
        _ => (line.turns.max(1) as f64, "/turn"),
    }
}
