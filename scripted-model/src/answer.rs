//! Chooses the reply to a request and prepares it: fills in the templates, the ids and the usage.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use crate::{
    request::ModelRequest,
    script::{Otherwise, Reply, Rule, Script, ScriptedCall, ScriptedPart, ScriptedUsage},
    template,
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
                None => template::fill_value(args, asked)?.to_string(),
            },
        },
    })
}

fn filled(text: &Arc<str>, asked: &ModelRequest) -> Result<Arc<str>, String> {
    if text.contains("{{") {
        Ok(template::fill(text, asked)?.into())
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
