//! Tools of agents that call a sidecar's tool or a plain NATS subject.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use planck_common::{
    PROTOCOL_VERSION, SidecarId,
    event::{ToolEffect, json},
    sidecar::{TIMEOUT_RENEWALS, ToolRequest},
    subject::{self, Prefix},
};
use planck_telemetry::metrics;
use planck_toolbox::{Invocation, Tool, ToolOutcome};
use serde_json::{Map, Value, json, value::RawValue};

use super::{
    call::{CallContext, CallTarget, SidecarCall},
    directory::NamedTool,
    discovery::{OfferKind, SidecarOffer},
    known::KnownSidecars,
};
use crate::{
    bus::Bus,
    config::{Config, PlainTool},
    model::ToolSpec,
};

/// The argument with which a model can set the idle time-out of a call.
const TIMEOUT: &str = "timeout_ms";

/// The maximum idle time-out that a model can set.
const LONGEST: Duration = Duration::from_hours(1);

pub struct RemoteTool {
    spec: ToolSpec,
    /// The name that the sidecar itself uses for the tool.
    name: String,
    subject: String,
    target: CallTarget,
    /// The maximum time to wait for the answer or the next progress message.
    idle: Duration,
    /// Whether the tool's own schema has an argument `timeout_ms`. The argument is then passed on
    /// to the tool and does not set the idle time-out.
    has_timeout: bool,
    bus: Arc<dyn Bus>,
    /// The known instances of sidecars, for a tool that was found by a search.
    known: Option<Arc<KnownSidecars>>,
}

impl RemoteTool {
    /// Creates the tool for an offer of a sidecar. Returns `None` if the offer is a compactor.
    pub fn of(named: &NamedTool, bus: Arc<dyn Bus>, known: Arc<KnownSidecars>) -> Option<Self> {
        let SidecarOffer {
            name,
            subject,
            timeout,
            kind,
        } = &named.offer;
        let OfferKind::Tool(spec) = kind else {
            return None;
        };
        let spec = ToolSpec {
            name: named.name.clone(),
            sidecar: Some(named.sidecar.as_str().into()),
            ..spec.clone()
        };
        let target = CallTarget::Sidecar(named.sidecar.clone());
        let tool = Self::new(spec, name.clone(), subject.clone(), target, *timeout, bus);
        Some(Self {
            known: Some(known),
            ..tool
        })
    }

    /// Creates a tool for a plain NATS subject, on which any service may answer.
    pub fn plain(spec: ToolSpec, subject: String, idle: Duration, bus: Arc<dyn Bus>) -> Self {
        let name = spec.name.clone();
        Self::new(spec, name, subject, CallTarget::Plain, idle, bus)
    }

    fn new(
        spec: ToolSpec,
        name: String,
        subject: String,
        target: CallTarget,
        idle: Duration,
        bus: Arc<dyn Bus>,
    ) -> Self {
        let (parameters, has_timeout) = with_timeout(&spec.parameters, idle);
        Self {
            spec: ToolSpec { parameters, ..spec },
            name,
            subject,
            target,
            idle,
            has_timeout,
            bus,
            known: None,
        }
    }

    /// Returns the arguments to send, and the idle time-out of the call.
    fn arguments(&self, args: &RawValue) -> (Box<RawValue>, Duration) {
        if self.has_timeout || !args.get().contains(TIMEOUT) {
            return (args.to_owned(), self.idle);
        }
        let Ok(mut named) = serde_json::from_str::<Map<String, Value>>(args.get()) else {
            return (args.to_owned(), self.idle);
        };
        let named_ms = named
            .remove(TIMEOUT)
            .and_then(|millis| millis.as_u64())
            .map(Duration::from_millis);
        let rest = serde_json::value::to_raw_value(&named).unwrap_or_else(|_| args.to_owned());
        (
            rest,
            named_ms.map_or(self.idle, |named_ms| named_ms.min(LONGEST)),
        )
    }

    fn request(&self, call: &Invocation, args: Box<RawValue>, longest: Duration) -> Bytes {
        let request = ToolRequest {
            v: PROTOCOL_VERSION,
            call_id: call.call_id.clone(),
            tool: self.name.clone(),
            args,
            agent_id: call.agent_id.clone(),
            session_id: call.session_id.clone(),
            team_id: call.team_id.clone(),
            epoch: call.epoch,
            deadline_ms: u64::try_from(longest.as_millis()).unwrap_or(u64::MAX),
            may_ask: true,
            answer: call.answer.clone(),
        };
        json(&request).into()
    }
}

