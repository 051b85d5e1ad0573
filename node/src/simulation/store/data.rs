//! The rows of the simulated store: sessions, agents with their leases, and inboxes.

use std::collections::BTreeMap;

use planck_common::{
    AgentId, CallId, InputId, NodeId, SessionId, Timestamp,
    command::{AgentState, SessionState},
    event::{EventKind, InputKind, WorkerExit},
    usage::Usage,
};
use serde_json::Value;

use super::{log::SimRow, waits::SimWait};
use planck_cluster::planted::{PlantedFault, is_planted};
use planck_store::{
    AgentCreation, AgentRecord, Created, HeldLease, InputOutcome, LeadIncarnation, LeaseClaim,
    LeaseRelease, NewInput, NewMember, NewSession, PutResult, SessionRecord, StoreError,
    StoredInput, Stray, TaskRecord, make_up_name, numbered_name,
};

/// All rows of the store.
#[derive(Default)]
pub(crate) struct StoreData {
    pub sessions: BTreeMap<SessionId, SimSession>,
}

/// The rows of one session.
pub(crate) struct SimSession {
    record: SessionRecord,
    pub agents: Vec<AgentRecord>,
    pub inputs: Vec<StoredInput>,
    pub log: Vec<SimRow>,
    pub waits: BTreeMap<CallId, SimWait>,
    /// The waits that were opened and of which no client knows yet.
    pub opened: Vec<CallId>,
}

fn no_session(session: &str) -> StoreError {
    StoreError::NotFound(format!("there is no session {session}"))
}

impl StoreData {
    pub fn find(&self, id_or_name: &str) -> Option<&SimSession> {
        let is_meant = |session: &&SimSession| *session.record.name == *id_or_name;
        let by_id = SessionId::parse(id_or_name).ok();
        let by_id = by_id.and_then(|id| self.sessions.get(&id));
        by_id.or_else(|| self.sessions.values().find(is_meant))
    }

    pub fn session(&mut self, id: &SessionId) -> Result<&mut SimSession, StoreError> {
        self.sessions.get_mut(id).ok_or_else(|| no_session(id))
    }

    pub fn agent(&self, id: &AgentId) -> Option<AgentRecord> {
        let mut agents = self.sessions.values().flat_map(|session| &session.agents);
        agents.find(|agent| agent.id == *id).cloned()
    }

    pub fn create(&mut self, new: NewSession, node: &NodeId) -> Result<Created, StoreError> {
        new.check()?;
        if let Some(known) = self.sessions.get(&new.id) {
            return Ok(Created::Known(known.record()));
        }
        let name = new.name.clone().unwrap_or_else(|| make_up_name(9));
        let created = new.created(name, node);
        if let Created::New(record, agents) = &created {
            let inputs = new.prompt.clone().into_iter();
            let session = SimSession {
                record: record.clone(),
                agents: agents.clone(),
                inputs: inputs
                    .map(|prompt| StoredInput::unread(prompt, 0))
                    .collect(),
                log: Vec::new(),
                waits: BTreeMap::new(),
                opened: Vec::new(),
            };
            self.sessions.insert(new.id.clone(), session);
        }
        Ok(created)
    }

    /// Expires the open waits whose time is over. Returns their number.
    pub fn expire_waits(&mut self, now: Timestamp) -> u64 {
        let sessions = self.sessions.values_mut();
        sessions.map(|session| session.expire_waits(now)).sum()
    }

    pub fn sweep(&self, alive: &[NodeId]) -> Vec<Stray> {
        let lives =
            |agent: &AgentRecord| agent.node.as_ref().is_none_or(|node| alive.contains(node));
        let mut strays = Vec::new();
        for session in self.sessions.values() {
            for agent in &session.agents {
                let is_unread = |row: &StoredInput| row.input.agent == agent.id && row.is_unread();
                let has_input = session.inputs.iter().any(is_unread);
                let has_news = has_input || session.has_answer_for(&agent.id);
                let has_news = has_news && agent.is_there();
                if !lives(agent) || has_news {
                    strays.push(stray(agent));
                }
            }
        }
        strays
    }

    pub fn held_by(&self, node: &NodeId, of: impl Fn(&SessionId) -> bool) -> Vec<Stray> {
        let agents = self.sessions.values().flat_map(|session| &session.agents);
        let held = agents.filter(|agent| agent.node.as_ref() == Some(node) && of(&agent.session));
        held.map(stray).collect()
    }
}

fn stray(agent: &AgentRecord) -> Stray {
    Stray {
        session: agent.session.clone(),
        agent: agent.id.clone(),
        node: agent.node.clone(),
        epoch: agent.epoch,
    }
}

