//! A model in this process that plays a script.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt as _, stream, stream::BoxStream};
use planck_common::{
    message::{MessageBody, StopReason},
    usage::Usage,
};
use serde_json::Value;

use crate::model::{Chunk, Failure, FailureKind, Finish};
use planck_providers::{Clients, Encoder, Provider, RequestHead};

/// The name of the provider, which precedes the names of the models.
pub(super) const PROVIDER: &str = "scripted";

/// A model for examples and tests, which needs no server and no key. It returns the scripted
/// replies one after the other, whatever the requests contain. After the last reply, requests fail.
///
/// Agents that use the same scripted model share its replies. To give agents separate replies, give
/// each agent a model with a [name](ScriptedModel::named) of its own.
#[derive(Debug, Clone)]
pub struct ScriptedModel {
    name: String,
    script: ReplyScript,
}

#[derive(Debug, Clone, Default)]
struct ReplyScript {
    replies: VecDeque<ScriptedReply>,
    /// The pause before each piece of a reply.
    pace: Duration,
}

#[derive(Debug, Clone)]
enum ScriptedReply {
    Text(String),
    Call { name: String, args: Value },
    Failure(String),
}

impl Default for ScriptedModel {
    fn default() -> Self {
        Self::new()
    }
}

impl ScriptedModel {
    /// Creates a model with the name `scripted:script` and no replies.
    pub fn new() -> Self {
        Self::named("script")
    }

    /// Creates a model with the name `scripted:NAME` and no replies.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            script: ReplyScript::default(),
        }
    }

    /// Sets the pause before each piece of a reply, such as a word of a text. By default there is
    /// no pause, so that many words arrive in one event.
    #[must_use]
    pub fn pace(mut self, pace: Duration) -> Self {
        self.script.pace = pace;
        self
    }

    /// Adds a reply that consists of text.
    #[must_use]
    pub fn text(self, text: impl Into<String>) -> Self {
        self.reply(ScriptedReply::Text(text.into()))
    }

    /// Adds a reply that calls a tool with these arguments.
    #[must_use]
    pub fn call(self, name: impl Into<String>, args: Value) -> Self {
        self.reply(ScriptedReply::Call {
            name: name.into(),
            args,
        })
    }

    /// Adds a failure: the request fails with this message and is not retried.
    #[must_use]
    pub fn failure(self, why: impl Into<String>) -> Self {
        self.reply(ScriptedReply::Failure(why.into()))
    }

    /// Returns the name of the model, for [`Agent::model`](crate::Agent::model).
    pub fn model(&self) -> String {
        format!("{PROVIDER}:{}", self.name)
    }

    fn reply(mut self, reply: ScriptedReply) -> Self {
        self.script.replies.push_back(reply);
        self
    }
}

/// All scripted models of a runtime.
pub(super) struct ScriptedProvider {
    scripts: Mutex<BTreeMap<String, ReplyScript>>,
}

impl ScriptedProvider {
    /// Creates the provider, or returns `None` if there are no models. If two models have the same
    /// name, the second one replaces the first.
    pub(super) fn of(models: Vec<ScriptedModel>) -> Option<Arc<dyn Provider>> {
        if models.is_empty() {
            return None;
        }
        let scripts = models.into_iter().map(|model| (model.name, model.script));
        Some(Arc::new(Self {
            scripts: Mutex::new(scripts.collect()),
        }))
    }

    fn next(&self, model: &str) -> Result<(ScriptedReply, Duration), String> {
        let mut scripts = self.scripts.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(script) = scripts.get_mut(model) else {
            let known: Vec<_> = scripts.keys().map(String::as_str).collect();
            return Err(format!(
                "there is no scripted model `{model}`; there are: {}",
                known.join(", ")
            ));
        };
        let reply = script.replies.pop_front().ok_or_else(|| {
            format!(
                "the script of `{PROVIDER}:{model}` has no more replies; add one for each request"
            )
        });
        Ok((reply?, script.pace))
    }
}

impl Provider for ScriptedProvider {
    fn name(&self) -> &str {
        PROVIDER
    }

    fn server(&self) -> Option<(&str, u16)> {
        None
    }

    fn encoder(&self, _: RequestHead) -> Box<dyn Encoder> {
        Box::new(IgnoringEncoder)
    }

    fn stream(
        &self,
        _: &Clients,
        model: &str,
        _: planck_providers::WireRequest,
    ) -> BoxStream<'static, Result<planck_providers::ReplyProgress, Failure>> {
        let (pieces, pace) = match self.next(model) {
            Ok((reply, pace)) => (pieces(reply), pace),
            Err(why) => (
                vec![Err(Failure::new(FailureKind::Refused, why))],
                Duration::ZERO,
            ),
        };
        let paced = move |piece| async move {
            if !pace.is_zero() {
                tokio::time::sleep(pace).await;
            }
            piece
        };
        stream::iter(pieces).then(paced).boxed()
    }
}

/// An encoder that ignores the conversation, because the script does not depend on it.
struct IgnoringEncoder;

impl Encoder for IgnoringEncoder {
    fn push(&mut self, _: &MessageBody) {}

    fn request(&self, _: Option<&str>) -> planck_providers::WireRequest {
        planck_providers::WireRequest::default()
    }
}

fn pieces(reply: ScriptedReply) -> Vec<Result<planck_providers::ReplyProgress, Failure>> {
    let (chunks, stop) = match reply {
        ScriptedReply::Failure(why) => return vec![Err(Failure::new(FailureKind::Refused, why))],
        ScriptedReply::Text(text) => (text_chunks(&text), StopReason::End),
        ScriptedReply::Call { name, args } => (call_chunks(name, &args), StopReason::ToolUse),
    };
    let pieces = chunks
        .into_iter()
        .map(|chunk| Ok(planck_providers::ReplyProgress::Chunks(vec![chunk])));
    let finish = planck_providers::ReplyProgress::Finished(Finish::new(stop, Usage::default()));
    pieces.chain([Ok(finish)]).collect()
}

fn text_chunks(text: &str) -> Vec<Chunk> {
    let words = text.split_inclusive(' ');
    let chunk = |word: &str| Chunk::Text {
        part: 0,
        text: word.to_owned(),
    };
    words.map(chunk).collect()
}

fn call_chunks(name: String, args: &Value) -> Vec<Chunk> {
    let call = Chunk::Call {
        part: 0,
        // The runtime generates the id of each call.
        id: String::new(),
        name,
    };
    let args = Chunk::Args {
        part: 0,
        json: args.to_string(),
    };
    vec![call, args]
}
