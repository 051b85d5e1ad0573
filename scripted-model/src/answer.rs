//! Chooses the reply to a request and prepares it: fills in the templates, the ids and the usage. A
//! template quotes the request: `{{last_user}}`, `{{result:spawn_agent.id}}`, `{{word_after:task
//! }}`.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use serde_json::Value;

use crate::{
    request::{ModelRequest, RequestMessage},
    script::{Otherwise, Reply, Rule, Script, ScriptedCall, ScriptedPart, ScriptedUsage},
    wire::{PreparedPart, PreparedReply, Wire},
};

/// A script in use, with the number of uses of each rule that has a limit.
pub struct Playbook {
    pub script: Script,
    used: Vec<AtomicU32>,
}

impl Playbook {
    pub fn new(script: Script) -> Self {
        let used = script.rules.iter().map(|_| AtomicU32::new(0)).collect();
        Self { script, used }
    }

    /// Returns the reply to a request, and counts the use of its rule if the rule has a limit.
    /// Fails with the reason if there is no reply.
    pub fn reply(&self, asked: &ModelRequest) -> Result<Reply, String> {
        let rules = self.script.rules.iter().zip(&self.used);
        let matching = rules.filter(|(rule, _)| rule.when.matches(asked));
        for (rule, used) in matching {
            if take(rule, used) {
                let reply = rule.replies.get(asked.round()).or(rule.replies.last());
                return reply
                    .cloned()
                    .ok_or_else(|| "the rule that matches has no replies".to_owned());
            }
        }
        match self.script.otherwise {
            Otherwise::Echo => Ok(Reply::text(asked.last_user())),
            Otherwise::Refuse => Err(format!(
                "no rule of the script matches this request: {}",
                describe(asked)
            )),
        }
    }
}

fn take(rule: &Rule, used: &AtomicU32) -> bool {
    let Some(times) = rule.times else { return true };
    let more = |uses: u32| (uses < times).then_some(uses + 1);
    used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
        .is_ok()
}

fn describe(asked: &ModelRequest) -> String {
    let system: String = asked.system.chars().take(80).collect();
    let last = format!("{:?}", asked.messages.last());
    let last: String = last.chars().take(400).collect();
    format!(
        "model {:?}, round {}, system {system:?}, last {last}",
        asked.model,
        asked.round()
    )
}

/// Prepares a reply for one request: fills in its templates, ids and usage. Fails if the request
/// has no value for a template.
pub fn speech(
    reply: &Reply,
    asked: &ModelRequest,
    wire: &Wire,
    serial: u64,
    chunk: usize,
    asked_bytes: usize,
) -> Result<PreparedReply, String> {
    let thought = |index: usize| {
        let is_thinking = |part: &ScriptedPart| {
            matches!(part, ScriptedPart::Thinking(_) | ScriptedPart::Redacted(_))
        };
        reply.parts.iter().take(index).rposition(is_thinking)
    };
    let fresh_id = |index: usize| (wire.call_id)(serial, index, thought(index));
    let parts = reply
        .parts
        .iter()
        .enumerate()
        .map(|(index, part)| spoken(part, asked, || fresh_id(index)));
    let parts: Vec<PreparedPart> = parts.collect::<Result<_, _>>()?;
    let usage = reply.usage.unwrap_or_else(|| estimate(&parts, asked_bytes));
    let (stop, model) = (reply.ending(), asked.model.clone());
    let ModelRequest {
        include_usage,
        wants_ciphertext,
        ..
    } = *asked;
    Ok(PreparedReply {
        serial,
        model,
        parts,
        stop,
        usage,
        chunk,
        include_usage,
        wants_ciphertext,
    })
}

fn spoken(
    part: &ScriptedPart,
    asked: &ModelRequest,
    fresh_id: impl FnOnce() -> String,
) -> Result<PreparedPart, String> {
    Ok(match part {
        ScriptedPart::Text(text) => PreparedPart::Text(filled(text, asked)?),
        ScriptedPart::Thinking(text) => PreparedPart::Thinking(filled(text, asked)?),
        ScriptedPart::Redacted(data) => PreparedPart::Redacted(data.clone()),
        ScriptedPart::Call(ScriptedCall {
            name,
            args,
            raw,
            id,
        }) => PreparedPart::Call {
            id: id.clone().unwrap_or_else(fresh_id),
            name: name.clone(),
            args: match raw {
                Some(raw) => raw.clone(),
                None => fill_value(args, asked)?.to_string(),
            },
        },
    })
}

fn filled(text: &Arc<str>, asked: &ModelRequest) -> Result<Arc<str>, String> {
    if text.contains("{{") {
        Ok(fill(text, asked)?.into())
    } else {
        Ok(text.clone())
    }
}

fn estimate(parts: &[PreparedPart], asked_bytes: usize) -> ScriptedUsage {
    let characters = parts.iter().map(|part| match part {
        PreparedPart::Text(text) | PreparedPart::Thinking(text) | PreparedPart::Redacted(text) => {
            text.len()
        }
        PreparedPart::Call { name, args, .. } => name.len() + args.len(),
    });
    let output = characters.sum::<usize>().div_ceil(4);
    ScriptedUsage {
        input: asked_bytes.div_ceil(4) as u64,
        output: output as u64,
        ..ScriptedUsage::default()
    }
}

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
fn fill_value(value: &Value, asked: &ModelRequest) -> Result<Value, String> {
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
