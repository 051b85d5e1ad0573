//! Births on this node. Agents of one life of a team that come while others are being born are born
//! together after them: one look at the team's record, one write of theirs, one statement.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::future;
use planck_common::{
    Timestamp,
    command::{AgentState, FirstTask, HostAgent, Hosted, Mode},
    event::{InputKind, json},
    message::Part,
    reply::{Code, Refusal},
    spec::AgentSpec,
    usage::Usage,
};
use tokio::sync::oneshot;

use super::{door::Guest, host::team_moved};
use crate::{
    actor::{Hosting, Opening, parts::Facts},
    agent::Memory,
    cluster::cascade::Life,
    node::Node,
    store::{AgentRecord, Birth, Lease, NewAgent, NewInput, Newborn, Under},
};

/// Agents that are born together at most.
const TOGETHER: usize = 64;

/// Who waits to be born, by the lives of their teams. A life is here as long as somebody is at its
/// births.
#[derive(Default)]
pub struct Births(Arc<Mutex<BTreeMap<Life, Vec<Coming>>>>);

/// An agent that waits to be born.
struct Coming {
    request: HostAgent,
    newborn: Newborn,
    guest: Guest,
    hosted: oneshot::Sender<Result<Hosted, Refusal>>,
}

/// Being at the births of one life. Whoever waits when this is dropped hears that nobody is.
struct Shift {
    births: Births,
    life: Life,
    is_over: bool,
}

