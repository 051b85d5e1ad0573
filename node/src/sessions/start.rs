//! Starts a session: resolves its team, records it with its first prompt in one transaction, and
//! starts its agents from the records that were just written, without reading them back from the
//! store.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future;
use planck_cluster::placement::NodeNeeds;
use planck_common::{
    AgentId, InputId, NodeId, SessionId, TeamId, Timestamp,
    command::{InputMode, SessionsVerb, Start, Started},
    event::{Event, InputKind, SessionStarted, Warning, json},
    message::Part,
    reply::{Code, Refusal},
    spec::{AgentSpec, ClientTool, OutputSpec, SessionSpec},
    subject::{Address, Target},
};
use planck_store::{AgentRecord, Created, NewAgent, NewInput, NewSession, SessionRecord};
use planck_toolbox::{catalogue::ToolEntry, outside::OutsideTool};

use super::{
    CommandOrigin, Sessions, SessionsLimits, checked_author,
    prompt::{bounded, checked_output},
};
use crate::{
    actor::{AT_ONCE, Hosting, Opening, SessionContext},
    agent::{Memory, search::TOOL_SEARCH},
    placement::{AdmissionPermit, AgentNodes, TRIES, claim_request, is_of_that_node, wanted},
    takeover::IfClosed,
    team::agents_file::{self, Instructions},
    workspace::{self, ChosenWorkspace, WorkspaceDir},
};

/// How long another node may take to answer a request to start a session.
const START: Duration = Duration::from_secs(15);

/// The maximum number of tools that a client may run for a session.
const MOST_CLIENT_TOOLS: usize = 64;

/// The maximum size in bytes of `metadata`, and of the `opts` and the `labels` of a member.
const MOST_SETTING_BYTES: usize = 64 * 1024;

impl Sessions {
    /// Starts a session, on this node if it is suitable for the orchestrator and otherwise on
    /// another node. A second request with the same `session_id` returns the same session.
    pub async fn start(
        &self,
        mut request: Start,
        origin: CommandOrigin,
    ) -> Result<Started, Refusal> {
        self.placement.local().check_accepts_work()?;
        check_settings(&request)?;
        if request
            .prompt
            .as_ref()
            .is_some_and(|prompt| prompt.trim().is_empty())
        {
            return Err(Refusal::bad_request("the prompt is empty"));
        }
        request.prompt_id = first_prompt(&request);
        request.by = checked_author(request.by)?;
        request.output = shape_of_prompt(&mut request)?;
        if let Some(id) = &request.session_id
            && let Some(known) = self.handles.store.recorded(id).await?
        {
            return Ok(started(
                &known,
                self.handles.view.id(),
                0,
                request.prompt_id,
            ));
        }
        let (workspace, dir) = (request.workspace.as_deref(), request.dir.as_deref());
        let workspace = match self.handles.lookup.workspaces().meant(workspace, dir) {
            // Which node gets the request is a matter of chance, so its answer is that of all nodes.
            Err(refusal) if workspace.is_none() && !dir.is_some_and(|dir| dir.starts_with('/')) => {
                self.placement.only_workspace().ok_or(refusal)?
            }
            meant => meant?,
        };
        if !self.lead_fits_here(&workspace, &request)? {
            return self.start_elsewhere(request, &workspace, origin).await;
        }
        let place = self
            .handles
            .lookup
            .workspaces()
            .choose(Some(&workspace), request.dir.as_deref())?;
        let WorkspaceDir { dir, root } = self
            .handles
            .lookup
            .workspaces()
            .place(&place.workspace, &place.dir)?;
        let within = workspace::within(&place.workspace, &root);
        let Instructions { text, warning } = agents_file::load(&dir, within).logged();
        let mut specs = self.library.specs(&request, text)?;
        give_client_tools(&mut specs, std::mem::take(&mut request.client_tools))?;
        let session = plan(request, place, specs, &self.limits)?;
        let nodes = self.placement.assign(&workspace, &session.agents).await?;
        self.record_and_host(session, nodes, warning).await
    }

