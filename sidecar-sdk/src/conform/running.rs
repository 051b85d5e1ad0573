//! Cases for long calls: progress, cancelling, deadlines, and a repeated call.

use std::time::Duration;

use planck_common::{sidecar::IN_PROGRESS, subject::Topic};
use serde_json::{Value, json};

use super::{
    Finding,
    bench::{Bench, End, Line, Request},
    calls::{several_instances, slow},
    discovery::Offer,
    wire::{Piece, Said},
};

/// How long the checker waits for a call to begin before it cancels or repeats the call.
pub const BEGIN: Duration = Duration::from_millis(700);

/// How long the checker waits for a message that must not come.
const QUIET: Duration = Duration::from_millis(400);

pub async fn cancel_call(bench: &Bench, call_id: &str) {
    let subject = bench.prefix().on(Topic::Cancel(&bench.plan.name));
    bench
        .publish(subject, json!({"v": 1, "call_id": call_id}).to_string())
        .await;
}

/// Returns a slow call for a case, or the finding that there is none.
fn slow_call<'a>(bench: &'a Bench, case: &'static str) -> Result<(&'a Offer, Value), Vec<Finding>> {
    slow(bench, bench.patience() * 3).map_err(|why| vec![Finding::skipped(case, "", why)])
}

async fn begun(bench: &Bench, request: &Request) -> Result<Line, String> {
    let mut line = bench
        .open(request)
        .await
        .map_err(|error| error.to_string())?;
    match line.begun(BEGIN).await {
        None => Ok(line),
        Some(end) => Err(format!(
            "a call that was to take its time ended at once: {}; name another with --slow TOOL=JSON",
            end.told()
        )),
    }
}

/// Runs a short call to its end, and checks everything that it sends.
pub async fn progress(bench: &Bench) -> Vec<Finding> {
    const CASE: &str = "progress";
    let (tool, args) = match slow(bench, Duration::from_secs(2)) {
        Ok(found) => found,
        Err(why) => return vec![Finding::skipped(CASE, "", why)],
    };
    let request = bench.call(tool, &args);
    let Ok(mut line) = bench.open(&request).await else {
        return vec![Finding::failed(
            CASE,
            &tool.name,
            "cannot communicate with NATS",
        )];
    };
    let end = line.end(bench.patience() * 4).await;
    let mut wrong = line.malformed.clone();
    match line.next(QUIET).await {
        Some(Piece::Progress) => {
            wrong = Some("progress came after the answer; send the answer last".into())
        }
        Some(_) => wrong = Some("after the answer came another".into()),
        None => (),
    }
    let finding = match (wrong, end) {
        (Some(wrong), _) => Finding::failed(CASE, &tool.name, wrong),
        (None, End::Said(Said::Ok(_))) if line.progress == 0 => {
            Finding::skipped(CASE, &tool.name, "it reported none")
        }
        (None, End::Said(Said::Ok(_))) => Finding::passed(CASE, &tool.name),
        (None, other) => Finding::failed(
            CASE,
            &tool.name,
            format!("called with {args}, {}", other.told()),
        ),
    };
    vec![finding]
}

pub async fn cancel(bench: &Bench) -> Vec<Finding> {
    const CASE: &str = "cancel";
    let (tool, args) = match slow_call(bench, CASE) {
        Ok(found) => found,
        Err(skipped) => return skipped,
    };
    let request = bench.call(tool, &args);
    let checked = async {
        let mut line = begun(bench, &request).await?;
        cancel_call(bench, &request.call_id).await;
        ended(bench, &request, &mut line, "it was cancelled").await
    };
    vec![Finding::of(CASE, &tool.name, checked.await)]
}

pub async fn deadline(bench: &Bench) -> Vec<Finding> {
    const CASE: &str = "deadline";
    let (tool, args) = match slow_call(bench, CASE) {
        Ok(found) => found,
        Err(skipped) => return skipped,
    };
    let mut request = bench.call(tool, &args);
    if let Some(body) = request.body.as_object_mut() {
        body.insert("deadline_ms".into(), json!(1500));
    }
    let checked = async {
        let mut line = begun(bench, &request).await?;
        ended(
            bench,
            &request,
            &mut line,
            "its deadline (`deadline_ms`: 1500) had passed",
        )
        .await
    };
    let checked = checked.await;
    cancel_call(bench, &request.call_id).await;
    vec![Finding::of(CASE, &tool.name, checked)]
}

/// Checks that a call has ended: it was answered, or, if it ends without an answer, its id is free
/// again.
async fn ended(
    bench: &Bench,
    request: &Request,
    line: &mut Line,
    since: &str,
) -> Result<(), String> {
    match line.end(bench.patience()).await {
        End::Said(_) => return Ok(()),
        End::Silent(_) => (),
        other @ (End::Malformed(_) | End::Nobody) => {
            return Err(format!("after {since}, {}", other.told()));
        }
    }
    let mut again = bench
        .open(request)
        .await
        .map_err(|error| error.to_string())?;
    let still = matches!(again.begun(BEGIN).await, Some(End::Said(Said::Error(text))) if text == IN_PROGRESS);
    cancel_call(bench, &request.call_id).await;
    if still || bench.instances.len() > 1 {
        return Err(format!(
            "{:?} after {since} the call was neither answered nor over",
            bench.patience()
        ));
    }
    Ok(())
}

pub async fn in_progress(bench: &Bench) -> Vec<Finding> {
    const CASE: &str = "in_progress";
    let (tool, args) = match slow_call(bench, CASE) {
        Ok(found) => found,
        Err(skipped) => return skipped,
    };
    if let Some(several) = several_instances(bench, CASE, tool) {
        return several;
    }
    let request = bench.call(tool, &args);
    let checked = async {
        let _first = begun(bench, &request).await?;
        let again = bench.ask(&request).await;
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
    cancel_call(bench, &request.call_id).await;
    vec![Finding::of(CASE, &tool.name, checked)]
}