impl Births {
    /// Joins those who wait; whoever comes first gets the shift.
    fn join(&self, life: Life, coming: Coming) -> Option<Shift> {
        let mut waiting = self.lock();
        if let Some(waiting) = waiting.get_mut(&life) {
            waiting.push(coming);
            return None;
        }
        waiting.insert(life.clone(), vec![coming]);
        Some(Shift {
            births: Self(Arc::clone(&self.0)),
            life,
            is_over: false,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Life, Vec<Coming>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shift {
    /// The next group, in which each agent is once; `None` ends the shift.
    fn next(&mut self) -> Option<Vec<Coming>> {
        let mut all = self.births.lock();
        let waiting = all
            .get_mut(&self.life)
            .filter(|waiting| !waiting.is_empty());
        let Some(waiting) = waiting else {
            all.remove(&self.life);
            self.is_over = true;
            return None;
        };
        let mut known = BTreeSet::new();
        let group = waiting
            .iter()
            .take(TOGETHER)
            .take_while(|coming| known.insert(coming.request.agent_id.clone()))
            .count();
        Some(waiting.drain(..group).collect())
    }
}

impl Drop for Shift {
    fn drop(&mut self) {
        if !self.is_over {
            self.births.lock().remove(&self.life);
        }
    }
}

impl Coming {
    fn tell(self, hosted: Result<Hosted, Refusal>) {
        // Whoever asked may have given up; the agent is where its record says.
        let _ = self.hosted.send(hosted);
    }
}

impl Node {
    /// An agent is born here, with whoever else is just then.
    pub(super) async fn bear(
        &self,
        request: HostAgent,
        spec: AgentSpec,
        guest: Guest,
    ) -> Result<Hosted, Refusal> {
        let shutting_down = || Refusal::unavailable("the node is shutting down");
        let node = self.own().ok_or_else(shutting_down)?;
        let (hosted, answer) = oneshot::channel();
        let life = Life {
            team: request.team_id.clone(),
            incarnation: request.incarnation,
        };
        let newborn = newborn(&request, spec);
        if let Some(mut shift) = self.births().join(
            life,
            Coming {
                request,
                newborn,
                guest,
                hosted,
            },
        ) {
            self.tasks().spawn(async move {
                while let Some(group) = shift.next() {
                    node.bear_together(group).await;
                }
            });
        }
        answer.await.unwrap_or_else(|_| Err(shutting_down()))
    }

    /// In the order that makes a birth safe: the members' records, on condition that the team is
    /// alive, then SQL, then the start.
    async fn bear_together(&self, group: Vec<Coming>) {
        let (facts, births) = match self.write_down(&group).await {
            Ok(born) => born,
            Err(refusal) => {
                return group
                    .into_iter()
                    .for_each(|coming| coming.tell(Err(refusal.clone())));
            }
        };
        let unborn = group
            .iter()
            .zip(&births)
            .filter(|(_, birth)| !matches!(birth, Birth::Born { .. }));
        let absent = unborn
            .map(|(coming, _)| &coming.request.agent_id)
            .filter(|agent| !self.host().has(agent));
        future::join_all(absent.map(|agent| self.did_not_enter(&facts, agent))).await;
        for (coming, birth) in group.into_iter().zip(births) {
            match birth {
                Birth::Born { lease, name } => self.begin(&facts, coming, lease, name).await,
                unborn @ (Birth::Known(_)
                | Birth::TeamDead
                | Birth::Full { .. }
                | Birth::Refused(_)) => {
                    coming.tell(self.unborn(unborn));
                }
            }
        }
    }

    async fn write_down(&self, group: &[Coming]) -> Result<(Arc<Facts>, Vec<Birth>), Refusal> {
        let first = group
            .first()
            .map(|coming| &coming.request)
            .ok_or_else(team_moved)?;
        let facts = self.facts_of(first).await?;
        let agents = group.iter().map(
            |Coming {
                 newborn: Newborn { agent, .. },
                 ..
             }| (&agent.id, &agent.spec),
        );
        self.enter_all(&facts, agents).await?;
        self.host().may_miss_agents();
        let born: Vec<Newborn> = group.iter().map(|coming| coming.newborn.clone()).collect();
        let under = Under {
            lead: first.lead.clone(),
            incarnation: first.incarnation,
        };
        let births = self
            .store()
            .births(&facts.id, &born, &under, self.id())
            .await?;
        Ok((facts, births))
    }

    /// Starts a newborn with what the store has of it, which needs not be read.
    async fn begin(&self, facts: &Arc<Facts>, coming: Coming, lease: Lease, name: String) {
        let Coming {
            request: _,
            newborn: Newborn { agent, task },
            guest,
            hosted,
        } = coming;
        let has_task = task.is_some();
        let record = AgentRecord {
            session: agent.session,
            id: agent.id.clone(),
            team: facts.team.clone(),
            spec: AgentSpec {
                name: name.clone(),
                ..agent.spec
            },
            state: AgentState::Idle,
            totals: Usage::default(),
            node: Some(self.id().clone()),
            epoch: lease.epoch,
            last_seq: lease.last_seq,
            incarnation: lease.incarnation,
        };
        let opening = Opening {
            known: Some(Box::new((record, Memory::of_newborn(task)))),
            ..Opening::default()
        };
        let (epoch, id) = (lease.epoch, agent.id);
        let (session, agent) = (Arc::clone(facts), id.clone());
        let asked_for = guest.comes_in(|| {
            self.host().start(Hosting {
                session,
                agent,
                epoch,
                opening,
                tools_from: None,
            })
        });
        let _ = hosted.send(Ok(Hosted {
            node_id: self.id().clone(),
            epoch,
            name,
            has_task,
        }));
        if asked_for {
            let _it_left = self.host().look(&id).await;
        }
    }

    fn unborn(&self, birth: Birth) -> Result<Hosted, Refusal> {
        match birth {
            Birth::Known(record) => {
                let node_id = record.node.clone().unwrap_or_else(|| self.id().clone());
                Ok(Hosted {
                    node_id,
                    epoch: record.epoch,
                    name: record.spec.name,
                    has_task: false,
                })
            }
            Birth::Full { max } => Err(Refusal::new(
                Code::Limit,
                format!("the session has had its {max} agents (max_agents)"),
            )),
            Birth::Refused(why) => Err(Refusal::bad_request(why)),
            Birth::TeamDead | Birth::Born { .. } => Err(team_moved()),
        }
    }
}

fn newborn(request: &HostAgent, spec: AgentSpec) -> Newborn {
    let task = request
        .task
        .clone()
        .map(|FirstTask { id, from, text }| NewInput {
            id,
            agent: request.agent_id.clone(),
            kind: InputKind::Task,
            mode: Mode::Queue,
            sender: Some(from),
            reply_to: None,
            content: json(&[Part::text(text)]),
            fresh: false,
            at: Timestamp::now(),
        });
    Newborn {
        agent: NewAgent {
            session: request.session_id.clone(),
            id: request.agent_id.clone(),
            spec,
        },
        task,
    }
}
