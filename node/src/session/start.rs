//! Starting a session: its team resolved, recorded with its first prompt in one transaction, and
//! taken to work.

use std::{sync::Arc, time::Duration};

use futures_util::future;
use planck_common::{
    AgentId, InputId, SessionId, TeamId, Timestamp,
    command::{HostAgent, Mode, SessionsVerb, Start, Started},
    event::{Event, InputKind, SessionStarted, Warning, json},
    message::Part,
    reply::Refusal,
    spec::{AgentSpec, SessionLimits, SessionSpec},
    subject::{Address, Target},
};

use tokio::time::Instant;

use super::{
    claim::IfClosed,
    close::AT_ONCE,
    elsewhere::Hop,
    excerpt,
    place::{Homes, TRIES, choose, is_of_that_node, wanted},
    prompt::bounded,
    workspace::Chosen,
};
use crate::{
    actor::{Hosting, Opening, parts::Facts},
    cluster::placement::{self, Wanted},
    node::{Node, NodeSettings},
    store::{AgentRecord, Created, NewAgent, NewInput, NewSession, SessionRecord},
    team::{
        self, TemplateError,
        agents_file::{self, Instructions},
    },
};

/// How long another node has to start a session.
const START: Duration = Duration::from_secs(15);

/// The incarnation of a new session's lead.
const FIRST: i64 = 1;

impl Node {
    /// Starts a session, led from this node if its lead fits here; the same `session_id` again
    /// gives the same session.
    pub(crate) async fn start_session(
        &self,
        mut request: Start,
        hop: Hop,
    ) -> Result<Started, Refusal> {
        self.stays()?;
        if request
            .prompt
            .as_ref()
            .is_some_and(|prompt| prompt.trim().is_empty())
        {
            return Err(Refusal::bad_request("the prompt is empty"));
        }
        request.prompt_id = first_prompt(&request);
        if let Some(id) = &request.session_id
            && let Some(known) = self.store().session(id).await?
        {
            return Ok(started(&known, self, 0, request.prompt_id));
        }
        let workspace = self
            .workspaces()
            .meant(request.workspace.as_deref(), request.dir.as_deref())?;
        if !self.leads_in(&workspace, &request)? {
            return self.start_elsewhere(request, &workspace, hop).await;
        }
        let place = self
            .workspaces()
            .choose(Some(&workspace), request.dir.as_deref())?;
        let dir = self.workspaces().place(&place.workspace, &place.dir)?.dir;
        let Instructions { text, warning } = agents_file::load(&dir).logged();
        let specs = self.team(&request, text)?;
        let session = plan(request, place, specs, self.settings())?;
        let homes = self.homes(&workspace, &session.agents)?;
        let prompt = session.prompt.as_ref().map(|prompt| prompt.id.clone());
        let _alone = self.host().alone(&session.id).await?;
        let created = self
            .store()
            .create(session, self.id())
            .await
            .inspect_err(|_| self.host().may_miss_agents());
        let (record, new) = match created? {
            Created::New(record) => (record, true),
            Created::Known(record) => (record, false),
        };
        if new {
            self.host_all(&record, &homes, warning)
                .await
                .inspect_err(|_| self.host().may_miss_agents())?;
        }
        Ok(started(&record, self, 0, prompt))
    }

    /// Whether the lead of what is asked for fits this node. A node alone hosts what it can, and
    /// its turns say what it lacks.
    fn leads_in(&self, workspace: &str, request: &Start) -> Result<bool, Refusal> {
        if self.settings().alone {
            return Ok(true);
        }
        let wanted = self.wants(workspace, request)?;
        Ok(placement::choose(&[self.as_candidate()], &wanted, |_| 0).is_ok())
    }

    /// What the lead needs; which instructions its directory has does not matter for that.
    fn wants(&self, workspace: &str, request: &Start) -> Result<Wanted, Refusal> {
        let specs = self.team(request, None)?;
        let lead = specs
            .first()
            .ok_or_else(|| Refusal::bad_request("a team has a member"))?;
        Ok(wanted(workspace, lead))
    }

