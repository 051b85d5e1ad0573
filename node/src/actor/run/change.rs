//! Changes the tools and the model of an agent. The changes are recorded in its spec, so that they
//! also apply when another node runs the agent.

use std::sync::Arc;

use planck_common::{
    reply::{Code, Refusal},
    spec::{AgentSpec, ModelRef},
};

use super::{Actor, names};
use crate::{
    actor::{
        host::{Changed, SpecChange},
        startup::unknown_model,
    },
    agent::Command,
};
use planck_store::StoreError;
use planck_toolbox::Toolbox;

/// A change that is recorded in the spec, and the command that applies it to the agent.
pub(in crate::actor) struct Recorded {
    pub(in crate::actor) command: Command,
    pub(in crate::actor) now: Changed,
}

/// The names of the tools by which two toolboxes differ. Both lists are empty if only a description
/// or a schema differs.
pub(in crate::actor) struct ToolsDiffer {
    pub(in crate::actor) added: Vec<String>,
    pub(in crate::actor) removed: Vec<String>,
}

impl ToolsDiffer {
    pub(in crate::actor) fn between(before: &Toolbox, after: &Toolbox) -> Option<Self> {
        let missing = |from: &Toolbox, of: &Toolbox| {
            of.names()
                .filter(|name| !from.has(name))
                .map(Into::into)
                .collect()
        };
        let differ = before.specs() != after.specs();
        differ.then(|| Self {
            added: missing(before, after),
            removed: missing(after, before),
        })
    }
}

impl Actor {
    pub(in crate::actor) async fn change(
        &mut self,
        change: SpecChange,
    ) -> Result<Recorded, Refusal> {
        match change {
            SpecChange::AddTool(name) => self.add_tool(name).await,
            SpecChange::RemoveTool(name) => self.remove_tool(name).await,
            SpecChange::Model(model) => self.change_model(model).await,
        }
    }

    async fn add_tool(&mut self, name: String) -> Result<Recorded, Refusal> {
        let mut spec = self.agent.spec().clone();
        if spec.tools.contains(&name) {
            return Err(Refusal::new(
                Code::Exists,
                format!("{} has the tool `{name}` already", spec.name),
            ));
        }
        spec.tools.push(name.clone());
        spec.tools.sort();
        self.retool(spec, vec![name], vec![]).await
    }

    async fn remove_tool(&mut self, name: String) -> Result<Recorded, Refusal> {
        let mut spec = self.agent.spec().clone();
        let before = spec.tools.len();
        spec.tools.retain(|tool| *tool != name);
        if spec.tools.len() == before {
            let message = format!(
                "{} has no tool `{name}`; it has {}",
                spec.name,
                spec.tools.join(", ")
            );
            return Err(Refusal::not_found(message));
        }
        self.retool(spec, vec![], vec![name]).await
    }

    async fn retool(
        &mut self,
        spec: AgentSpec,
        added: Vec<String>,
        removed: Vec<String>,
    ) -> Result<Recorded, Refusal> {
        let (toolbox, unknown) = self.context.tools.toolbox(&spec);
        if let Some(name) = unknown.iter().find(|name| added.contains(name)) {
            return Err(Refusal::not_found(format!("no tool `{name}` on this node")));
        }
        self.record(&spec).await?;
        self.toolbox = Arc::new(toolbox);
        let now = Changed {
            tools: names(&self.toolbox),
            model: spec.model.clone(),
        };
        Ok(Recorded {
            command: Command::Tools {
                added,
                removed,
                tools: self.toolbox.specs(),
                arguments: self.toolbox.clone(),
                named: spec.tools,
            },
            now,
        })
    }

    /// Builds the toolbox again from the agent's spec and the tools that are available now. Returns
    /// the command that applies the changes to the agent, or `None` if no tool has changed.
    pub(in crate::actor) fn refit(&mut self) -> Option<Command> {
        let (toolbox, _) = self.context.tools.toolbox(self.agent.spec());
        let ToolsDiffer { added, removed } = ToolsDiffer::between(&self.toolbox, &toolbox)?;
        self.toolbox = Arc::new(toolbox);
        Some(Command::Tools {
            added,
            removed,
            tools: self.toolbox.specs(),
            arguments: self.toolbox.clone(),
            named: self.agent.spec().tools.clone(),
        })
    }

    async fn change_model(&mut self, model: ModelRef) -> Result<Recorded, Refusal> {
        if let Err(error) = self.context.models.provider(&model) {
            return Err(Refusal::bad_request(error.to_string()));
        }
        let spec = AgentSpec {
            model: model.clone(),
            ..self.agent.spec().clone()
        };
        self.record(&spec).await?;
        let card = self.context.models.card(&model);
        let warning = unknown_model(self.context.models.warning(&model));
        let now = Changed {
            tools: names(&self.toolbox),
            model: model.clone(),
        };
        Ok(Recorded {
            command: Command::Model {
                model,
                card,
                warning,
            },
            now,
        })
    }

    /// Records the agent's present specification. If the store cannot do so now, a node that loads
    /// the agent later has the earlier one, and asks again about the limit that was raised.
    pub(in crate::actor) async fn record_spec(&mut self) {
        let spec = self.agent.spec().clone();
        if let Err(refusal) = self.record(&spec).await {
            let agent = &self.identity.agent;
            tracing::warn!(%agent, %refusal, "cannot record the raised limit of the agent");
        }
    }

    async fn record(&mut self, spec: &AgentSpec) -> Result<(), Refusal> {
        let identity = &self.identity;
        let recorded = self
            .context
            .store
            .replace_spec(&identity.session.id, &identity.agent, identity.epoch, spec)
            .await;
        recorded.map_err(|error: StoreError| error.into())
    }
}
