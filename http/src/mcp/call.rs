//! Performs the calls of the tools. A call starts work or looks at it, and waits for a limited time.
//! The work does not depend on the call: it goes on when the client has gone.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum::http::StatusCode;
use planck_client::{Client, ClientError};
use planck_common::{
    InputId, Seq, SessionId,
    command::{
        Answer, ListSessions, ListWaits, NodeState, Outcome, Prompt, SessionInfo, Start, WorkState,
    },
    spec::LOCAL,
};
use rmcp::model::{CallToolResult, JsonObject};
use serde::Serialize;
use serde_json::value::to_raw_value;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    arguments::{self, AnswerWait, Cancel, Continue, NoArguments, RunTeam, Status},
    progress::Progress,
    tools::ToolName,
    work::{MOST_WAITS, MemberEntry, Now, SessionList, TeamEntry, TeamList, Work},
};
use crate::{front::Front, key::Caller, problem::Problem, turn::opening_of};

/// How long a command may take that starts or changes something.
const COMMAND: Duration = Duration::from_secs(40);
/// How long a call may take in all, because clients cut calls off after 60 s.
const WHOLE: Duration = Duration::from_secs(57);
/// How long a look at the work may take, and the part of it for what agents do at the moment.
pub const LOOK: Duration = Duration::from_secs(20);
const DETAILS: Duration = Duration::from_secs(3);
/// How long a call waits for the end of work that it has aborted.
const ABORTED: Duration = Duration::from_secs(5);
/// The number of sessions in a list, by default and at most.
const SESSIONS: u32 = 10;
const MOST_SESSIONS: u32 = 50;

/// The way out if no node answers.
const GOES_ON: &str = "the work of sessions goes on, and `status` shows it";

/// One call of a tool.
pub struct Call {
    pub front: Arc<Front>,
    pub caller: Caller,
    /// Cancelled when the client no longer waits for the answer.
    pub gone: CancellationToken,
    pub progress: Progress,
    began: Instant,
}

/// Work that a call has begun.
pub struct Begun {
    pub session: SessionId,
    pub prompt: InputId,
    /// The number of the log's last row before the prompt.
    seq: Seq,
    warning: Option<String>,
}

/// The result of a call.
pub enum Performed {
    Done(CallToolResult),
    /// The client follows the work as a task.
    Begun(Begun),
}

/// Returns the result of a tool as structured content, and as the same in text.
fn result(content: &impl Serialize, has_failed: bool) -> Result<CallToolResult, Problem> {
    let content = serde_json::to_value(content)
        .map_err(|error| Problem::bad_request(format!("the answer has no JSON: {error}")))?;
    Ok(match has_failed {
        true => CallToolResult::structured_error(content),
        false => CallToolResult::structured(content),
    })
}

pub fn work_result(work: &Work) -> Result<CallToolResult, Problem> {
    result(work, work.has_failed())
}

impl Call {
    pub fn new(
        front: Arc<Front>,
        caller: Caller,
        gone: CancellationToken,
        progress: Progress,
    ) -> Self {
        Self {
            front,
            caller,
            gone,
            progress,
            began: Instant::now(),
        }
    }

    /// Performs the call. With `as_task`, does not wait for work that it begins.
    pub async fn perform(
        &mut self,
        tool: ToolName,
        given: JsonObject,
        as_task: bool,
    ) -> Result<Performed, Problem> {
        self.caller.needs(tool.role(), tool.name())?;
        let answer = match tool {
            ToolName::ListTeams => {
                let NoArguments {} = arguments::read(given)?;
                result(&self.teams().await?, false)
            }
            ToolName::ListSessions => {
                let list: arguments::ListSessions = arguments::read(given)?;
                result(&self.sessions(list.limit).await?, false)
            }
            ToolName::RunTeam => {
                let run: RunTeam = arguments::read(given)?;
                let wait = arguments::wait(run.wait_seconds)?;
                let begun = self.run(run).await?;
                return self.accompany(begun, wait, as_task).await;
            }
            ToolName::Continue => {
                let more: Continue = arguments::read(given)?;
                let wait = arguments::wait(more.wait_seconds)?;
                let begun = self.send(more).await?;
                return self.accompany(begun, wait, as_task).await;
            }
            ToolName::Status => work_result(&self.status(arguments::read(given)?).await?),
            ToolName::Answer => work_result(&self.answer(arguments::read(given)?).await?),
            ToolName::Cancel => work_result(&self.cancel(arguments::read(given)?).await?),
        };
        answer.map(Performed::Done)
    }