    /// Has a node that fits the lead start the session. Its id is settled before, so that no two
    /// nodes start two.
    async fn start_elsewhere(
        &self,
        mut request: Start,
        workspace: &str,
        hop: Hop,
    ) -> Result<Started, Refusal> {
        let wanted = self.wants(workspace, &request)?;
        let id = request
            .session_id
            .get_or_insert_with(SessionId::mint)
            .clone();
        let address = Address::new(Target::Sessions, SessionsVerb::Start.name());
        let mut candidates = match hop {
            Hop::First => self.other_candidates(),
            Hop::Last => Vec::new(),
        };
        candidates.push(self.as_candidate());
        let mut refused = None;
        for _ in 0..TRIES {
            let chosen = match choose(&candidates, &wanted) {
                Ok(chosen) => chosen,
                Err(why) => return Err(refused.unwrap_or_else(|| why.into())),
            };
            let body = json(&request);
            let relayed = self
                .peers()
                .relay(&chosen, &address, body.as_bytes(), START);
            match relayed.await {
                Ok(started) => return Ok(started),
                Err(refusal) if is_of_that_node(&refusal) => refused = Some(refusal),
                Err(refusal) => return Err(refusal),
            }
            if let Some(known) = self.store().session(&id).await? {
                return Ok(started(&known, self, 0, request.prompt_id));
            }
            candidates.retain(|candidate| candidate.id != chosen);
        }
        Err(refused
            .unwrap_or_else(|| Refusal::unavailable("no node could start the session; ask again")))
    }

    /// Takes a session up wherever it lies.
    pub(crate) async fn resume(
        &self,
        session: &SessionRecord,
        reason: &str,
    ) -> Result<Started, Refusal> {
        let before = session.head;
        self.take_up(&session.id, reason, IfClosed::Open).await?;
        let session = self.find_session(&session.id).await?;
        Ok(started(&session, self, before, None))
    }

    fn team(
        &self,
        request: &Start,
        instructions: Option<String>,
    ) -> Result<Vec<AgentSpec>, Refusal> {
        let source = request.team.clone().unwrap_or_else(|| "members".into());
        let mut context = self.context(source, instructions);
        let members = match (&request.team, &request.members) {
            (Some(_), Some(_)) => {
                return Err(Refusal::bad_request(
                    "name a `team` or give `members`, not both",
                ));
            }
            (Some(name), None) => {
                let template = self.template(name)?;
                if self.is_own_template(&template.file) {
                    context.models.addresses = None;
                }
                template.members
            }
            (None, members) => members.clone().unwrap_or_default(),
        };
        // Who named no member does not know of the one that there is.
        let has_members = !members.is_empty();
        team::resolve(&members, &context).map_err(|errors| {
            let told = |error: &TemplateError| match has_members {
                true => error.to_string(),
                false => format!("{}; {}", error.what, error.remedy),
            };
            let errors: Vec<String> = errors.iter().map(told).collect();
            Refusal::bad_request(errors.join("\n"))
        })
    }

    fn template(&self, name: &str) -> Result<team::Template, Refusal> {
        let sources = self.team_sources();
        let found = team::find(sources, name)
            .map_err(|clash| Refusal::bad_request(format!("{clash}; rename one of them")))?;
        let Some(file) = found else {
            let known: Vec<String> = team::list(sources)
                .into_iter()
                .map(|(name, _)| name)
                .collect();
            let known = if known.is_empty() {
                "there are none".into()
            } else {
                format!("there are {}", known.join(", "))
            };
            return Err(Refusal::not_found(format!(
                "no team `{}` on this node; {known}",
                excerpt(name)
            )));
        };
        team::load(&file).map_err(|errors| Refusal::bad_request(errors.to_string()))
    }

