//! Cases for long calls and for many calls at once: progress, cancelling, deadlines, and a repeated
//! call.

use std::time::Duration;

use futures_util::future::join_all;
use planck_common::{sidecar::IN_PROGRESS, subject::Topic};
use serde_json::{Value, json};

use super::{
    Finding,
    calls::{NOTHING_QUICK, is_always_slow, several_instances, slow},
    checker::{CheckRequest, Checker, FinalReply, ObservedEnd, PendingCall, ReplyPart},
    discovery::OfferedEndpoint,
};

/// How long the checker waits for a call to begin before it cancels or repeats the call.
pub const BEGIN: Duration = Duration::from_millis(700);

/// How long the checker waits for a message that must not come.
const QUIET: Duration = Duration::from_millis(400);

pub async fn cancel_call(checker: &Checker, call_id: &str) {
    let subject = checker.prefix().on(Topic::Cancel(&checker.plan.name));
    checker
        .publish(subject, json!({"v": 1, "call_id": call_id}).to_string())
        .await;
}

/// Returns a slow call for a case, or a skipped finding if there is none.
fn slow_call<'a>(
    checker: &'a Checker,
    case: &'static str,
) -> Result<(&'a OfferedEndpoint, Value), Vec<Finding>> {
    slow(checker, checker.patience() * 3).map_err(|why| vec![Finding::skipped(case, "", why)])
}

async fn begun(checker: &Checker, request: &CheckRequest) -> Result<PendingCall, String> {
    let mut line = checker
        .open(request)
        .await
        .map_err(|error| error.to_string())?;
    match line.begun(BEGIN).await {
        None => Ok(line),
        Some(end) => Err(format!(
            "a call that was to take its time ended at once: {}; name another with --slow TOOL=JSON",
            end.describe()
        )),
    }
}

/// Runs a slow call to its end, and checks every message that the sidecar sends for it.
pub async fn progress(checker: &Checker) -> Vec<Finding> {
    const CASE: &str = "progress";
    let (tool, args) = match slow(checker, Duration::from_secs(2)) {
        Ok(found) => found,
        Err(why) => return vec![Finding::skipped(CASE, "", why)],
    };
    let request = checker.call(tool, &args);
    let Ok(mut line) = checker.open(&request).await else {
        return vec![Finding::failed(
            CASE,
            &tool.name,
            "cannot communicate with NATS",
        )];
    };
    let end = line.end(checker.patience() * 4).await;
    let mut wrong = line.malformed.clone();
    match line.next(QUIET).await {
        Some(ReplyPart::Progress) => {
            wrong = Some("progress came after the answer; send the answer last".into())
        }
        Some(_) => wrong = Some("after the answer came another".into()),
        None => (),
    }
    let finding = match (wrong, end) {
        (Some(wrong), _) => Finding::failed(CASE, &tool.name, wrong),
        (None, ObservedEnd::FinalReply(FinalReply::Ok(_))) if line.progress == 0 => {
            Finding::skipped(CASE, &tool.name, "it reported none")
        }
        (None, ObservedEnd::FinalReply(FinalReply::Ok(_))) => Finding::passed(CASE, &tool.name),
        (None, other) => Finding::failed(
            CASE,
            &tool.name,
            format!("called with {args}, {}", other.describe()),
        ),
    };
    vec![finding]
}

pub async fn cancel(checker: &Checker) -> Vec<Finding> {
    const CASE: &str = "cancel";
    let (tool, args) = match slow_call(checker, CASE) {
        Ok(found) => found,
        Err(skipped) => return skipped,
    };
    let request = checker.call(tool, &args);
    let checked = async {
        let mut line = begun(checker, &request).await?;
        cancel_call(checker, &request.call_id).await;
        ended(checker, &request, &mut line, "it was cancelled").await
    };
    vec![Finding::of(CASE, &tool.name, checked.await)]
}

pub async fn deadline(checker: &Checker) -> Vec<Finding> {
    const CASE: &str = "deadline";
    let (tool, args) = match slow_call(checker, CASE) {
        Ok(found) => found,
        Err(skipped) => return skipped,
    };
    let mut request = checker.call(tool, &args);
    if let Some(body) = request.body.as_object_mut() {
        body.insert("deadline_ms".into(), json!(1500));
    }
    let checked = async {
        let mut line = begun(checker, &request).await?;
        ended(
            checker,
            &request,
            &mut line,
            "its deadline (`deadline_ms`: 1500) had passed",
        )
        .await
    };
    let checked = checked.await;
    cancel_call(checker, &request.call_id).await;
    vec![Finding::of(CASE, &tool.name, checked)]
}

/// Checks that a call has ended. A call has ended if it was answered, or if its id can be used
/// again. With several instances only an answer counts, because another instance may get the
/// repeated call.
async fn ended(
    checker: &Checker,
    request: &CheckRequest,
    line: &mut PendingCall,
    since: &str,
) -> Result<(), String> {
    match line.end(checker.patience()).await {
        ObservedEnd::FinalReply(_) => return Ok(()),
        ObservedEnd::Silent(_) => (),
        other @ (ObservedEnd::Malformed(_) | ObservedEnd::NoResponders) => {
            return Err(format!("after {since}, {}", other.describe()));
        }
    }
    let mut again = checker
        .open(request)
        .await
        .map_err(|error| error.to_string())?;
    let still = matches!(again.begun(BEGIN).await, Some(ObservedEnd::FinalReply(FinalReply::Error(text))) if text == IN_PROGRESS);
    cancel_call(checker, &request.call_id).await;
    if still || checker.instances.len() > 1 {
        return Err(format!(
            "{:?} after {since} the call was neither answered nor over",
            checker.patience()
        ));
    }
    Ok(())
}

pub async fn in_progress(checker: &Checker) -> Vec<Finding> {
    const CASE: &str = "in_progress";
    let (tool, args) = match slow_call(checker, CASE) {
        Ok(found) => found,
        Err(skipped) => return skipped,
    };
    if let Some(several) = several_instances(checker, CASE, tool) {
        return several;
    }
    let request = checker.call(tool, &args);
    let checked = async {
        let _first = begun(checker, &request).await?;
        let again = checker.ask(&request).await;
        match again.error() {
            Ok(text) if text == IN_PROGRESS => Ok(()),
            Ok(text) => Err(format!(
                "sent again while it ran, it was answered with the error `{text}`; it has to be `{IN_PROGRESS}`"
            )),
            Err(why) => Err(format!(
                "sent again while it ran, {why}; answer the error `{IN_PROGRESS}`, and do not run it twice"
            )),
        }
    };
    let checked = checked.await;
    cancel_call(checker, &request.call_id).await;
    vec![Finding::of(CASE, &tool.name, checked)]
}

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
