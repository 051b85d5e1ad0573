//! Cases with wrong requests, which the sidecar has to answer with an error. The sidecar has to
//! keep running.

use serde_json::json;

use super::{
    Finding,
    checker::{Checker, ObservedEnd},
    discovery::{EndpointKind, OfferedEndpoint},
    sample,
};

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
