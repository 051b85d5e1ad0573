//! The models that a client can choose: the teams, an agent with the nodes' default model, and an
//! agent with one of the known models.

use std::{collections::BTreeSet, sync::Arc};

use axum::{
    Json,
    extract::{Path, State},
};
use planck_client::Client;
use planck_common::{
    command::{NodeState, Start, TeamRow},
    spec::Member,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::error::OpenAiError;
use crate::{front::Front, problem::Problem};

/// The id of one agent with the nodes' default model.
pub const DEFAULT: &str = "planck";
/// The type of an agent whose model the client chose.
const AGENT: &str = "assistant";

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiModels")]
pub struct ModelList {
    /// Always `list`.
    object: &'static str,
    data: Vec<Model>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiModel")]
pub struct Model {
    id: String,
    /// Always `model`.
    object: &'static str,
    /// Always 0.
    created: u64,
    /// `team`, `planck` or `agent`.
    owned_by: &'static str,
}

impl Model {
    fn new(id: &str, owned_by: &'static str) -> Self {
        Self {
            id: id.to_owned(),
            object: "model",
            created: 0,
            owned_by,
        }
    }
}

pub async fn list(State(front): State<Arc<Front>>) -> Result<Json<ModelList>, OpenAiError> {
    Ok(Json(ModelList {
        object: "list",
        data: all(front.client()).await?,
    }))
}

pub async fn find(
    State(front): State<Arc<Front>>,
    path: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Result<Json<Model>, OpenAiError> {
    let Path(id) = path.map_err(|error| Problem::bad_request(error.body_text()))?;
    let known = all(front.client()).await?;
    let model = known.into_iter().find(|model| model.id == id);
    model.map(Json).ok_or_else(|| unknown(&id))
}

async fn all(client: &Client) -> Result<Vec<Model>, OpenAiError> {
    let (teams, models, nodes) = tokio::try_join!(client.teams(), client.models(), client.nodes())?;
    // The nodes know more models than those for whose providers they have keys.
    let providers: BTreeSet<_> = nodes
        .nodes
        .iter()
        .filter(|node| !matches!(node.state, NodeState::Left | NodeState::Dead))
        .flat_map(|node| &node.providers)
        .collect();
    let mut all: Vec<Model> = teams
        .teams
        .iter()
        .map(|team| Model::new(&team.name, "team"))
        .collect();
    if !all.iter().any(|model| model.id == DEFAULT) {
        all.push(Model::new(DEFAULT, "planck"));
    }
    all.extend(
        models
            .models
            .iter()
            .filter(|model| providers.contains(&model.provider))
            .map(|model| Model::new(&model.id, "agent")),
    );
    Ok(all)
}

fn unknown(id: &str) -> OpenAiError {
    let shown: String = id.chars().take(80).collect();
    OpenAiError::not_found(format!(
        "there is no model `{shown}`; `GET /openai/v1/models` lists the teams and models"
    ))
}

/// Returns the start of a session with a team, or with one agent.
pub async fn start(client: &Client, model: &str) -> Result<Start, OpenAiError> {
    let teams = client.teams().await?.teams;
    let is_team = |team: &TeamRow| team.name == model;
    if teams.iter().any(is_team) {
        return Ok(Start {
            team: Some(model.to_owned()),
            ..Start::default()
        });
    }
    if model == DEFAULT {
        return Ok(Start::default());
    }
    let (provider, name) = model.split_once(':').ok_or_else(|| unknown(model))?;
    let member = Member {
        r#type: AGENT.to_owned(),
        provider: Some(provider.to_owned()),
        model_id: Some(name.to_owned()),
        ..Member::default()
    };
    Ok(Start {
        members: Some(vec![member]),
        ..Start::default()
    })
}

/// Returns a start for a task of a client: one agent without tools, with the model that was chosen.
/// A team would do more than give an answer.
pub fn for_task(start: Start) -> Start {
    let chosen = start.members.into_iter().flatten().next();
    let member = Member {
        r#type: AGENT.to_owned(),
        tools: Some(Vec::new()),
        ..chosen.unwrap_or_default()
    };
    Start {
        members: Some(vec![member]),
        ..Start::default()
    }
}