fn lease(agent: &AgentRecord) -> HeldLease {
    HeldLease {
        epoch: agent.epoch,
        last_seq: agent.last_seq,
        incarnation: agent.incarnation,
    }
}

impl SimSession {
    pub fn record(&self) -> SessionRecord {
        let lead = self.agent(&self.record.spec.lead);
        SessionRecord {
            head: self.head(),
            agents: u32::try_from(self.agents.len()).unwrap(),
            owner: lead.and_then(|lead| lead.node.clone()),
            ..self.record.clone()
        }
    }

    pub fn agent(&self, id: &AgentId) -> Option<&AgentRecord> {
        self.agents.iter().find(|agent| agent.id == *id)
    }

    /// Returns the number of the team's incarnation.
    pub fn incarnation(&self) -> i64 {
        let lead = self.agent(&self.record.spec.lead);
        lead.map_or(0, |lead| lead.incarnation)
    }

    pub(super) fn agent_mut(&mut self, id: &AgentId) -> Result<&mut AgentRecord, StoreError> {
        let found = self.agents.iter_mut().find(|agent| agent.id == *id);
        found.ok_or_else(|| StoreError::NotFound(format!("there is no agent {id}")))
    }

    pub(super) fn used(&mut self, usage: Usage) -> Usage {
        self.record.totals += usage;
        self.record.totals
    }

    pub fn set_state(&mut self, epoch: i64, state: SessionState) -> Result<(), StoreError> {
        let lead = self.agent(&self.record.spec.lead);
        if lead.is_none_or(|lead| lead.epoch != epoch) {
            return Err(StoreError::StaleEpoch("the orchestrator".into()));
        }
        self.record.state = state;
        Ok(())
    }

    pub fn claim(
        &mut self,
        agent: &AgentId,
        seen: i64,
        claim: &LeaseClaim,
        node: &NodeId,
    ) -> Result<Option<HeldLease>, StoreError> {
        let lead = self.record.spec.lead.clone();
        let led = self.agent_mut(&lead)?.incarnation;
        let may_claim = match claim {
            LeaseClaim::Lead { .. } => *agent == lead,
            LeaseClaim::Member(under) => under.lead == lead && under.incarnation == led,
        };
        let begins = matches!(claim, LeaseClaim::Lead { after_death: true });
        let found = self.agent_mut(agent)?;
        if found.epoch != seen || !may_claim {
            return Ok(lease(found).of_lost_claim(found.node.as_ref(), seen, node));
        }
        found.node = Some(node.clone());
        found.epoch += 1;
        found.incarnation += i64::from(begins);
        Ok(Some(lease(found)))
    }

    pub fn release(&mut self, release: &LeaseRelease) -> Result<(), StoreError> {
        let agent = self.agent_mut(&release.agent)?;
        if agent.epoch != release.epoch {
            let is_repeated = agent.node.is_none() && agent.epoch == release.epoch + 1;
            let stale = || StoreError::StaleEpoch(release.agent.to_string());
            return is_repeated.then_some(()).ok_or_else(stale);
        }
        agent.node = None;
        agent.epoch += 1;
        if release.stopped {
            agent.state = AgentState::Stopped;
        } else if !matches!(agent.state, AgentState::Stopped | AgentState::Waiting) {
            agent.state = AgentState::Idle;
        }
        if release.stopped {
            self.stopped(&release.agent);
        }
        Ok(())
    }

    /// Gives the inputs of a stopped agent their outcome.
    pub(super) fn stopped(&mut self, agent: &AgentId) {
        let open = self.inputs.iter_mut();
        for row in open.filter(|row| row.input.agent == *agent && row.outcome.is_none()) {
            row.outcome = Some(InputOutcome::Stopped);
        }
    }

    pub fn put(&mut self, input: NewInput) -> PutResult {
        if let Some(known) = self.inputs.iter().find(|row| row.input.id == input.id) {
            return PutResult::Known(Box::new(known.clone()));
        }
        let head = self.head();
        let Some(agent) = self.agent(&input.agent).filter(|agent| agent.is_there()) else {
            return PutResult::NotFound;
        };
        let put = PutResult::Put {
            head,
            node: agent.node.clone(),
            epoch: agent.epoch,
        };
        let mut row = StoredInput::unread(input, head);
        row.input.output = row
            .input
            .output
            .filter(|_| !is_planted(PlantedFault::ShapeUnstored));
        self.inputs.push(row);
        put
    }

