//! Runs the checker on a program.

use std::time::Duration;

use planck_common::SidecarId;
use planck_sidecar::{
    Connection,
    conform::{self, CaseVerdict, CheckError, CheckPlan, Finding},
};

/// Returns the plan to check a program that the checker starts, without options.
pub fn plan(url: &str, name: &str, command: &[&str]) -> CheckPlan {
    CheckPlan {
        name: SidecarId::parse(name).unwrap(),
        connection: Connection::to(url),
        args: Vec::new(),
        slow: None,
        large: None,
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        // This is longer than the checker's default, because other tests run on the machine at the
        // same time.
        patience: Duration::from_secs(6),
        start_within: Duration::from_secs(60),
        only: Vec::new(),
    }
}

pub async fn check(plan: CheckPlan) -> Result<Vec<Finding>, CheckError> {
    conform::run(plan, |finding| println!("{finding:?}")).await
}

/// Returns the findings with this verdict, as text.
pub fn with(findings: &[Finding], verdict: CaseVerdict) -> Vec<String> {
    let fit = findings.iter().filter(|finding| finding.verdict == verdict);
    fit.map(|finding| format!("{} {}: {}", finding.case, finding.on, finding.why))
        .collect()
}