    /// Waits for work that the call has begun, unless the client follows it as a task.
    async fn accompany(
        &mut self,
        begun: Begun,
        wait: Duration,
        as_task: bool,
    ) -> Result<Performed, Problem> {
        match as_task {
            true => Ok(Performed::Begun(begun)),
            false => work_result(&self.follow(begun, wait).await).map(Performed::Done),
        }
    }

    /// Starts a session with a prompt. The client is told the ids before, so that it can find the
    /// session although the connection breaks meanwhile.
    async fn run(&mut self, run: RunTeam) -> Result<Begun, Problem> {
        arguments::prompt(&run.prompt)?;
        let key = run.request_key.as_deref();
        let session: SessionId = arguments::request_key(key)?.unwrap_or_else(SessionId::mint);
        let prompt: InputId = arguments::request_key(key)?.unwrap_or_else(InputId::mint);
        let mut start = Start {
            session_id: Some(session.clone()),
            team: run.team,
            workspace: run.workspace,
            prompt: Some(run.prompt),
            prompt_id: Some(prompt.clone()),
            output: arguments::shape(run.output_schema),
            ..Start::default()
        };
        self.front
            .start_defaults()
            .complete(&mut start, &self.caller)?;
        let told = format!("session {session}, prompt {prompt}: starting");
        self.progress.tell(&told).await;
        let by = self.caller.clone().author(None);
        let starting = async {
            if key.is_some() {
                return self.front.start_once(start, by).await;
            }
            start.by = by;
            Ok(self.front.client().start(start).await?)
        };
        let started = within(starting).await.map_err(|problem| {
            perhaps(problem, &format!("the session `{session}` may have been started: look with `status` before you repeat the call"))
        })?;
        Ok(Begun {
            session: started.session_id,
            prompt: started.prompt_id.unwrap_or(prompt),
            seq: started.seq,
            warning: None,
        })
    }

    /// Sends a further prompt.
    async fn send(&mut self, more: Continue) -> Result<Begun, Problem> {
        arguments::session(&more.session)?;
        arguments::prompt(&more.prompt)?;
        let key = arguments::request_key(more.request_key.as_deref())?;
        let prompt_id: InputId = key.unwrap_or_else(InputId::mint);
        let told = format!("session {}, prompt {prompt_id}: sending", more.session);
        self.progress.tell(&told).await;
        let prompt = Prompt {
            text: Some(more.prompt),
            prompt_id: Some(prompt_id.clone()),
            by: self.caller.clone().author(None),
            output: arguments::shape(more.output_schema),
            ..Prompt::default()
        };
        let client = self.front.client();
        let sending = async { Ok(client.prompt(&more.session, prompt).await?) };
        let accepted = within(sending).await.map_err(|problem| {
            perhaps(problem, &format!("the prompt `{prompt_id}` may have been sent: look with `status` before you repeat the call"))
        })?;
        Ok(Begun {
            session: accepted.session_id,
            prompt: accepted.prompt_id,
            seq: accepted.seq,
            warning: accepted.warning,
        })
    }

    /// Waits for work that the call has begun. From here on no failure may look as if nothing had
    /// begun.
    async fn follow(&mut self, begun: Begun, wait: Duration) -> Work {
        let Begun {
            session,
            prompt,
            seq,
            warning,
        } = begun;
        let watched = self.watch(&session, Some(prompt.clone()), wait, Some(seq));
        let work = watched.await;
        work.unwrap_or_else(|problem| Work::going_on(&session, &prompt, problem.detail()))
            .warn(warning)
    }

    async fn status(&mut self, given: Status) -> Result<Work, Problem> {
        arguments::session(&given.session)?;
        let prompt = arguments::prompt_id(given.prompt_id.as_deref())?;
        let wait = arguments::wait(given.wait_seconds)?;
        self.watch(&given.session, prompt, wait, None).await
    }

