//! Cases with calls that a sidecar has to answer, and with wrong requests, which it has to answer
//! with an error. The sidecar has to keep running.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Finding,
    checker::{Checker, FinalReply, ObservedEnd, shown},
    discovery::{EndpointKind, OfferedEndpoint},
    sample,
};

/// How long the checker waits for a message that must not come.
const QUIET: Duration = Duration::from_millis(400);

pub struct Good {
    pub findings: Vec<Finding>,
    /// The first tool that answered a valid call with `ok`, and the arguments of that call.
    pub works: Option<(OfferedEndpoint, Value)>,
}

/// Makes one valid call of every tool that may be called and is not always slow, and checks that it
/// is answered once and with `ok`.
pub async fn good_calls(checker: &Checker) -> Good {
    let mut good = Good {
        findings: Vec::new(),
        works: None,
    };
    for tool in checker
        .tools()
        .filter(|tool| !is_always_slow(checker, tool))
    {
        match checker.arguments(tool, 0) {
            Ok(args) => good_call(checker, tool, args, &mut good).await,
            Err(why) => good
                .findings
                .push(Finding::skipped("good_call", &tool.name, why)),
        }
    }
    good
}

async fn good_call(checker: &Checker, tool: &OfferedEndpoint, args: Value, good: &mut Good) {
    let (on, given) = (
        &tool.name,
        checker.plan.args.iter().any(|(name, _)| *name == tool.name),
    );
    let mut line = match checker.open(&checker.call(tool, &args)).await {
        Ok(line) => line,
        Err(error) => {
            return good
                .findings
                .push(Finding::failed("good_call", on, error.to_string()));
        }
    };
    let end = line.end(checker.patience()).await;
    let finding = match &end {
        ObservedEnd::FinalReply(FinalReply::Ok(_)) => Finding::passed("good_call", on),
        ObservedEnd::FinalReply(FinalReply::Error(text)) if !given => {
            let told = format!(
                "it answered the made-up arguments {args} with the error `{}`",
                shown(text)
            );
            Finding::skipped(
                "good_call",
                on,
                format!("{told}; name good ones with --args {on}=JSON"),
            )
        }
        other @ (ObservedEnd::FinalReply(_)
        | ObservedEnd::Malformed(_)
        | ObservedEnd::NoResponders
        | ObservedEnd::Silent(_)) => Finding::failed(
            "good_call",
            on,
            format!("called with {args}, {}", other.describe()),
        ),
    };
    good.findings.push(finding);
    if matches!(end, ObservedEnd::FinalReply(_)) {
        let more = line.next(QUIET).await;
        let once = more.map_or(Ok(()), |_| {
            Err("after its answer it sent another message to the reply subject".to_owned())
        });
        good.findings.push(Finding::of("one_answer", on, once));
    }
    if matches!(end, ObservedEnd::FinalReply(FinalReply::Ok(_))) && good.works.is_none() {
        good.works = Some((tool.clone(), args));
    }
}

/// Returns whether every valid call of the tool is assumed to be slow. If the plan names a slow
/// call, this is true of its tool unless the plan also has arguments for a quick call. Otherwise it
/// is true if the tool requires the argument `seconds`.
pub fn is_always_slow(checker: &Checker, tool: &OfferedEndpoint) -> bool {
    let required = tool.parameters.get("required").and_then(Value::as_array);
    let needs_seconds = required.is_some_and(|names| names.contains(&json!("seconds")));
    match &checker.plan.slow {
        Some((name, _)) => {
            *name == tool.name && !checker.plan.args.iter().any(|(named, _)| named == name)
        }
        None => needs_seconds,
    }
}

/// The reason to skip a case that needs a quick call.
pub const NOTHING_QUICK: &str = "no tool answered a good call with ok";