    /// Records a session and starts its agents. If the session exists already, returns that one.
    async fn record_and_host(
        &self,
        session: NewSession,
        nodes: AgentNodes,
        warning: Option<String>,
    ) -> Result<Started, Refusal> {
        let (id, prompt) = (session.id.clone(), session.prompt.clone());
        let prompt_id = prompt.as_ref().map(|prompt| prompt.id.clone());
        let permits = self.expect_agents(&session, &nodes);
        let _guard = self.takeover.lock(&id).await?;
        let created = self
            .handles
            .store
            .create(session, self.handles.view.id())
            .await
            .inspect_err(|_| self.handles.host.may_miss_agents_of(&id));
        let record = match created? {
            Created::New(record, agents) => {
                let first = FirstAgents {
                    agents,
                    nodes,
                    permits,
                    prompt,
                    warning,
                };
                self.host_all(&record, first)
                    .await
                    .inspect_err(|_| self.handles.host.may_miss_agents_of(&id))?;
                record
            }
            Created::Known(record) => record,
        };
        Ok(started(&record, self.handles.view.id(), 0, prompt_id))
    }

    /// Returns whether this node is suitable for the orchestrator. A node without a cluster is
    /// always suitable. If such a node lacks a requirement, the orchestrator's turns fail with an
    /// error about the missing requirement.
    fn lead_fits_here(&self, workspace: &str, request: &Start) -> Result<bool, Refusal> {
        if self.handles.view.is_alone() {
            return Ok(true);
        }
        Ok(self
            .placement
            .fits_here(&self.lead_needs(workspace, request)?))
    }

    /// Returns what the orchestrator requires of a node. The instructions in the session's folder
    /// do not affect these requirements, so this function does not read the instructions.
    fn lead_needs(&self, workspace: &str, request: &Start) -> Result<NodeNeeds, Refusal> {
        let specs = self.library.specs(request, None)?;
        let lead = specs
            .first()
            .ok_or_else(|| Refusal::bad_request("a team has a member"))?;
        Ok(wanted(workspace, lead))
    }

    /// Asks up to [`TRIES`] suitable nodes, one after the other, to start the session. If the
    /// request names no session, an id is generated first, so that asking a second node cannot
    /// start a second session. Refuses a request that another node passed on.
    async fn start_elsewhere(
        &self,
        mut request: Start,
        workspace: &str,
        origin: CommandOrigin,
    ) -> Result<Started, Refusal> {
        let wanted = self.lead_needs(workspace, &request)?;
        let id = request
            .session_id
            .get_or_insert_with(SessionId::mint)
            .clone();
        let address = Address::new(Target::Sessions, SessionsVerb::Start.name());
        let mut candidates = match origin {
            CommandOrigin::Client => self.handles.view.other_candidates(),
            CommandOrigin::Peer => Vec::new(),
        };
        candidates.push(self.placement.local().candidate());
        let mut refused = None;
        for _ in 0..TRIES {
            let chosen = match self.placement.choose(&mut candidates, &wanted).await {
                Ok(chosen) => chosen,
                Err(why) => return Err(refused.unwrap_or_else(|| why.into())),
            };
            let body = json(&request);
            let relayed = self
                .handles
                .peers
                .relay(&chosen, &address, body.as_bytes(), START);
            match relayed.await {
                Ok(started) => return Ok(started),
                Err(refusal) if is_of_that_node(&refusal) => refused = Some(refusal),
                Err(refusal) => return Err(refusal),
            }
            if let Some(known) = self.handles.store.recorded(&id).await? {
                return Ok(started(
                    &known,
                    self.handles.view.id(),
                    0,
                    request.prompt_id,
                ));
            }
            candidates.retain(|candidate| candidate.id != chosen);
        }
        Err(refused
            .unwrap_or_else(|| Refusal::unavailable("no node could start the session; ask again")))
    }

    /// Takes up the agents of a session, and reopens the session if it is closed.
    pub async fn resume(&self, session: &SessionRecord, reason: &str) -> Result<Started, Refusal> {
        let before = session.head;
        self.takeover
            .take_over(&session.id, reason, IfClosed::Open)
            .await?;
        let session = self.handles.lookup.session(&session.id).await?;
        Ok(started(&session, self.handles.view.id(), before, None))
    }
}

/// Returns the id of the first prompt, or `None` if the request has no prompt. If the request
/// contains no id for the prompt, the id is derived from the request's session id, so that a
/// repeated request has the same id. Without a session id, the id is new.
fn first_prompt(request: &Start) -> Option<InputId> {
    request.prompt.as_ref()?;
    let named = request
        .prompt_id
        .clone()
        .or_else(|| request.session_id.as_ref().map(InputId::first_of));
    Some(named.unwrap_or_else(InputId::mint))
}

