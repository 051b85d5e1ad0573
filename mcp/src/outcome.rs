//! The text of a call's result. An answer of a sidecar is text, so content that is not text is named
//! and described.

use rmcp::model::{CallToolResult, ContentBlock, Resource, ResourceContents};
use serde_json::Value;

/// Stands for content of a kind that a newer version of MCP has.
const UNKNOWN: &str = "[content of an unknown kind, not shown]";

/// Returns the text of a result, as an error if the server says that the call failed.
pub fn said(result: CallToolResult) -> Result<String, String> {
    let CallToolResult {
        content,
        structured_content,
        is_error,
        ..
    } = result;
    let repeats = |structured: &Value| {
        let mut texts = content.iter().filter_map(ContentBlock::as_text);
        texts.any(|text| {
            let value = serde_json::from_str::<Value>(&text.text);
            value.is_ok_and(|value| value == *structured) || is_only(structured, &text.text)
        })
    };
    // A server repeats structured content as text for clients that know only text.
    let structured = structured_content.filter(|structured| !repeats(structured));
    let parts: Vec<String> = content
        .into_iter()
        .map(block)
        .chain(structured.map(|value| value.to_string()))
        .collect();
    let text = parts.join("\n");
    match (is_error.unwrap_or(false), text.trim().is_empty()) {
        (false, false) => Ok(text),
        (false, true) => Ok("done; the tool returned nothing".into()),
        (true, false) => Err(text),
        (true, true) => Err("the tool failed, and does not say why".into()),
    }
}

/// Returns whether a text is all that an object holds, as in `{"content": "the text"}`.
fn is_only(structured: &Value, text: &str) -> bool {
    let values = structured.as_object().map(|object| object.values());
    values.is_some_and(|mut values| {
        values.len() == 1 && values.next().and_then(Value::as_str) == Some(text)
    })
}

fn block(block: ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text,
        ContentBlock::Image(image) => left_out("image", Some(&image.mime_type), &image.data),
        ContentBlock::Audio(audio) => left_out("audio", Some(&audio.mime_type), &audio.data),
        ContentBlock::Resource(embedded) => match embedded.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => {
                format!("[resource {uri}]\n{text}")
            }
            ResourceContents::BlobResourceContents {
                uri,
                mime_type,
                blob,
                ..
            } => left_out(&format!("resource {uri}"), mime_type.as_deref(), &blob),
            _ => UNKNOWN.into(),
        },
        ContentBlock::ResourceLink(resource) => link(&resource),
        _ => UNKNOWN.into(),
    }
}

/// Describes bytes that are not passed on. Their size is that of the decoded base64.
fn left_out(what: &str, mime_type: Option<&str>, base64: &str) -> String {
    let bytes = base64.trim_end_matches('=').len() / 4 * 3;
    let kind = mime_type.map_or(String::new(), |kind| format!(", {kind}"));
    format!("[{what}{kind}, about {bytes} bytes, not shown]")
}

fn link(resource: &Resource) -> String {
    let Resource {
        uri,
        name,
        title,
        description,
        mime_type,
        ..
    } = resource;
    let title = title.as_ref().unwrap_or(name);
    let more: String = [mime_type, description]
        .into_iter()
        .flatten()
        .map(|text| format!(", {text}"))
        .collect();
    format!("[link to {uri}: {title}{more}]")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said_of(result: Value) -> Result<String, String> {
        said(serde_json::from_value(result).unwrap())
    }

    #[test]
    fn text_is_kept_and_an_error_is_one() {
        let content = json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]);
        assert_eq!(said_of(json!({"content": content})), Ok("one\ntwo".into()));
        let failed =
            json!({"content": [{"type": "text", "text": "no such file"}], "isError": true});
        assert_eq!(said_of(failed), Err("no such file".into()));
        assert!(said_of(json!({"content": [], "isError": true})).is_err());
        assert!(said_of(json!({"content": []})).is_ok());
    }

    #[test]
    fn structured_content_is_told_once() {
        let text = json!([{"type": "text", "text": "{ \"a\": 1 }"}]);
        let both = json!({"content": text, "structuredContent": {"a": 1}});
        assert_eq!(said_of(both), Ok("{ \"a\": 1 }".into()));
        let only = json!({"content": [{"type": "text", "text": "[FILE] a"}], "structuredContent": {"content": "[FILE] a"}});
        assert_eq!(said_of(only), Ok("[FILE] a".into()));
        let alone = json!({"content": [], "structuredContent": {"a": 1}});
        assert_eq!(said_of(alone), Ok("{\"a\":1}".into()));
        let beside =
            json!({"content": [{"type": "text", "text": "done"}], "structuredContent": [2]});
        assert_eq!(said_of(beside), Ok("done\n[2]".into()));
    }

    #[test]
    fn what_is_not_text_is_described() {
        let content = json!([
            {"type": "image", "data": "AAAAAAAA", "mimeType": "image/png"},
            {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
            {"type": "resource_link", "uri": "file:///a.txt", "name": "a", "mimeType": "text/plain"},
            {"type": "resource", "resource": {"uri": "file:///b.txt", "text": "hello"}},
            {"type": "resource", "resource": {"uri": "file:///c.bin", "blob": "AAAA"}},
        ]);
        let text = said_of(json!({"content": content})).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "[image, image/png, about 6 bytes, not shown]",
                "[audio, audio/wav, about 3 bytes, not shown]",
                "[link to file:///a.txt: a, text/plain]",
                "[resource file:///b.txt]",
                "hello",
                "[resource file:///c.bin, about 3 bytes, not shown]",
            ]
        );
    }
}