pub async fn unknown_fields(checker: &Checker) -> Vec<Finding> {
    const CASE: &str = "unknown_fields";
    let Some((tool, args)) = &checker.quick else {
        return vec![Finding::skipped(CASE, "", NOTHING_QUICK)];
    };
    let mut request = checker.call(tool, args);
    if let Some(body) = request.body.as_object_mut() {
        body.insert("from_a_later_version".into(), json!({"a": [1]}));
    }
    let answered = checker.ask(&request).await.ok();
    let checked = answered.map(drop).map_err(|why| {
        format!("with a key of a later version in the request, {why}; ignore unknown keys")
    });
    vec![Finding::of(CASE, &tool.name, checked)]
}

pub async fn stale_epoch(checker: &Checker) -> Vec<Finding> {
    const CASE: &str = "stale_epoch";
    let Some((tool, args)) = &checker.quick else {
        return vec![Finding::skipped(CASE, "", NOTHING_QUICK)];
    };
    if let Some(several) = several_instances(checker, CASE, tool) {
        return several;
    }
    let agent = checker.fresh("agent");
    let with_epoch = async |epoch: i64| {
        let mut request = checker.call(tool, args);
        if let Some(body) = request.body.as_object_mut() {
            body.insert("agent_id".into(), json!(agent));
            body.insert("epoch".into(), json!(epoch));
        }
        checker.ask(&request).await
    };
    let checked = async {
        with_epoch(5)
            .await
            .ok()
            .map_err(|why| format!("called with epoch 5, {why}"))?;
        with_epoch(4).await.error().map_err(|why| {
            format!("after a call of the agent with epoch 5 came one with epoch 4, and {why}; it is from a node that was fenced off, refuse it")
        })?;
        with_epoch(5)
            .await
            .ok()
            .map_err(|why| format!("called again with epoch 5, {why}"))
    };
    vec![Finding::of(CASE, &tool.name, checked.await.map(drop))]
}

/// If several instances are running, returns a skipped finding for a case that depends on the
/// memory of one instance. Otherwise returns `None`.
pub fn several_instances(
    checker: &Checker,
    case: &'static str,
    tool: &OfferedEndpoint,
) -> Option<Vec<Finding>> {
    let count = checker.instances.len();
    let why = format!("{count} instances share the calls; run one alone to try this");
    (count > 1).then(|| vec![Finding::skipped(case, &tool.name, why)])
}

pub async fn large_answer(checker: &Checker) -> Vec<Finding> {
    const CASE: &str = "large_answer";
    let (tool, args) = match large(checker) {
        Ok(found) => found,
        Err(why) => return vec![Finding::skipped(CASE, "", why)],
    };
    let request = checker.call(tool, &args);
    let end = match checker.open(&request).await {
        Ok(mut line) => line.end(checker.patience() * 3).await,
        Err(error) => ObservedEnd::Malformed(error.to_string()),
    };
    if let ObservedEnd::FinalReply(FinalReply::Ok(text)) = &end {
        let told = format!(
            "its answer of {} bytes was not too large; name a call whose answer is, with --large TOOL=JSON",
            text.len()
        );
        return vec![Finding::skipped(CASE, &tool.name, told)];
    }
    let checked = end.error().map(drop).map_err(|why| {
        format!("asked for more than NATS carries, {why}; compare the answer's size with the server's max_payload, and say that it is too large")
    });
    vec![Finding::of(CASE, &tool.name, checked)]
}

fn large(checker: &Checker) -> Result<(&OfferedEndpoint, Value), String> {
    if let Some((name, args)) = &checker.plan.large {
        return named(checker, name).map(|tool| (tool, args.clone()));
    }
    let most = checker.client.server_info().max_payload;
    let found = by_property(checker, "times", json!(most / 4 + 1000));
    found.ok_or_else(|| "no tool here is known to give large answers; name a call that does with --large TOOL=JSON".into())
}