    /// Starts the agents of a new session, whose leases this node has: the lead here, the others
    /// where they are to be. The lead's log says what is left out of the directory's instructions,
    /// for whoever started the session.
    async fn host_all(
        &self,
        session: &SessionRecord,
        homes: &Homes,
        left_out: Option<String>,
    ) -> Result<(), Refusal> {
        let facts = Arc::new(self.facts(session, FIRST)?);
        self.raise_team(&facts).await?;
        let (lead, members): (Vec<_>, Vec<_>) = self
            .members(&session.id)
            .await?
            .into_iter()
            .partition(|agent| agent.id == session.spec.lead);
        for lead in lead {
            let (name, workspace) = (session.name.to_string(), session.spec.workspace.clone());
            let started = Event::SessionStarted(SessionStarted { name, workspace });
            let warning = left_out.clone().map(|message| Warning {
                code: "instructions_left_out".into(),
                message,
            });
            let events = std::iter::once(started)
                .chain(warning.map(Event::Warning))
                .collect();
            self.start_member(
                &facts,
                lead,
                Opening {
                    events,
                    ..Opening::default()
                },
            )
            .await?;
        }
        for some in members.chunks(AT_ONCE) {
            future::try_join_all(
                some.iter()
                    .map(|member| self.start_at_home(&facts, member, homes)),
            )
            .await?;
        }
        Ok(())
    }

    async fn start_at_home(
        &self,
        facts: &Arc<Facts>,
        member: &AgentRecord,
        homes: &Homes,
    ) -> Result<(), Refusal> {
        let home = homes.get(&member.id).filter(|home| *home != self.id());
        let gone = match home {
            Some(home) => self.hand_over(home, &claim_of(facts, member, None)).await,
            None => false,
        };
        if gone {
            Ok(())
        } else {
            self.start_member(facts, member.clone(), Opening::default())
                .await
        }
    }

    async fn start_member(
        &self,
        facts: &Arc<Facts>,
        agent: AgentRecord,
        opening: Opening,
    ) -> Result<(), Refusal> {
        self.enter(facts, &agent.id, &agent.spec).await?;
        let (session, epoch) = (Arc::clone(facts), agent.epoch);
        self.host().start(Hosting {
            session,
            agent: agent.id,
            epoch,
            opening,
            tools_from: None,
        });
        Ok(())
    }
}

/// What has a node claim a member that was recorded before.
pub(super) fn claim_of(
    facts: &Facts,
    member: &AgentRecord,
    tools_from: Option<Instant>,
) -> HostAgent {
    let wait = tools_from.map_or(0, |from| {
        from.saturating_duration_since(Instant::now()).as_millis()
    });
    HostAgent {
        session_id: facts.id.clone(),
        agent_id: member.id.clone(),
        epoch: member.epoch,
        incarnation: facts.incarnation,
        lead: facts.lead.clone(),
        team_id: facts.team.clone(),
        spec: None,
        task: None,
        tools_wait_ms: u64::try_from(wait).unwrap_or(u64::MAX),
    }
}

/// The prompt's id, which for a session of a given id is the same however often it is asked for.
fn first_prompt(request: &Start) -> Option<InputId> {
    request.prompt.as_ref()?;
    let named = request
        .prompt_id
        .clone()
        .or_else(|| request.session_id.as_ref().map(InputId::first_of));
    Some(named.unwrap_or_else(InputId::mint))
}

fn plan(
    request: Start,
    place: Chosen,
    specs: Vec<AgentSpec>,
    settings: &NodeSettings,
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
        .map(|text| bounded(json(&[Part::text(text)]), settings.max_prompt))
        .transpose()?;
    let prompt = content.map(|content| NewInput {
        id: request.prompt_id.unwrap_or_else(InputId::mint),
        agent: lead.clone(),
        kind: InputKind::Prompt,
        mode: Mode::Queue,
        sender: None,
        reply_to: None,
        content,
        fresh: false,
        at,
    });
    let spec = SessionSpec {
        team_id: TeamId::mint(),
        lead,
        workspace: place.workspace,
        dir: place.dir,
        team: request.team,
        limits: settle(request.limits, settings.session_limits),
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
