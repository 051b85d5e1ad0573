//! Checks a sidecar from outside against the cases of the protocol, for `planck sidecar conform`.
//! Each case is passed, failed or skipped. If it is not passed, a text helps the sidecar's author.

mod checker;
mod discovery;
mod sample;

mod calls;
mod compaction;
mod running;

mod lifecycle;

use std::time::Duration;

use planck_common::SidecarId;
use serde::Serialize;
use serde_json::Value;

use crate::Connection;

/// The sidecar to check, and how to check it.
#[derive(Debug, Clone)]
pub struct CheckPlan {
    pub name: SidecarId,
    pub connection: Connection,
    /// The tools with arguments for a valid call. A mutating tool is run only if it is named here,
    /// in `slow` or in `large`.
    pub args: Vec<(String, Value)>,
    /// A tool and the arguments of a call that runs for at least three times `patience`, unless it
    /// is cancelled.
    pub slow: Option<(String, Value)>,
    /// A tool and the arguments of a call whose answer is larger than the maximum message size of
    /// NATS.
    pub large: Option<(String, Value)>,
    /// The command that starts an instance. If it is empty, the sidecar has to be running, and the
    /// cases that need a start are skipped.
    pub command: Vec<String>,
    /// The maximum time for an expected message. Slow calls and large answers get three or four
    /// times as long.
    pub patience: Duration,
    /// The maximum time from the command's start until the sidecar answers on `$SRV.INFO`.
    pub start_within: Duration,
    /// The cases to report; all cases if empty. The checker calls each quick tool once in any case.
    pub only: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CaseVerdict {
    Passed,
    Failed,
    Skipped,
}

/// The result of one case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub case: &'static str,
    /// The tool or compactor that was checked, or empty if the finding is not about a certain one.
    pub on: String,
    pub verdict: CaseVerdict,
    /// Why the case failed or was skipped, and what to do; empty if it passed.
    pub why: String,
}

/// The reason why the check could not start or continue.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Connection(#[from] crate::Error),
    #[error("cannot communicate with NATS: {0}")]
    Nats(String),
    #[error(
        "no sidecar `{0}` answers on $SRV.INFO.{0}; start it, or name the command that does after `--`"
    )]
    Absent(SidecarId),
    #[error("{0}")]
    Command(String),
}

/// Every case: its name, and what it requires.
pub const CASES: &[(&str, &str)] = &[
    (
        "hello",
        "an instance that starts publishes `hello` on `sidecar.<sidecar>`",
    ),
    (
        "discovery",
        "it answers `$SRV.INFO` as a service with metadata `planck` = `1`, all instances alike",
    ),
    (
        "metadata",
        "kind, description, parameters, effect and timeout of each endpoint can be read",
    ),
    (
        "subject",
        "each endpoint is on `tool.<sidecar>.<tool>` or `compact.<sidecar>.<compactor>`",
    ),
    ("queue_group", "the queue group is the sidecar's name"),
    ("good_call", "a good call is answered with `ok`"),
    ("one_answer", "a call is answered once, and nothing follows"),
    (
        "unknown_fields",
        "a request may have keys that this version does not know",
    ),
    (
        "bad_args",
        "arguments that do not fit the schema are answered with `error`",
    ),
    (
        "malformed",
        "a request that is not a JSON object, or lacks a required key, is answered with `error`",
    ),
    (
        "stale_epoch",
        "a call of a lower epoch than the agent's latest is refused",
    ),
    (
        "large_answer",
        "an answer that NATS cannot carry becomes an `error`",
    ),
    (
        "concurrency",
        "concurrent calls are answered each with its own result",
    ),
    ("overlap", "a quick call is answered while a slow one runs"),
    (
        "progress",
        "progress has a message, a percent of 0 to 100 or none, and comes before the answer",
    ),
    ("cancel", "a cancelled call ends"),
    ("deadline", "a call ends when its deadline has passed"),
    (
        "in_progress",
        "a call that is already running is answered `in progress`, and not run twice",
    ),
    (
        "compaction",
        "a summary is shorter than what it replaces, and no result loses its call",
    ),
    (
        "compaction_short",
        "a short conversation is skipped, or made shorter",
    ),
    (
        "crash",
        "killed during a call and started again, it offers the same and answers again",
    ),
    ("instances", "two instances share the calls"),
    (
        "drain",
        "on SIGTERM it publishes `bye`, finishes the running calls, loses no call, and ends with status 0",
    ),
];

impl Finding {
    fn passed(case: &'static str, on: &str) -> Self {
        Self {
            case,
            on: on.into(),
            verdict: CaseVerdict::Passed,
            why: String::new(),
        }
    }

    fn failed(case: &'static str, on: &str, why: impl Into<String>) -> Self {
        Self {
            case,
            on: on.into(),
            verdict: CaseVerdict::Failed,
            why: why.into(),
        }
    }

    fn skipped(case: &'static str, on: &str, why: impl Into<String>) -> Self {
        Self {
            case,
            on: on.into(),
            verdict: CaseVerdict::Skipped,
            why: why.into(),
        }
    }

    /// Returns a finding that is passed, or failed with the text of the error.
    fn of(case: &'static str, on: &str, checked: Result<(), String>) -> Self {
        match checked {
            Ok(()) => Self::passed(case, on),
            Err(why) => Self::failed(case, on, why),
        }
    }
}

/// Runs the cases of the plan, and passes each finding to `tell` as soon as it is known. Ends early
/// if an instance that the checker did not start is gone.
///
/// # Errors
/// Returns an error if NATS cannot be reached, if the sidecar does not run and the plan has no
/// command, or if the command does not start an instance or the sidecar already runs.
pub async fn run(
    plan: CheckPlan,
    tell: impl FnMut(&Finding) + Send,
) -> Result<Vec<Finding>, CheckError> {
    let mut report = CaseReport {
        tell,
        only: plan.only.clone(),
        findings: Vec::new(),
    };
    let (mut checker, mut child) = lifecycle::begin(plan, &mut report).await?;
    report.add(discovery::check(&checker));
    let good = calls::good_calls(&checker).await;
    report.add(good.findings);
    checker.quick = good.works;
    macro_rules! cases {
        ($($case:literal $check:path),+) => {$(
            if report.wants($case) {
                report.add($check(&checker).await);
                report.add(lifecycle::check_alive(&mut checker, &mut child, $case).await?);
                if checker.instances.is_empty() {
                    return Ok(report.findings);
                }
            }
        )+};
    }
    cases!("unknown_fields" calls::unknown_fields, "bad_args" calls::bad_args, "malformed" calls::malformed);
    cases!("stale_epoch" calls::stale_epoch, "large_answer" calls::large_answer, "concurrency" running::concurrency);
    cases!("overlap" running::quick_beside_slow, "progress" running::progress, "cancel" running::cancel);
    cases!("deadline" running::deadline, "in_progress" running::in_progress);
    cases!("compaction" compaction::long, "compaction_short" compaction::short);
    match child {
        Some(child) => lifecycle::check(&mut checker, child, &mut report).await?,
        None => report.add(lifecycle::skipped()),
    }
    Ok(report.findings)
}

struct CaseReport<T> {
    tell: T,
    /// The cases to report; all cases if empty.
    only: Vec<String>,
    findings: Vec<Finding>,
}

impl<T: FnMut(&Finding)> CaseReport<T> {
    fn wants(&self, case: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == case)
    }

    fn add(&mut self, mut findings: Vec<Finding>) {
        findings.retain(|finding| self.wants(finding.case));
        findings.iter().for_each(&mut self.tell);
        self.findings.extend(findings);
    }
}
