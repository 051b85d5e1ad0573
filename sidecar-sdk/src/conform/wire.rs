//! Parses the messages of a sidecar strictly.

use async_nats::{HeaderMap, Message, StatusCode};
use planck_common::PROTOCOL_VERSION;
use serde_json::Value;

/// One message to the reply subject.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyPart {
    Progress,
    FinalReply(FinalReply),
    /// A message that breaks the protocol, with the reason.
    Malformed(String),
    /// The server has no subscription for the request.
    NoResponders,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum FinalReply {
    Ok(String),
    Error(String),
    Compact { summary: String, keep_from: i64 },
    Skip,
}

/// The keys of which a tool's message must have exactly one, besides `v`.
const OF_TOOLS: &[&str] = &["ok", "error", "progress"];
/// The keys of which a compactor's message must have exactly one, besides `v`.
const OF_COMPACTORS: &[&str] = &["compact", "skip", "error"];

/// The header in which service libraries put an error.
const ERROR_HEADER: &str = "Nats-Service-Error";

pub fn read(message: &Message, compactor: bool) -> ReplyPart {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return ReplyPart::NoResponders;
    }
    if let Some(error) = message
        .headers
        .as_ref()
        .and_then(|headers: &HeaderMap| headers.get(ERROR_HEADER))
        && message.payload.is_empty()
    {
        return ReplyPart::Malformed(format!(
            "the error is in the header {ERROR_HEADER} ({error}), and the body is empty; send {{\"v\":1,\"error\":\"text\"}}"
        ));
    }
    let text = String::from_utf8_lossy(&message.payload);
    parse(&text, compactor)
        .unwrap_or_else(|why| ReplyPart::Malformed(format!("{why}: {}", shown(&text))))
}

fn parse(text: &str, compactor: bool) -> Result<ReplyPart, String> {
    let reply: Value =
        serde_json::from_str(text).map_err(|error| format!("the answer is not JSON ({error})"))?;
    if reply.get("v").and_then(Value::as_u64) != Some(PROTOCOL_VERSION.into()) {
        return Err("the answer needs \"v\":1".into());
    }
    let known = if compactor { OF_COMPACTORS } else { OF_TOOLS };
    let mut present = known
        .iter()
        .filter_map(|key| Some((*key, reply.get(*key)?)));
    match (present.next(), present.next()) {
        (Some((key, value)), None) => piece(key, value),
        _ => Err(format!(
            "the answer needs exactly one of {}",
            known.join(", ")
        )),
    }
}

fn piece(key: &str, value: &Value) -> Result<ReplyPart, String> {
    let text = || {
        value
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("`{key}` must be text"))
    };
    let said = match key {
        "ok" => FinalReply::Ok(text()?),
        "error" => FinalReply::Error(text()?),
        "skip" if value == &Value::Bool(true) => FinalReply::Skip,
        "skip" => return Err("`skip` must be true".into()),
        "compact" => FinalReply::Compact {
            summary: value
                .get("summary")
                .and_then(Value::as_str)
                .ok_or("`compact.summary` must be text")?
                .into(),
            keep_from: value
                .get("keep_from")
                .and_then(Value::as_i64)
                .ok_or("`compact.keep_from` must be a message id, a number")?,
        },
        _ => return progress(value).map(|()| ReplyPart::Progress),
    };
    Ok(ReplyPart::FinalReply(said))
}

fn progress(value: &Value) -> Result<(), String> {
    if !value.get("message").is_some_and(Value::is_string) {
        return Err("`progress` needs a `message`, as in {\"progress\":{\"message\":\"text\",\"percent\":50}}".into());
    }
    match value.get("percent") {
        None => Ok(()),
        Some(percent)
            if percent
                .as_f64()
                .is_some_and(|percent| (0.0..=100.0).contains(&percent)) =>
        {
            Ok(())
        }
        Some(percent) => Err(format!(
            "`progress.percent` must be a number from 0 to 100, or left out; it is {percent}"
        )),
    }
}

/// Returns the beginning of a text, short enough to quote in a finding.
pub fn shown(text: &str) -> String {
    const MOST: usize = 200;
    let cut: String = text.chars().take(MOST).collect();
    if cut.len() < text.len() {
        format!("{cut}…")
    } else {
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_strictly() {
        let tools = [
            (
                r#"{"v":1,"ok":"a"}"#,
                Ok(ReplyPart::FinalReply(FinalReply::Ok("a".into()))),
            ),
            (
                r#"{"v":1,"error":"a","new":1}"#,
                Ok(ReplyPart::FinalReply(FinalReply::Error("a".into()))),
            ),
            (
                r#"{"v":1,"progress":{"message":"m"}}"#,
                Ok(ReplyPart::Progress),
            ),
            (
                r#"{"v":1,"progress":{"message":"m","percent":101}}"#,
                Err("percent"),
            ),
            (r#"{"v":1,"progress":"m"}"#, Err("message")),
            (r#"{"v":1,"ok":{"a":1}}"#, Err("must be text")),
            (r#"{"v":1,"ok":"a","error":"b"}"#, Err("exactly one")),
            (r#"{"v":1,"result":"a"}"#, Err("exactly one")),
            (r#"{"ok":"a"}"#, Err("\"v\":1")),
            ("ok", Err("not JSON")),
        ];
        for (text, expected) in tools {
            match (parse(text, false), expected) {
                (Ok(piece), Ok(expected)) => assert_eq!(piece, expected),
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (parsed, _) => panic!("{text}: {parsed:?}"),
            }
        }
        let compact = parse(r#"{"v":1,"compact":{"summary":"s","keep_from":7}}"#, true);
        assert_eq!(
            compact,
            Ok(ReplyPart::FinalReply(FinalReply::Compact {
                summary: "s".into(),
                keep_from: 7
            }))
        );
        assert_eq!(
            parse(r#"{"v":1,"skip":true}"#, true),
            Ok(ReplyPart::FinalReply(FinalReply::Skip))
        );
        assert!(parse(r#"{"v":1,"skip":false}"#, true).is_err());
        assert!(parse(r#"{"v":1,"ok":"a"}"#, true).is_err());
    }
}