/// Returns the shape of the answer to the first prompt.
fn shape_of_prompt(request: &mut Start) -> Result<Option<OutputSpec>, Refusal> {
    let output = checked_output(request.output.take())?;
    if output.is_some() && request.prompt.is_none() {
        return Err(Refusal::bad_request(
            "`output` is the shape of the answer to `prompt`, and there is no `prompt`",
        ));
    }
    Ok(output)
}

fn plan(
    request: Start,
    place: ChosenWorkspace,
    specs: Vec<AgentSpec>,
    limits: &SessionsLimits,
) -> Result<NewSession, Refusal> {
    let id = request.session_id.unwrap_or_else(SessionId::mint);
    let agents: Vec<NewAgent> = specs
        .into_iter()
        .map(|spec| NewAgent {
            session: id.clone(),
            id: AgentId::mint(),
            spec,
        })
        .collect();
    let lead = agents
        .first()
        .map(|lead| lead.id.clone())
        .ok_or_else(|| Refusal::bad_request("a team has a member"))?;
    let at = Timestamp::now();
    let content = request
        .prompt
        .map(|text| bounded(json(&[Part::text(text)]), limits.max_prompt))
        .transpose()?;
    let prompt = content.map(|content| NewInput {
        id: request.prompt_id.unwrap_or_else(InputId::mint),
        agent: lead.clone(),
        kind: InputKind::Prompt,
        mode: InputMode::Queue,
        sender: None,
        by: request.by,
        reply_to: None,
        content,
        fresh: false,
        output: request.output,
        at,
    });
    let spec = SessionSpec {
        team_id: TeamId::mint(),
        lead,
        workspace: place.workspace,
        dir: place.dir,
        team: request.team,
        limits: request.limits.unwrap_or_default().within(limits.session),
        on_node_death: request.on_node_death.unwrap_or_default(),
    };
    Ok(NewSession {
        id,
        name: request.name,
        spec,
        metadata: request.metadata,
        agents,
        at,
        prompt,
    })
}

/// Returns a refusal if a setting that the node only stores and passes on is too large. Such a
/// setting is read with each reply about the session.
fn check_settings(request: &Start) -> Result<(), Refusal> {
    let members = request.members.iter().flatten().enumerate();
    let of_members = members.flat_map(|(at, member)| {
        [
            (format!("members[{at}].opts"), &member.opts),
            (format!("members[{at}].labels"), &member.labels),
        ]
    });
    let own = ("metadata".to_owned(), &request.metadata);
    for (field, value) in std::iter::once(own).chain(of_members) {
        let bytes = json(value).len();
        if bytes > MOST_SETTING_BYTES {
            return Err(Refusal::new(
                Code::TooLarge,
                format!("`{field}` has {bytes} bytes, over the limit of {MOST_SETTING_BYTES}"),
            ));
        }
    }
    Ok(())
}

/// Gives the client's tools to the orchestrator, which is the first of the specs. Returns a refusal
/// if a tool is invalid or has the name of another tool.
fn give_client_tools(specs: &mut [AgentSpec], tools: Vec<ClientTool>) -> Result<(), Refusal> {
    let Some(lead) = specs.first_mut() else {
        return Ok(());
    };
    if tools.len() > MOST_CLIENT_TOOLS {
        let count = tools.len();
        return Err(Refusal::bad_request(format!(
            "{count} client tools are over the limit of {MOST_CLIENT_TOOLS}"
        )));
    }
    for tool in tools {
        let given = lead.client_tools.iter().map(|tool| &tool.name);
        let mut taken = lead.tools.iter().chain(given);
        if taken.any(|name| *name == tool.name) || tool.name == TOOL_SEARCH {
            return Err(Refusal::bad_request(format!(
                "the orchestrator has a tool `{}` already; rename the client's tool",
                tool.name
            )));
        }
        ToolEntry::new(Arc::new(OutsideTool::of_client(&tool)))
            .map_err(|error| Refusal::bad_request(format!("client tool: {error}")))?;
        lead.client_tools.push(tool);
    }
    Ok(())
}

fn started(
    session: &SessionRecord,
    node: &NodeId,
    seq: i64,
    prompt_id: Option<InputId>,
) -> Started {
    Started {
        session_id: session.id.clone(),
        name: session.name.clone(),
        team_id: session.spec.team_id.clone(),
        orchestrator: session.spec.lead.clone(),
        node_id: session.owner.clone().unwrap_or_else(|| node.clone()),
        state: session.state,
        seq,
        prompt_id,
    }
}

/// The incarnation of a new session's team.
const FIRST: i64 = 1;

