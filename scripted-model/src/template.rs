//! Fills in the parts of a script's texts that quote the request: `{{last_user}}`,
//! `{{result:spawn_agent.id}}`, `{{word_after:task }}`.

use serde_json::Value;

use crate::request::{ModelRequest, RequestMessage};

/// Fills in every `{{…}}`. Fails at the first one for which this request has no value.
pub fn fill(text: &str, asked: &ModelRequest) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((name, tail)) = after.split_once("}}") else {
            break;
        };
        filled.push_str(before);
        filled.push_str(
            &capture(name.trim(), asked)
                .ok_or_else(|| format!("nothing to put for {{{{{name}}}}}"))?,
        );
        rest = tail;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Fills in all strings of a JSON value, and returns the new value.
pub fn fill_value(value: &Value, asked: &ModelRequest) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) => Value::String(fill(text, asked)?),
        Value::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| fill_value(item, asked))
                .collect::<Result<_, _>>()?,
        ),
        Value::Object(fields) => {
            let filled = fields
                .iter()
                .map(|(key, field)| Ok((key.clone(), fill_value(field, asked)?)));
            Value::Object(filled.collect::<Result<_, String>>()?)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    })
}

fn capture(name: &str, asked: &ModelRequest) -> Option<String> {
    let (kind, argument) = name.split_once(':').unwrap_or((name, ""));
    match kind {
        "last_user" => Some(asked.last_user().to_owned()),
        "model" => Some(asked.model.clone()),
        "system" => Some(asked.system.clone()),
        "round" => Some(asked.round().to_string()),
        "result" => result(argument, asked),
        "word_after" => asked
            .messages
            .iter()
            .rev()
            .find_map(|said| word_after(said, argument)),
        _ => None,
    }
}

/// Looks up a result. `TOOL` is the latest result of that tool, `TOOL.a.0.b` a value inside it as
/// JSON, and `TOOL.name=x.id` the `id` of the object in a list whose `name` is `x`.
fn result(argument: &str, asked: &ModelRequest) -> Option<String> {
    let (tool, path) = argument
        .split_once('.')
        .map_or((argument, None), |(tool, path)| (tool, Some(path)));
    let text = asked.result_of(tool)?;
    let Some(path) = path else {
        return Some(text.to_owned());
    };
    let whole: Value = serde_json::from_str(text).ok()?;
    let found = path
        .split('.')
        .try_fold(&whole, |value, step| enter(value, step))?;
    Some(
        found
            .as_str()
            .map_or_else(|| found.to_string(), str::to_owned),
    )
}

fn enter<'a>(value: &'a Value, step: &str) -> Option<&'a Value> {
    let Value::Array(items) = value else {
        return value.get(step);
    };
    match step.split_once('=') {
        Some((field, wanted)) => items
            .iter()
            .find(|item| item.get(field).and_then(Value::as_str) == Some(wanted)),
        None => items.get(step.parse::<usize>().ok()?),
    }
}

/// Returns the word after the last occurrence of a text in a message of the user or in results.
/// White space, quotes, brackets, commas, colons and semicolons end a word.
fn word_after(said: &RequestMessage, text: &str) -> Option<String> {
    let heard = match said {
        RequestMessage::User(text) => text.clone(),
        RequestMessage::Results(results) => results
            .iter()
            .map(|result| result.text.as_str())
            .collect::<Vec<_>>()
            .join("\n"),
        RequestMessage::Model { .. } => return None,
    };
    let (_, after) = heard.rsplit_once(text)?;
    let word = after
        .trim_start()
        .split(|c: char| c.is_whitespace() || "\"',:;()[]{}<>".contains(c))
        .next()?;
    (!word.is_empty()).then(|| word.to_owned())
}