#[async_trait]
impl Tool for RemoteTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// Returns `None`, because the tool limits its calls itself and extends their time when the
    /// sidecar reports progress.
    fn timeout(&self, _: Duration) -> Option<Duration> {
        None
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        let (args, idle) = self.arguments(&call.args);
        let longest = idle.saturating_mul(TIMEOUT_RENEWALS);
        let request = SidecarCall {
            name: &self.spec.name,
            subject: &self.subject,
            target: &self.target,
            call_id: &call.call_id,
            body: self.request(&call, args, longest),
            idle,
            longest,
            may_run_again: self.spec.effect != ToolEffect::Mutating,
            is_repeat: call.is_repeat,
        };
        let caller = CallContext {
            bus: &*self.bus,
            cancel: &call.cancel,
            progress: &*call.progress,
            known: self.known.as_deref(),
        };
        let since = Instant::now();
        let outcome = request.run(&caller).await;
        if let Some(sidecar) = self.target.sidecar() {
            let has_failed = outcome.is_error() && outcome.question.is_none();
            metrics::meters().sidecar_called(sidecar.as_str(), has_failed, since.elapsed());
        }
        outcome
    }
}

/// Calls a tool of a sidecar by its name, without knowing its schema.
pub async fn call_tool(
    bus: &Arc<dyn Bus>,
    prefix: &Prefix,
    sidecar: &SidecarId,
    tool: &str,
    idle: Duration,
    call: Invocation,
) -> ToolOutcome {
    let spec = ToolSpec {
        name: tool.into(),
        description: String::new(),
        parameters: RawValue::NULL.to_owned().into(),
        effect: ToolEffect::Mutating,
        sidecar: None,
        wait: None,
        is_searched: true,
    };
    let subject = prefix.on(subject::tool(sidecar, tool));
    let mut called = RemoteTool::new(
        spec,
        tool.into(),
        subject,
        CallTarget::Sidecar(sidecar.clone()),
        idle,
        Arc::clone(bus),
    );
    called.has_timeout = true;
    called.run(call).await
}

/// Adds the argument `timeout_ms` to a schema that does not have it. Also returns whether the
/// schema already had that argument.
fn with_timeout(parameters: &Arc<RawValue>, idle: Duration) -> (Arc<RawValue>, bool) {
    let unchanged = |has_timeout| (Arc::clone(parameters), has_timeout);
    let Ok(mut schema) = serde_json::from_str::<Map<String, Value>>(parameters.get()) else {
        return unchanged(false);
    };
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    let Some(properties) = properties.as_object_mut() else {
        return unchanged(false);
    };
    if properties.contains_key(TIMEOUT) {
        return unchanged(true);
    }
    let about = format!(
        "How long to wait for a sign of life, in milliseconds; {} by default",
        idle.as_millis()
    );
    let most = LONGEST.as_millis();
    properties.insert(
        TIMEOUT.into(),
        json!({"type": "integer", "minimum": 1, "maximum": u64::try_from(most).unwrap_or(u64::MAX), "description": about}),
    );
    match serde_json::value::to_raw_value(&schema) {
        Ok(schema) => (schema.into(), false),
        Err(_) => unchanged(false),
    }
}

impl CallTarget {
    pub fn sidecar(&self) -> Option<&SidecarId> {
        match self {
            Self::Sidecar(sidecar) => Some(sidecar),
            Self::Plain => None,
        }
    }
}

/// Returns the configured tools. This function reports no mistakes. The configuration checks for
/// some of them, and the catalogue finds the others when the tools are added.
pub fn plain_tools(config: &Config, bus: &Arc<dyn Bus>) -> Vec<Arc<dyn Tool>> {
    let section = &config.sidecars;
    let tools = section.tools.0.iter();
    tools
        .filter_map(|(name, plain)| tool(name, plain, section.tool_timeout.0, bus))
        .collect()
}

fn tool(
    name: &str,
    plain: &PlainTool,
    usual: Duration,
    bus: &Arc<dyn Bus>,
) -> Option<Arc<dyn Tool>> {
    let spec = ToolSpec {
        name: name.into(),
        description: plain.description.clone(),
        parameters: RawValue::from_string(plain.parameters.clone()).ok()?.into(),
        effect: ToolEffect::find(&plain.effect)?,
        sidecar: None,
        wait: None,
        is_searched: true,
    };
    let idle = plain.timeout.as_ref().map_or(usual, |period| period.0);
    Some(Arc::new(RemoteTool::plain(
        spec,
        plain.subject.clone(),
        idle,
        Arc::clone(bus),
    )))
}

#[cfg(test)]
mod tests;
