//! Cases for long calls: progress, cancelling, deadlines, and a repeated call.

use std::time::Duration;

use planck_common::{sidecar::IN_PROGRESS, subject::Topic};
use serde_json::{Value, json};

use super::{
    Finding,
    calls::{several_instances, slow},
    checker::{CheckRequest, Checker, ObservedEnd, PendingCall},
    discovery::OfferedEndpoint,
    wire::{FinalReply, ReplyPart},
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