/// Returns the slow call of the plan, or else a tool and arguments with which its call takes at
/// least `at_least`. By convention such a tool has a numeric argument `seconds`. Returns an error
/// if there is none.
pub fn slow(checker: &Checker, at_least: Duration) -> Result<(&OfferedEndpoint, Value), String> {
    if let Some((name, args)) = &checker.plan.slow {
        return named(checker, name).map(|tool| (tool, args.clone()));
    }
    let found = by_property(checker, "seconds", json!(at_least.as_secs().max(1)));
    found.ok_or_else(|| "no tool here is known to be slow; name a call that takes its time with --slow TOOL=JSON".into())
}

fn named<'a>(checker: &'a Checker, name: &str) -> Result<&'a OfferedEndpoint, String> {
    checker
        .tools()
        .find(|tool| tool.name == name)
        .ok_or_else(|| format!("it has no tool `{name}`"))
}

/// Returns a tool that may be called and has an argument of this name, with arguments in which that
/// argument has this value, or `None` if there is no such tool.
fn by_property<'a>(
    checker: &'a Checker,
    property: &str,
    value: Value,
) -> Option<(&'a OfferedEndpoint, Value)> {
    checker
        .tools()
        .filter(|tool| tool.effect.may_run_again())
        .find_map(|tool| {
            let mut args = sample::fitting(&tool.parameters, 0)?;
            tool.parameters.get("properties")?.get(property)?;
            args.as_object_mut()?.insert(property.into(), value.clone());
            sample::fits(&tool.parameters, &args).then_some((tool, args))
        })
}

pub async fn bad_args(checker: &Checker) -> Vec<Finding> {
    const CASE: &str = "bad_args";
    let mut findings = Vec::new();
    for tool in checker.tools() {
        let may = checker
            .arguments(tool, 0)
            .err()
            .filter(|why| why.contains("mutating"));
        if let Some(why) = may {
            findings.push(Finding::skipped(CASE, &tool.name, why));
            continue;
        }
        findings.push(Finding::of(
            CASE,
            &tool.name,
            refuses_misfits(checker, tool).await,
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::skipped(CASE, "", "it has no tools"));
    }
    findings
}

async fn refuses_misfits(checker: &Checker, tool: &OfferedEndpoint) -> Result<(), String> {
    for (wrong, args) in sample::misfits(&tool.parameters) {
        let told = |why| {
            format!(
                "called with {wrong} ({args}), {why}; answer {{\"v\":1,\"error\":\"what is wrong\"}}"
            )
        };
        checker
            .ask(&checker.call(tool, &args))
            .await
            .error()
            .map_err(told)?;
    }
    Ok(())
}

pub async fn malformed(checker: &Checker) -> Vec<Finding> {
    let mut findings = Vec::new();
    for offer in &checker.offers {
        findings.push(Finding::of(
            "malformed",
            &offer.name,
            refuses_malformed(checker, offer).await,
        ));
    }
    findings
}

/// Checks that the sidecar refuses malformed requests. Each request lacks something that a call
/// needs, so that none of the requests can run a tool.
async fn refuses_malformed(checker: &Checker, offer: &OfferedEndpoint) -> Result<(), String> {
    // A request without a reply subject must do no harm either.
    checker.publish(offer.subject.clone(), "{".into()).await;
    let without_args = json!({"v": 1, "call_id": checker.fresh("call"), "agent_id": "conform", "session_id": "conform",
        "team_id": "conform", "epoch": 1, "deadline_ms": 1000});
    let bodies = [
        "{\"v\":1,\"call_id\":".to_owned(),
        "[]".to_owned(),
        "\"text\"".to_owned(),
        "\u{0}".to_owned(),
        without_args.to_string(),
    ];
    for body in bodies {
        let end = match checker
            .send(
                &offer.subject,
                body.clone(),
                offer.kind == EndpointKind::Compactor,
            )
            .await
        {
            Ok(mut line) => line.end(checker.patience()).await,
            Err(error) => ObservedEnd::Malformed(error.to_string()),
        };
        let told = |why| {
            format!("sent the body {body:?}, {why}; answer {{\"v\":1,\"error\":\"what is wrong\"}}")
        };
        end.error().map_err(told)?;
    }
    Ok(())
}