    async fn answer(&mut self, given: AnswerWait) -> Result<Work, Problem> {
        arguments::session(&given.session)?;
        let prompt = arguments::prompt_id(given.prompt_id.as_deref())?;
        let wait = arguments::wait(given.wait_seconds)?;
        let raw =
            |value| to_raw_value(value).map_err(|error| Problem::bad_request(error.to_string()));
        let answer = Answer {
            wait: arguments::wait_id(&given.wait)?,
            decision: given.decision.into(),
            args: given
                .args
                .map(serde_json::Value::Object)
                .as_ref()
                .map(raw)
                .transpose()?,
            value: given.value.as_ref().map(raw).transpose()?,
            reason: given.reason,
            scope: given.scope.map(Into::into),
            digest: given.digest,
            by: self.caller.clone().author(None),
        };
        self.send_answer(&given.session, &answer).await?;
        let watched = self.watch(&given.session, prompt, wait, None).await;
        watched.map_err(|problem| done(&problem, "the answer is stored"))
    }

    pub async fn send_answer(&self, session: &str, answer: &Answer) -> Result<(), Problem> {
        let client = self.front.client();
        within(async { Ok(client.answer(session, answer).await?) }).await?;
        Ok(())
    }

    async fn cancel(&mut self, given: Cancel) -> Result<Work, Problem> {
        arguments::session(&given.session)?;
        let prompt = arguments::prompt_id(given.prompt_id.as_deref())?;
        self.abort(&given.session, prompt.as_ref(), given.reason)
            .await?;
        let wait = self.began.elapsed() + ABORTED;
        let watched = self.watch(&given.session, prompt, wait, None).await;
        watched.map_err(|problem| done(&problem, "the work was aborted"))
    }

    pub async fn abort(
        &self,
        session: &str,
        prompt: Option<&InputId>,
        reason: Option<String>,
    ) -> Result<(), Problem> {
        let reason = self.caller.clone().reason(reason);
        let client = self.front.client();
        within(async { Ok(client.abort_session(session, prompt, reason).await?) }).await?;
        Ok(())
    }

    /// Waits until the work does not go on, the time since the call began is over or the client has
    /// gone, and describes the work.
    async fn watch(
        &mut self,
        session: &str,
        prompt: Option<InputId>,
        wait: Duration,
        since: Option<Seq>,
    ) -> Result<Work, Problem> {
        let client = self.front.client().clone();
        let (front, until) = (Arc::clone(&self.front), self.began + wait);
        let found = tokio::select! {
            found = client.wait_for_outcome(session, prompt.as_ref()) => Some(found?),
            () = sleep_until(until) => None,
            () = self.gone.cancelled() => None,
            () = front.stop().cancelled() => None,
            () = self.progress.follow(&front, session, since) => None,
        };
        let left = WHOLE.saturating_sub(self.began.elapsed()).min(LOOK);
        let looked = look(&client, session, prompt.as_ref(), found);
        in_time(left, GOES_ON, looked).await
    }

    async fn teams(&self) -> Result<TeamList, Problem> {
        let client = self.front.client();
        let (teams, nodes) = within(async {
            let (teams, nodes) = tokio::join!(client.teams(), client.nodes());
            Ok((teams?, nodes?))
        })
        .await?;
        let teams = teams.teams.into_iter().map(|team| TeamEntry {
            name: team.name,
            description: team.description,
            members: team
                .members
                .into_iter()
                .map(|member| MemberEntry {
                    name: member.name,
                    description: member.description,
                })
                .collect(),
        });
        let lives = |state| matches!(state, NodeState::Alive | NodeState::Suspect);
        let nodes = nodes.nodes.into_iter().filter(|node| lives(node.state));
        let workspaces: BTreeSet<_> = nodes
            .flat_map(|node| node.workspaces)
            .filter(|workspace| !workspace.starts_with(LOCAL))
            .collect();
        let defaults = self.front.start_defaults();
        let where_teams_work = match (&defaults.workspace, &defaults.dir) {
            (Some(workspace), _) => {
                format!("in the workspace `{workspace}`, unless `workspace` names another one")
            }
            (None, Some(dir)) => {
                format!("in the folder {dir}, unless `workspace` names a workspace")
            }
            (None, None) => "`run_team` needs a `workspace`".to_owned(),
        };
        Ok(TeamList {
            teams: teams.collect(),
            workspaces: workspaces.into_iter().collect(),
            where_teams_work,
        })
    }

