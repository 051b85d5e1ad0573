//! `list_team`: lists the members of the team with their current states.

use async_trait::async_trait;
use futures_util::future;
use planck_common::{command::AgentInfo, event::ToolEffect, reply::Refusal};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{ServicesHandle, arguments, outcome, spec};
use crate::{model::ToolSpec, sessions::Sessions};
use planck_store::AgentRecord;
use planck_toolbox::{Invocation, Tool, ToolOutcome};

/// The maximum number of members that are asked for their state at once.
const AT_ONCE: usize = 64;

pub(super) struct ListTeam {
    link: ServicesHandle,
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct ListArgs {
    #[serde(default)]
    verbose: bool,
}

impl ListTeam {
    pub(super) fn new(link: ServicesHandle) -> Self {
        let spec = spec(
            "list_team",
            "List the agents of the team, yourself included: id, name, type, description, role, node, state, turn and usage.",
            ToolEffect::Pure,
            r#"{"type":"object","properties":{
                "verbose":{"type":"boolean","description":"Add each agent's model and tools"}},
              "additionalProperties":false}"#,
        );
        Self { link, spec }
    }

    async fn list(&self, call: &Invocation) -> Result<ToolOutcome, Refusal> {
        let args: ListArgs = arguments(call)?;
        let caller = self.link.caller(call).await?;
        let members = caller
            .services
            .base
            .lookup
            .members(&caller.session.id)
            .await?;
        let mut rows = Vec::with_capacity(members.len());
        for some in members.chunks(AT_ONCE) {
            let mut looks = Vec::with_capacity(AT_ONCE);
            for member in some {
                looks.push(row(&caller.services.sessions, member, args.verbose));
            }
            rows.extend(future::join_all(looks).await);
        }
        Ok(ToolOutcome::ok(Value::Array(rows).to_string()))
    }
}

/// Returns the row of a member. If the member cannot be asked, the row shows the state and the
/// usage in its record, and no turn.
async fn row(sessions: &Sessions, member: &AgentRecord, verbose: bool) -> Value {
    let info = sessions.agent_info(member).await;
    let spec = &member.spec;
    let (state, turn, usage) = match &info {
        Some(AgentInfo {
            state, turn, usage, ..
        }) => (*state, Some(*turn), *usage),
        None => (member.state, None, member.totals),
    };
    let mut row = json!({
        "id": member.id, "name": spec.name, "type": spec.r#type, "description": spec.description, "role": spec.role,
        "node_id": member.node, "state": state, "turn": turn, "usage": usage,
    });
    if verbose && let Some(row) = row.as_object_mut() {
        row.insert("model".into(), json!(spec.model));
        row.insert("tools".into(), json!(spec.tools));
    }
    row
}

#[async_trait]
impl Tool for ListTeam {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        outcome(self.list(&call).await)
    }
}
