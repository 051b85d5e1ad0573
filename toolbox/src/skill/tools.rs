//! The tools `load_skill` and `list_skills` for the skills of one agent.

use std::sync::Arc;

use async_trait::async_trait;
use planck_common::event::ToolEffect;
use serde::Deserialize;
use serde_json::json;

use super::{Skills, header};
use crate::{Invocation, Tool, ToolOutcome, Unknown, args, spec};
use planck_agent::model::ToolSpec;

/// Returns the two tools for an agent with these skills.
pub fn tools(skills: &Skills) -> [Arc<dyn Tool>; 2] {
    [
        Arc::new(LoadSkill::new(skills.clone())),
        Arc::new(ListSkills::new(skills.clone())),
    ]
}

struct LoadSkill {
    spec: ToolSpec,
    skills: Skills,
}

#[derive(Deserialize)]
struct LoadSkillArgs {
    name: String,
}

impl LoadSkill {
    fn new(skills: Skills) -> Self {
        let parameters = json!({
            "type": "object",
            "properties": {"name": {"type": "string", "minLength": 1}},
            "required": ["name"],
            "additionalProperties": false,
        });
        Self {
            spec: spec(
                "load_skill",
                "Read a skill's instructions.",
                ToolEffect::Pure,
                &parameters,
            ),
            skills,
        }
    }
}

#[async_trait]
impl Tool for LoadSkill {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        let LoadSkillArgs { name } = match args(&call) {
            Ok(args) => args,
            Err(refused) => return refused,
        };
        let Some(skill) = self.skills.find(&name) else {
            return ToolOutcome::error(
                Unknown::of("skill", &name, self.skills.names()).to_string(),
            );
        };
        let wanted = skill.clone();
        match tokio::task::spawn_blocking(move || wanted.read()).await {
            Err(panic) => ToolOutcome::error(format!("failed: {panic}")),
            Ok(Ok(text)) => ToolOutcome::ok(header::body(&text)),
            Ok(Err(why)) => ToolOutcome::error(format!(
                "cannot read skill `{name}` from {}: {why}",
                skill.file.display()
            )),
        }
    }
}

struct ListSkills {
    spec: ToolSpec,
    skills: Skills,
}

impl ListSkills {
    fn new(skills: Skills) -> Self {
        let parameters = json!({"type": "object", "properties": {}, "additionalProperties": false});
        Self {
            spec: spec(
                "list_skills",
                "List your skills with their files.",
                ToolEffect::Pure,
                &parameters,
            ),
            skills,
        }
    }
}

#[async_trait]
impl Tool for ListSkills {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, _: Invocation) -> ToolOutcome {
        let skills: Vec<_> = self.skills.iter().map(|skill| {
            json!({"name": skill.name, "description": skill.description, "file": skill.file, "resources": skill.resources})
        }).collect();
        ToolOutcome::ok(json!(skills).to_string())
    }
}
