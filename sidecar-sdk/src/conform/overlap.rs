//! Cases with many calls at once.

use futures_util::future::join_all;
use serde_json::Value;

use super::{
    Finding,
    calls::{NOTHING_QUICK, is_always_slow, slow},
    checker::Checker,
    discovery::OfferedEndpoint,
    running::{BEGIN, cancel_call},
};

/// The number of concurrent calls.
const AT_ONCE: u32 = 16;

pub async fn concurrency(checker: &Checker) -> Vec<Finding> {
    const CASE: &str = "concurrency";
    let tools = checker
        .tools()
        .filter(|tool| tool.effect.may_run_again() && !is_always_slow(checker, tool));
    let mut reasons = Vec::new();
    for tool in tools {
        match distinct(checker, tool).await {
            Ok(expected) => {
                return vec![Finding::of(
                    CASE,
                    &tool.name,
                    own_results(checker, tool, expected).await,
                )];
            }
            Err(why) => reasons.push(format!("{}: {why}", tool.name)),
        }
    }
    let why = if reasons.is_empty() {
        "it has no tool that may be called often".into()
    } else {
        reasons.join("; ")
    };
    vec![Finding::skipped(CASE, "", why)]
}

/// Calls a tool with different arguments, one call at a time, and returns the arguments with their
/// results. Returns an error if a call fails, if equal calls have different results, or if the
/// results do not depend on the arguments.
async fn distinct(
    checker: &Checker,
    tool: &OfferedEndpoint,
) -> Result<Vec<(Value, String)>, String> {
    if checker.plan.args.iter().any(|(name, _)| *name == tool.name) {
        return Err("its arguments are given, and so all the same".into());
    }
    let mut expected = Vec::new();
    for nth in 0..AT_ONCE {
        let args = checker.arguments(tool, nth)?;
        let result = checker.ask(&checker.call(tool, &args)).await.ok()?;
        expected.push((args, result));
    }
    let first = expected.first().ok_or("nothing to call")?;
    if checker.ask(&checker.call(tool, &first.0)).await.ok()? != first.1 {
        return Err("its results differ from call to call".into());
    }
    let mut results: Vec<&String> = expected.iter().map(|(_, result)| result).collect();
    results.sort();
    results.dedup();
    if results.len() < 2 {
        Err("its results do not depend on its arguments".into())
    } else {
        Ok(expected)
    }
}

async fn own_results(
    checker: &Checker,
    tool: &OfferedEndpoint,
    expected: Vec<(Value, String)>,
) -> Result<(), String> {
    let calls = expected
        .iter()
        .map(|(args, _)| async { checker.ask(&checker.call(tool, args)).await });
    for (end, (args, result)) in join_all(calls).await.into_iter().zip(&expected) {
        let said = end
            .ok()
            .map_err(|why| format!("of {AT_ONCE} calls at once, for {args}, {why}"))?;
        if said != *result {
            return Err(format!(
                "of {AT_ONCE} calls at once, {args} was answered `{said}`, and alone `{result}`; keep no call's data in common"
            ));
        }
    }
    Ok(())
}

pub async fn quick_beside_slow(checker: &Checker) -> Vec<Finding> {
    const CASE: &str = "overlap";
    let Some((tool, args)) = &checker.quick else {
        return vec![Finding::skipped(CASE, "", NOTHING_QUICK)];
    };
    let (slow, slow_args) = match slow(checker, checker.patience() * 3) {
        Ok(found) => found,
        Err(why) => return vec![Finding::skipped(CASE, &tool.name, why)],
    };
    // The number of slow calls is twice that of the instances, so that each instance probably gets
    // one.
    let requests: Vec<_> = (0..checker.instances.len() * 2)
        .map(|_| checker.call(slow, &slow_args))
        .collect();
    let checked = async {
        let mut lines = Vec::new();
        for request in &requests {
            lines.push(
                checker
                    .open(request)
                    .await
                    .map_err(|error| error.to_string())?,
            );
        }
        for line in &mut lines {
            let _ended = line.begun(BEGIN).await;
        }
        let answered = checker.ask(&checker.call(tool, args)).await.ok();
        answered.map(drop).map_err(|why| {
            format!(
                "while calls of {} ran, {why}; give each request a task of its own",
                slow.name
            )
        })
    };
    let checked = checked.await;
    for request in &requests {
        cancel_call(checker, &request.call_id).await;
    }
    vec![Finding::of(CASE, &tool.name, checked)]
}
