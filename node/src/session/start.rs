//! Starting a session: its team resolved, recorded with its first prompt in one transaction, and taken to work.

use std::sync::Arc;

use planck_common::{
    AgentId, InputId, SessionId, TeamId, Timestamp,
    command::{Mode, Start, Started},
    event::{Event, InputKind, SessionStarted, json},
    message::Part,
    reply::Refusal,
    spec::{AgentSpec, SessionLimits, SessionSpec},
};

use super::{excerpt, workspace::Chosen};
use crate::{
    actor::{Hosting, Opening},
    node::Node,
    store::{Created, NewAgent, NewInput, NewSession, SessionRecord},
    team,
};

impl Node {
    /// Starts a session on this node; the same `session_id` again gives the same session.
    pub async fn start_session(&self, mut request: Start) -> Result<Started, Refusal> {
        self.stays()?;
        if request.prompt.as_ref().is_some_and(|prompt| prompt.trim().is_empty()) {
            return Err(Refusal::bad_request("the prompt is empty"));
        }
        request.prompt_id = first_prompt(&request);
        if let Some(id) = &request.session_id
            && let Some(known) = self.store().session(id).await?
        {
            return Ok(started(&known, self, 0, request.prompt_id));
        }
        let place = self.workspaces().choose(request.workspace.as_deref(), request.dir.as_deref())?;
        let specs = self.team(&request, &place)?;
        let session = plan(request, place, specs, self.settings().session_limits)?;
        let prompt = session.prompt.as_ref().map(|prompt| prompt.id.clone());
        let _alone = self.host().alone(&session.id).await?;
        let created = self.store().create(session, self.id()).await.inspect_err(|_| self.host().may_miss_agents());
        let (record, new) = match created? {
            Created::New(record) => (record, true),
            Created::Known(record) => (record, false),
        };
        if new {
            self.host_all(&record).await.inspect_err(|_| self.host().may_miss_agents())?;
        }
        Ok(started(&record, self, 0, prompt))
    }

    /// Takes a session up wherever it lies.
    pub async fn resume(&self, session: &SessionRecord, reason: &str) -> Result<Started, Refusal> {
        let before = session.head;
        self.take_up(session, reason).await?;
        let session = self.find_session(&session.id).await?;
        Ok(started(&session, self, before, None))
    }

    fn team(&self, request: &Start, place: &Chosen) -> Result<Vec<AgentSpec>, Refusal> {
        let members = match (&request.team, &request.members) {
            (Some(_), Some(_)) => return Err(Refusal::bad_request("name a `team` or give `members`, not both")),
            (Some(name), None) => self.template(name)?.members,
            (None, members) => members.clone().unwrap_or_default(),
        };
        let dir = self.workspaces().place(&place.workspace, &place.dir)?.dir;
        let source = request.team.clone().unwrap_or_else(|| "members".into());
        team::resolve(&members, &self.context(source, &dir)).map_err(|errors| {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            Refusal::bad_request(errors.join("\n"))
        })
    }

    fn template(&self, name: &str) -> Result<team::Template, Refusal> {
        let dirs = self.team_dirs();
        let Some(file) = team::find(dirs, name) else {
            let known: Vec<String> = team::list(dirs).into_iter().map(|(name, _)| name).collect();
            let known = if known.is_empty() { "there are none".into() } else { format!("there are {}", known.join(", ")) };
            return Err(Refusal::not_found(format!("no team `{}` on this node; {known}", excerpt(name))));
        };
        team::load(&file).map_err(|errors| Refusal::bad_request(errors.to_string()))
    }

    async fn host_all(&self, session: &SessionRecord) -> Result<(), Refusal> {
        let facts = Arc::new(self.facts(session, 1)?);
        for agent in self.members(&session.id).await? {
            let mut opening = Opening::default();
            if agent.id == session.spec.lead {
                let (name, workspace) = (session.name.to_string(), session.spec.workspace.clone());
                opening.events.push(Event::SessionStarted(SessionStarted { name, workspace }));
            }
            self.host().start(Hosting { session: Arc::clone(&facts), agent: agent.id, epoch: agent.epoch, opening });
        }
        Ok(())
    }
}

/// The prompt's id, which for a session of a given id is the same however often it is asked for.
fn first_prompt(request: &Start) -> Option<InputId> {
    request.prompt.as_ref()?;
    let named = request.prompt_id.clone().or_else(|| request.session_id.as_ref().map(InputId::first_of));
    Some(named.unwrap_or_else(InputId::mint))
}

fn plan(request: Start, place: Chosen, specs: Vec<AgentSpec>, limits: SessionLimits) -> Result<NewSession, Refusal> {
    let id = request.session_id.unwrap_or_else(SessionId::mint);
    let agents: Vec<NewAgent> =
        specs.into_iter().map(|spec| NewAgent { session: id.clone(), id: AgentId::mint(), spec }).collect();
    let lead = agents.first().map(|lead| lead.id.clone()).ok_or_else(|| Refusal::bad_request("a team has a member"))?;
    let at = Timestamp::now();
    let prompt = request.prompt.map(|text| NewInput {
        id: request.prompt_id.unwrap_or_else(InputId::mint),
        agent: lead.clone(),
        kind: InputKind::Prompt,
        mode: Mode::Queue,
        sender: None,
        reply_to: None,
        content: json(&[Part::text(text)]),
        fresh: false,
        at,
    });
    let spec = SessionSpec {
        team_id: TeamId::mint(),
        lead,
        workspace: place.workspace,
        dir: place.dir,
        team: request.team,
        limits: settle(request.limits, limits),
        on_node_death: request.on_node_death.unwrap_or_default(),
    };
    Ok(NewSession { id, name: request.name, spec, metadata: request.metadata, agents, at, prompt })
}

/// What the request names, and the node's where it names nothing.
fn settle(named: Option<SessionLimits>, default: SessionLimits) -> SessionLimits {
    let named = named.unwrap_or_default();
    SessionLimits {
        max_tokens: named.max_tokens.or(default.max_tokens),
        max_cost_usd: named.max_cost_usd.or(default.max_cost_usd),
        max_agents: named.max_agents.or(default.max_agents),
        max_ask_depth: named.max_ask_depth.or(default.max_ask_depth),
    }
}

fn started(session: &SessionRecord, node: &Node, seq: i64, prompt_id: Option<InputId>) -> Started {
    Started {
        session_id: session.id.clone(),
        name: session.name.clone(),
        team_id: session.spec.team_id.clone(),
        orchestrator: session.spec.lead.clone(),
        node_id: session.owner.clone().unwrap_or_else(|| node.id().clone()),
        state: session.state,
        seq,
        prompt_id,
    }
}
