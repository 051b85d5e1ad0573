//! Answers the commands that only read sessions and agents, and lists nodes and models, using a
//! store without a running node. Stores answers to waits if the store can be written. Refuses all
//! other commands.

use std::sync::Arc;

use bytes::Bytes;
use planck_common::{
    command::{
        AgentVerb, Empty, ListWaits, Models, Nodes, ReadOutcome, SessionVerb, SessionsVerb,
        Snapshot,
    },
    reply::Refusal,
    spec::ModelRef,
    subject::{Address, Target},
};

use super::{CommandReply, agents, find, list, ok, read, sessions};
use crate::{
    bus::CommandHandler,
    lookup::{find_agent, find_session},
    sessions::{read_outcome, store_answer},
};
use planck_store::{SessionRecord, SessionStore};

/// The data from which the commands are answered.
pub struct ReadOnly {
    pub store: Arc<dyn SessionStore>,
    /// Returns the size of a model's context window in tokens.
    pub context_window: Arc<dyn Fn(&ModelRef) -> u64 + Send + Sync>,
    pub models: Arc<dyn Fn() -> Models + Send + Sync>,
    /// The largest part of an answer to a wait in bytes, or `None` if answers are refused. No agent
    /// runs here, so an answer is only stored. The node that hosts the agent, or the next one that
    /// does, reads it.
    pub answers: Option<u64>,
}

/// Returns a request handler for the commands that this module answers. The handler refuses all
/// others.
pub fn read_only_handler(sources: ReadOnly) -> CommandHandler {
    let sources = Arc::new(sources);
    Arc::new(move |address, body| {
        let sources = Arc::clone(&sources);
        Box::pin(async move { dispatch(&sources, &address, &body).await })
    })
}

async fn dispatch(sources: &ReadOnly, address: &Address, body: &Bytes) -> CommandReply {
    let Address { target, verb } = address;
    match target {
        Target::Sessions => match find(
            SessionsVerb::find,
            SessionsVerb::ALL,
            SessionsVerb::name,
            verb,
        )? {
            SessionsVerb::List => ok(sources.store.sessions(read(body)?).await?),
            SessionsVerb::Waits => {
                let filter: ListWaits = read(body)?;
                let session = match &filter.session {
                    Some(session) => Some(sources.session(session).await?.id),
                    None => None,
                };
                ok(sources.store.waits(session.as_ref(), &filter).await?)
            }
            SessionsVerb::Start => Err(acts(verb)),
        },
        Target::Session(session) => {
            let verb = find(SessionVerb::find, SessionVerb::ALL, SessionVerb::name, verb)?;
            let session = sources.session(session).await?;
            sources.one_session(session, verb, body).await
        }
        Target::Agent(agent) => {
            let verb = find(AgentVerb::find, AgentVerb::ALL, AgentVerb::name, verb)?;
            sources.one_agent(agent, verb, body).await
        }
        Target::Nodes => list(verb, body).and_then(|()| ok(Nodes { nodes: Vec::new() })),
        Target::Models => list(verb, body).and_then(|()| ok((sources.models)())),
        Target::Node(_) | Target::Teams | Target::Sidecars => Err(acts(verb)),
    }
}

impl ReadOnly {
    async fn session(&self, id_or_name: &str) -> Result<SessionRecord, Refusal> {
        find_session(&*self.store, id_or_name).await
    }

    async fn one_session(
        &self,
        session: SessionRecord,
        verb: SessionVerb,
        body: &[u8],
    ) -> CommandReply {
        match verb {
            SessionVerb::Info => {
                let Empty {} = read(body)?;
                sessions::info(&*self.store, session).await
            }
            SessionVerb::Events => {
                sessions::events(&*self.store, &session, read(body)?, usize::MAX).await
            }
            SessionVerb::Messages => sessions::messages(&*self.store, &session, read(body)?).await,
            SessionVerb::Outcome => {
                let ReadOutcome { prompt_id, .. } = read(body)?;
                ok(read_outcome(&*self.store, usize::MAX, &session, prompt_id.as_ref()).await?)
            }
            SessionVerb::Prompt
            | SessionVerb::Abort
            | SessionVerb::Rewind
            | SessionVerb::Resume
            | SessionVerb::Close
            | SessionVerb::Delete
            | SessionVerb::Rename => Err(acts(verb.name())),
            SessionVerb::Answer => {
                let most = self.answers.ok_or_else(|| acts(verb.name()))?;
                let (answered, _) = store_answer(&*self.store, most, &session, read(body)?).await?;
                ok(answered)
            }
        }
    }

    async fn one_agent(&self, agent: &str, verb: AgentVerb, body: &[u8]) -> CommandReply {
        let agent = find_agent(&*self.store, agent).await?;
        let Empty {} = match verb {
            AgentVerb::Info | AgentVerb::Snapshot => read(body)?,
            AgentVerb::Prompt
            | AgentVerb::Abort
            | AgentVerb::Stop
            | AgentVerb::Nudge
            | AgentVerb::Checkpoint
            | AgentVerb::AddTool
            | AgentVerb::RemoveTool
            | AgentVerb::ChangeModel => return Err(acts(verb.name())),
        };
        let info = agents::recorded(&agent, (self.context_window)(&agent.spec.model));
        if verb == AgentVerb::Snapshot {
            return ok(Snapshot {
                head: self.store.head(&agent.session).await?,
                info,
                running: None,
            });
        }
        ok(info)
    }
}

fn acts(verb: &str) -> Refusal {
    Refusal::bad_request(format!(
        "`{verb}` is not answered here, where sessions are only looked at"
    ))
}