    /// Returns the tasks that were given to an agent.
    pub fn tasks(&self, agent: &AgentId) -> Vec<TaskRecord> {
        let inputs = self.inputs.iter();
        let tasks = inputs
            .filter(|row| row.input.kind == InputKind::Task && row.input.agent == *agent)
            .map(|row| TaskRecord {
                id: row.input.id.clone(),
                from: row.input.sender.clone(),
                consumed: row.turn.is_some(),
                responded: self
                    .replies(&row.input.id)
                    .any(|reply| reply.kind == InputKind::Response),
            });
        tasks.collect()
    }

    /// Returns the responses to a task and the notes about it.
    fn replies<'a>(&'a self, task: &'a InputId) -> impl Iterator<Item = &'a NewInput> {
        let inputs = self.inputs.iter().map(|row| &row.input);
        inputs.filter(move |input| input.reply_to.as_ref() == Some(task))
    }

    /// Returns the number of the tasks that agents gave each other and that are over, or what is
    /// wrong with one of them. The asker of such a task has one response or one note about it. A
    /// close ends a turn without a note.
    pub fn check_tasks(&self) -> Result<u64, String> {
        let mut log = self.log.iter();
        if log.any(|row| row.row.kind == EventKind::SessionClosed) {
            return Ok(0);
        }
        let mut count = 0;
        for row in &self.inputs {
            let (input, is_over) = (&row.input, row.outcome.is_some());
            let asker = input
                .sender
                .as_ref()
                .filter(|_| input.kind == InputKind::Task);
            let Some(asker) = asker.filter(|_| is_over) else {
                continue;
            };
            let lives = |id: &AgentId| self.agent(id).is_some_and(AgentRecord::is_there);
            let replies = self
                .replies(&input.id)
                .filter(|reply| reply.agent == asker.id);
            let replies = replies.count();
            if lives(&asker.id) && lives(&input.agent) && replies != 1 {
                return Err(format!("task {} has {replies} outcomes", input.id));
            }
            count += 1;
        }
        Ok(count)
    }

    pub fn create_agent(
        &mut self,
        member: &NewMember,
        lead: &LeadIncarnation,
        node: &NodeId,
    ) -> AgentCreation {
        if let Some(known) = self.agent(&member.agent.id) {
            return AgentCreation::Known(Box::new(known.clone()));
        }
        let leads = |agent: &AgentRecord| agent.incarnation == lead.incarnation;
        let is_open = self.record.state == SessionState::Open;
        if !is_open || !self.agent(&lead.lead).is_some_and(leads) {
            return AgentCreation::TeamDead;
        }
        let mut spec = member.agent.spec.clone();
        let is_free = |name: &String| self.agents.iter().all(|agent| agent.spec.name != *name);
        let mut names = (1..).map(|n| numbered_name(&member.agent.spec.name, n));
        spec.name = names.find(is_free).unwrap();
        let name = spec.name.clone();
        self.agents.push(AgentRecord {
            session: self.record.id.clone(),
            id: member.agent.id.clone(),
            team: self.record.spec.team_id.clone(),
            spec,
            state: AgentState::Idle,
            totals: Usage::default(),
            node: Some(node.clone()),
            epoch: 1,
            last_seq: 0,
            incarnation: 0,
        });
        if let Some(task) = &member.task {
            self.put(task.clone());
        }
        let lease = HeldLease::FIRST;
        AgentCreation::Created { lease, name }
    }

    pub fn unreported_exits(&self) -> Vec<WorkerExit> {
        let lead = &self.record.spec.lead;
        let field = |row: &SimRow, name: &str| {
            let body: Value = serde_json::from_str(&row.row.body).unwrap();
            body[name].as_str().map(str::to_owned)
        };
        let is_reported = |agent: &AgentRecord| {
            let mut rows = self.log.iter().filter(|row| row.agent == *lead);
            rows.any(|row| {
                row.row.kind == EventKind::WorkerExit
                    && field(row, "id").as_deref() == Some(agent.id.as_str())
            })
        };
        let reason = |agent: &AgentRecord| {
            let stopped = self
                .log
                .iter()
                .rfind(|row| row.agent == agent.id && row.row.kind == EventKind::AgentStopped);
            stopped.and_then(|row| field(row, "reason"))
        };
        let stopped = self
            .agents
            .iter()
            .filter(|agent| agent.id != *lead && !agent.is_there() && !is_reported(agent));
        let exit = |agent: &AgentRecord| WorkerExit {
            id: agent.id.clone(),
            name: agent.spec.name.clone(),
            reason: reason(agent).unwrap_or_else(|| "stopped".into()),
        };
        stopped.map(exit).collect()
    }
}