/// The agents of a new session, whose leases this node holds.
pub(super) struct FirstAgents {
    /// The orchestrator, and then the other agents.
    pub(super) agents: Vec<AgentRecord>,
    /// The node that was chosen for each agent.
    pub(super) nodes: AgentNodes,
    /// The permits that [`Sessions::expect_agents`] returned.
    pub(super) permits: HashMap<AgentId, AdmissionPermit>,
    /// The orchestrator's first prompt.
    pub(super) prompt: Option<NewInput>,
    /// Why AGENTS.md or parts of it were not used.
    pub(super) warning: Option<String>,
}

impl Sessions {
    /// Reserves a place for each agent that starts on this node. The caller does so before the
    /// session is recorded. An agent then reads its inbox if an input came before it had started.
    pub(super) fn expect_agents(
        &self,
        session: &NewSession,
        nodes: &AgentNodes,
    ) -> HashMap<AgentId, AdmissionPermit> {
        let is_here = |agent: &&AgentId| {
            nodes
                .get(*agent)
                .is_none_or(|node| node == self.handles.view.id())
        };
        let agents = session.agents.iter().map(|agent| &agent.id);
        let admission = self.placement.local().admission();
        agents
            .filter(is_here)
            .map(|agent| (agent.clone(), admission.enter_with_session(agent)))
            .collect()
    }

    /// Starts the orchestrator on this node, and each other agent on its chosen node, or here if
    /// that node refuses it.
    pub(super) async fn host_all(
        &self,
        session: &SessionRecord,
        first: FirstAgents,
    ) -> Result<(), Refusal> {
        let FirstAgents {
            agents,
            nodes,
            mut permits,
            mut prompt,
            warning,
        } = first;
        let context = Arc::new(self.handles.lookup.context(session, FIRST)?);
        self.teams.create(&context).await?;
        let (lead, members): (Vec<_>, Vec<_>) = agents
            .into_iter()
            .partition(|agent| agent.id == session.spec.lead);
        for lead in lead {
            let permit = permits.remove(&lead.id);
            let opening = Opening {
                events: first_events(session, warning.clone()),
                known: Some(Box::new((
                    lead.clone(),
                    Memory::of_new_agent(prompt.take()),
                ))),
                ..Opening::default()
            };
            self.start_member(&context, &lead, opening, permit).await?;
        }
        let members: Vec<_> = members
            .into_iter()
            .map(|member| (permits.remove(&member.id), member))
            .collect();
        let mut members = members.into_iter();
        loop {
            let some: Vec<_> = members.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                return Ok(());
            }
            let started = some
                .into_iter()
                .map(|(permit, member)| self.start_on_its_node(&context, member, permit, &nodes));
            future::try_join_all(started).await?;
        }
    }

    async fn start_on_its_node(
        &self,
        context: &Arc<SessionContext>,
        member: AgentRecord,
        permit: Option<AdmissionPermit>,
        nodes: &AgentNodes,
    ) -> Result<(), Refusal> {
        let Some(node) = nodes
            .get(&member.id)
            .filter(|node| *node != self.handles.view.id())
        else {
            let opening = Opening {
                known: Some(Box::new((member.clone(), Memory::of_new_agent(None)))),
                ..Opening::default()
            };
            return self.start_member(context, &member, opening, permit).await;
        };
        let claim = claim_request(context, &member, None);
        if self.placement.hand_over(node, &claim).await {
            return Ok(());
        }
        // The other node may have claimed the agent although its answer was lost, so the agent
        // reads its record when it starts.
        self.start_member(context, &member, Opening::default(), permit)
            .await
    }

    async fn start_member(
        &self,
        context: &Arc<SessionContext>,
        agent: &AgentRecord,
        opening: Opening,
        permit: Option<AdmissionPermit>,
    ) -> Result<(), Refusal> {
        let hosting = Hosting {
            session: Arc::clone(context),
            agent: agent.id.clone(),
            epoch: agent.epoch,
            opening,
            tools_from: None,
        };
        self.placement.start(hosting, &agent.spec, permit).await
    }
}

/// Returns the events with which the orchestrator's log begins.
fn first_events(session: &SessionRecord, left_out: Option<String>) -> Vec<Event> {
    let (name, workspace) = (session.name.to_string(), session.spec.workspace.clone());
    let started = Event::SessionStarted(SessionStarted { name, workspace });
    let warning = left_out.map(|message| Warning::new("instructions_left_out", message));
    std::iter::once(started)
        .chain(warning.map(Event::Warning))
        .collect()
}
