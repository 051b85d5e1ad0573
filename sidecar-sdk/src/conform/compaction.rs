//! The conformance cases for compactors.

use serde_json::{Value, json};

use super::{
    Finding,
    checker::{Checker, FinalReply, ObservedEnd},
    discovery::{EndpointKind, OfferedEndpoint},
};

pub async fn long(checker: &Checker) -> Vec<Finding> {
    check(checker, "compaction", &long_conversation()).await
}

pub async fn short(checker: &Checker) -> Vec<Finding> {
    let messages = [
        message(101, "user", &json!([text("Hi.")])),
        message(102, "assistant", &json!([text("Hello.")])),
    ];
    check(checker, "compaction_short", &messages).await
}

async fn check(checker: &Checker, case: &'static str, messages: &[Value]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for offer in checker
        .offers
        .iter()
        .filter(|offer| offer.kind == EndpointKind::Compactor)
    {
        findings.push(finding(checker, case, offer, messages).await);
    }
    if findings.is_empty() {
        findings.push(Finding::skipped(case, "", "it has no compactors"));
    }
    findings
}

async fn finding(
    checker: &Checker,
    case: &'static str,
    offer: &OfferedEndpoint,
    messages: &[Value],
) -> Finding {
    let request = checker.compaction(offer, messages, size(messages) / 4);
    match checker.ask(&request).await {
        ObservedEnd::FinalReply(FinalReply::Skip) => Finding::passed(case, &offer.name),
        ObservedEnd::FinalReply(FinalReply::Compact { summary, keep_from }) => {
            Finding::of(case, &offer.name, fits(messages, &summary, keep_from))
        }
        ObservedEnd::FinalReply(FinalReply::Error(text)) => Finding::skipped(
            case,
            &offer.name,
            format!("it answered with the error `{text}`, so its summaries could not be looked at"),
        ),
        other @ (ObservedEnd::FinalReply(FinalReply::Ok(_))
        | ObservedEnd::Malformed(_)
        | ObservedEnd::NoResponders
        | ObservedEnd::Silent(_)) => Finding::failed(case, &offer.name, other.describe()),
    }
}

/// Checks whether a node would accept this summary.
fn fits(messages: &[Value], summary: &str, keep_from: i64) -> Result<(), String> {
    let id = |message: &Value| message.get("id").and_then(Value::as_i64);
    let Some(at) = messages
        .iter()
        .position(|message| id(message) == Some(keep_from))
    else {
        return Err(format!(
            "`keep_from` is {keep_from}, which is none of the messages' ids"
        ));
    };
    if at == 0 {
        return Err("`keep_from` is the first message, so nothing is replaced; answer {\"v\":1,\"skip\":true}".into());
    }
    if summary.trim().is_empty() {
        return Err("the summary is empty".into());
    }
    let (dropped, kept) = messages.split_at(at);
    if summary.len() >= size(dropped) {
        let sizes = format!("{} bytes for {}", summary.len(), size(dropped));
        return Err(format!(
            "the summary is not shorter than what it replaces: {sizes}; answer {{\"v\":1,\"skip\":true}} where it cannot be"
        ));
    }
    let calls = ids(kept, "tool_call");
    match ids(kept, "tool_result")
        .iter()
        .find(|result| !calls.contains(result))
    {
        Some(lost) => Err(format!(
            "`keep_from` {keep_from} keeps the result of the call {lost} and drops the call"
        )),
        None => Ok(()),
    }
}

fn ids(messages: &[Value], kind: &str) -> Vec<String> {
    let parts = messages
        .iter()
        .filter_map(|message| message.get("content")?.as_array())
        .flatten();
    let of_kind = parts.filter(|part| part.get("type").and_then(Value::as_str) == Some(kind));
    of_kind
        .filter_map(|part| Some(part.get("call_id")?.as_str()?.to_owned()))
        .collect()
}

fn size(messages: &[Value]) -> usize {
    messages
        .iter()
        .map(|message| {
            message
                .get("content")
                .map_or(0, |content| content.to_string().len())
        })
        .sum()
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn message(id: i64, role: &str, content: &Value) -> Value {
    json!({"id": id, "agent_id": "conform", "at": "2026-01-02T03:04:05.000Z", "role": role, "content": content})
}

/// Returns a conversation of eight rounds with two tool calls each. The results of the calls are
/// most of the text.
fn long_conversation() -> Vec<Value> {
    let mut messages = vec![message(
        101,
        "user",
        &json!([text("Find out which files are large, and why.")]),
    )];
    for round in 0..8_i64 {
        let (one, other) = (format!("call-{round}-a"), format!("call-{round}-b"));
        let call = |id: &str| json!({"type": "tool_call", "id": id, "call_id": id, "name": "read", "args": {"path": id}});
        let result = |id: &str| json!({"type": "tool_result", "id": id, "call_id": id, "text": "line of a file\n".repeat(80), "error": false});
        messages.push(message(
            102 + round * 2,
            "assistant",
            &json!([text("Looking."), call(&one), call(&other)]),
        ));
        messages.push(message(
            103 + round * 2,
            "tool_result",
            &json!([result(&one), result(&other)]),
        ));
    }
    messages.push(message(
        118,
        "assistant",
        &json!([text("They hold logs of the last year.")]),
    ));
    messages.push(message(119, "user", &json!([text("Good. Which may go?")])));
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_that_a_node_would_refuse_is_a_finding() {
        let messages = long_conversation();
        assert_eq!(fits(&messages, "They looked.", 118), Ok(()));
        assert_eq!(fits(&messages, "They looked.", 116), Ok(()));
        for (summary, keep_from, part) in [
            ("They looked.", 117, "drops the call"),
            ("They looked.", 7, "none of the messages"),
            ("They looked.", 101, "nothing is replaced"),
            ("", 118, "empty"),
            (&*"long ".repeat(9000), 118, "not shorter"),
        ] {
            let why = fits(&messages, summary, keep_from).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }
}