    async fn sessions(&self, limit: Option<u32>) -> Result<SessionList, Problem> {
        let limit = limit.unwrap_or(SESSIONS);
        if !(1..=MOST_SESSIONS).contains(&limit) {
            return Err(Problem::bad_request(format!(
                "`limit` is {limit}, and must be 1 to {MOST_SESSIONS}"
            )));
        }
        let filter = ListSessions {
            limit: Some(limit),
            ..ListSessions::default()
        };
        let client = self.front.client();
        let found = within(async { Ok(client.sessions(&filter).await?) }).await?;
        Ok(SessionList {
            sessions: found.sessions.into_iter().map(Into::into).collect(),
        })
    }
}

/// Performs a command within its time.
async fn within<T>(command: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    in_time(COMMAND, GOES_ON, command).await
}

/// Waits for an answer for a limited time. `way_out` is what the caller can do if there is none.
pub async fn in_time<T>(
    limit: Duration,
    way_out: &str,
    answer: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    timeout(limit, answer).await.unwrap_or_else(|_| {
        Err(Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            format!("no node answered in time; {way_out}"),
        ))
    })
}

/// Adds to the problem of a command that may have been executed what to do about it.
fn perhaps(problem: Problem, way_out: &str) -> Problem {
    match problem.status().is_server_error() {
        true => Problem::new(problem.status(), format!("{}; {way_out}", problem.detail())),
        false => problem,
    }
}

/// Returns the problem of a look at the work after a command, so that it does not look as if the command
/// had failed.
fn done(problem: &Problem, what: &str) -> Problem {
    let text = format!(
        "{what}, but what it led to is not known; call `status`: {}",
        problem.detail()
    );
    Problem::new(problem.status(), text)
}

/// Describes the work on a prompt or, without one, of a session. `found` is its outcome, if it is
/// known.
pub async fn look(
    client: &Client,
    session: &str,
    prompt: Option<&InputId>,
    found: Option<Outcome>,
) -> Result<Work, Problem> {
    let mut outcome = match found {
        Some(found) => found,
        None => client.outcome(session, prompt, Duration::ZERO).await?,
    };
    if outcome.state != WorkState::Over {
        let now = timeout(DETAILS, now(client, session)).await;
        let now = now.ok().and_then(Result::ok).unwrap_or_default();
        return Ok(Work::new(session, outcome, now));
    }
    if prompt.is_none()
        && let Some(latest) = latest_prompt(client, session).await?
    {
        outcome = client.outcome(session, &latest, Duration::ZERO).await?;
    }
    Ok(Work::new(session, outcome, Now::default()))
}

/// Returns the latest prompt that the orchestrator has read, unless a rewind hid it.
async fn latest_prompt(client: &Client, session: &str) -> Result<Option<InputId>, ClientError> {
    let info: SessionInfo = client.session(session).await?;
    let Some(lead) = info.orchestrator() else {
        return Ok(None);
    };
    let opening = opening_of(client, &info.id, &lead.id, u32::MAX, info.head).await?;
    Ok(opening.and_then(|opening| opening.prompt))
}

/// Returns what a session does at the moment.
async fn now(client: &Client, session: &str) -> Result<Now, ClientError> {
    let waits = ListWaits {
        session: Some(session.to_owned()),
        limit: Some(MOST_WAITS),
        ..ListWaits::default()
    };
    let (info, waits) = tokio::try_join!(client.session(session), client.waits(&waits))?;
    let lead = info.orchestrator().map(|lead| lead.id.clone());
    let running = match lead {
        // An agent that no node hosts now has no snapshot.
        Some(lead) => client.snapshot(&lead).await.ok(),
        None => None,
    };
    Ok(Now {
        agents: info.agents,
        waits: waits.waits,
        lead: running.and_then(|snapshot| snapshot.running),
    })
}
