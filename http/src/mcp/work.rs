//! The results of the tools: the state of a session's work in the words of MCP's tasks, and the lists
//! of teams and of sessions.

use planck_common::{
    Timestamp,
    command::{
        AgentRow, AgentState, Outcome, Running, SessionRow, SessionState, WaitRow, WorkOutcome,
        WorkState,
    },
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

/// How many agents a result has.
const MOST_AGENTS: usize = 50;
/// How many waits a result has.
pub const MOST_WAITS: u32 = 20;
/// The maximum size of the request of a wait in bytes.
const MOST_REQUEST: usize = 32 << 10;
/// How many characters of the reply in progress a result has.
const MOST_SO_FAR: usize = 2_000;

/// The state of the work on a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The work goes on by itself.
    Working,
    /// An agent asks something, and nothing else of the work can happen before there is an answer.
    InputRequired,
    /// The work is done, and there is an answer.
    Completed,
    /// The work ended without a full answer; `reason` says why.
    Failed,
    /// The work was ended before it was done.
    Cancelled,
}

/// The work of a session.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Work {
    /// The session, for `status`, `continue`, `answer` and `cancel`.
    pub session: String,
    /// The prompt that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_id: Option<String>,
    pub state: State,
    /// The team's answer, or what there is of it if the work failed or was cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// The answer that satisfies `output_schema`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Map<String, Value>>,
    /// Whether long texts of `answer` and `output` were cut.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(default)]
    pub truncated: bool,
    /// Why the work failed or was cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The end of the reply that the team's lead is writing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub so_far: Option<String>,
    /// The agents of the session while it works.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    pub agents: Vec<AgentNow>,
    /// What agents ask.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    pub waits: Vec<OpenWait>,
    /// The next step, such as the tool to call.
    pub next: String,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct AgentNow {
    pub name: String,
    pub state: AgentState,
}

/// What an agent asks, and needs an answer to.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct OpenWait {
    /// The `wait` of `answer`.
    pub id: String,
    /// `approval`, `question`, `client_tool`, `budget` or `change`.
    pub kind: String,
    /// One line that says what is asked.
    pub title: String,
    /// The whole of what is asked or, if that is too large, a text that says where it can be seen.
    pub request: Value,
    /// The answers that a question suggests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<Vec<String>>,
    /// The JSON Schema that the `value` of an answer satisfies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// The calls that an answer with the scope `session` allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<Value>,
    pub digest: String,
    /// When the wait ends without an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

impl From<WaitRow> for OpenWait {
    fn from(wait: WaitRow) -> Self {
        let read = |json: &str| -> Value {
            match json.len() <= MOST_REQUEST {
                true => serde_json::from_str(json).unwrap_or_default(),
                // A part could hide what the rest does.
                false => format!(
                    "not shown, because it has {} bytes: look at it in the console or with `planck waits -o json` before you answer",
                    json.len()
                )
                .into(),
            }
        };
        Self {
            id: wait.id.to_string(),
            kind: wait.kind.name().to_owned(),
            title: wait.title,
            request: read(wait.request.get()),
            options: wait.options,
            schema: wait.schema.map(|schema| read(schema.get())),
            rule: wait.rule.and_then(|rule| serde_json::to_value(rule).ok()),
            digest: wait.digest,
            expires_at: wait.expires_at.map(|at| at.to_string()),
        }
    }
}

/// What a session does at the moment, for work that is not over.
#[derive(Debug, Default)]
pub struct Now {
    pub agents: Vec<AgentRow>,
    pub waits: Vec<WaitRow>,
    /// The running turn of the orchestrator.
    pub lead: Option<Running>,
}

impl Work {
    /// Returns the work that goes on as far as is known, although no node says so now.
    pub fn going_on(session: &str, prompt: &str, why: &str) -> Self {
        Self {
            next: format!(
                "{}. No node tells how far it is: {why}",
                wait_on(session, prompt)
            ),
            ..Self::of(session, Some(prompt.to_owned()), State::Working)
        }
    }

    fn of(session: &str, prompt_id: Option<String>, state: State) -> Self {
        Self {
            session: session.to_owned(),
            prompt_id,
            state,
            answer: None,
            output: None,
            truncated: false,
            reason: None,
            so_far: None,
            agents: Vec::new(),
            waits: Vec::new(),
            next: String::new(),
        }
    }

    /// Describes the work by its outcome. `now` is what the session does, if the work is not over.
    pub fn new(session: &str, outcome: Outcome, now: Now) -> Self {
        let prompt = outcome.prompt_id.as_ref().map(ToString::to_string);
        let (state, reason) = state(&outcome);
        let mut work = Self::of(session, prompt, state);
        work.truncated = outcome.truncated;
        work.reason = reason;
        work.answer = outcome.message;
        work.output = outcome
            .output
            .and_then(|output| serde_json::from_str(output.get()).ok());
        if matches!(state, State::Working | State::InputRequired) {
            let is_meant = |wait: &WaitRow| outcome.waits.contains(&wait.id);
            let (meant, others): (Vec<_>, Vec<_>) = now.waits.into_iter().partition(is_meant);
            // Work that waits for nothing itself may be behind other work of the session.
            let waits = if meant.is_empty() { others } else { meant };
            work.waits = waits.into_iter().map(OpenWait::from).collect();
            work.so_far = now.lead.as_ref().and_then(so_far);
            let agents = now
                .agents
                .into_iter()
                .filter(|agent| agent.state != AgentState::Stopped);
            let agents = agents.map(|agent| AgentNow {
                name: agent.name,
                state: agent.state,
            });
            work.agents = agents.take(MOST_AGENTS).collect();
        }
        work.next = work.next();
        work
    }

    fn next(&self) -> String {
        let session = &self.session;
        match self.state {
            State::Working => wait_on(session, self.prompt_id.as_deref().unwrap_or_default()),
            State::InputRequired => format!(
                "Show the user what `waits` asks, and call `answer` with `session` `{session}`, the wait's `id` and the user's \
                 decision. Nothing happens before"
            ),
            State::Completed => {
                format!("`continue` with `session` `{session}` sends the team a further message")
            }
            State::Failed | State::Cancelled => format!(
                "Read `reason`. `continue` with `session` `{session}` goes on from where the team was"
            ),
        }
    }

    /// Returns whether the work ended without a full answer.
    pub fn has_failed(&self) -> bool {
        self.state == State::Failed
    }

    /// Adds what the reply to a prompt warned of.
    pub fn warn(mut self, warning: Option<String>) -> Self {
        if let Some(warning) = warning.filter(|_| self.state == State::Working) {
            self.next = format!("{}. Warning: {warning}", self.next);
        }
        self
    }
}

fn wait_on(session: &str, prompt: &str) -> String {
    let about = match prompt.is_empty() {
        true => String::new(),
        false => format!(" and `prompt_id` `{prompt}`"),
    };
    format!(
        "The work goes on by itself. Call `status` with `session` `{session}`{about} to wait for the answer; do not start it again. \
         `cancel` ends it"
    )
}

/// Returns the state of the work, and why it has no full answer.
fn state(outcome: &Outcome) -> (State, Option<String>) {
    match (outcome.state, outcome.outcome) {
        (WorkState::Working, _) => (State::Working, None),
        (WorkState::Waiting, _) => (State::InputRequired, None),
        // Without a prompt the outcome only says that nothing is left to do.
        (WorkState::Over, None | Some(WorkOutcome::Completed)) => (State::Completed, None),
        (WorkState::Over, Some(how)) => {
            let (state, reason) = end(how);
            let error = outcome.error.as_ref().map(|error| error.reason.clone());
            (state, Some(error.unwrap_or(reason)))
        }
    }
}

fn end(how: WorkOutcome) -> (State, String) {
    let (state, reason) = match how {
        WorkOutcome::Completed => (State::Completed, "the work is done"),
        WorkOutcome::Aborted => (State::Cancelled, "the work was aborted"),
        WorkOutcome::Stopped => (
            State::Cancelled,
            "the agent or its session was closed before the work was done",
        ),
        WorkOutcome::Rewound => (State::Cancelled, "a rewind has hidden the prompt"),
        WorkOutcome::Truncated => (
            State::Failed,
            "the answer was cut off at the output limit of the model",
        ),
        WorkOutcome::Refused => (
            State::Failed,
            "the model refused to answer, or its provider withheld the answer",
        ),
        WorkOutcome::Limit => (State::Failed, "the work reached a limit of the agent"),
        WorkOutcome::Error => (State::Failed, "the turn failed"),
        WorkOutcome::Busy => (State::Failed, "the agent was busy"),
        WorkOutcome::Other => (
            State::Failed,
            "the work ended in a way that only a later version knows",
        ),
    };
    (state, reason.to_owned())
}

/// Returns the end of the text that an agent writes.
fn so_far(running: &Running) -> Option<String> {
    let texts = running.parts.iter().filter(|part| part.r#type == "text");
    let text: String = texts.map(|part| part.text.as_str()).collect();
    let skipped = text.chars().count().saturating_sub(MOST_SO_FAR);
    let end: String = text.chars().skip(skipped).collect();
    (!end.is_empty()).then_some(end)
}

/// The teams, and where they can work.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct TeamList {
    pub teams: Vec<TeamEntry>,
    /// The names for `workspace`.
    pub workspaces: Vec<String>,
    /// Where a team works, and whether `workspace` is needed.
    pub where_teams_work: String,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct TeamEntry {
    /// The name for `team`.
    pub name: String,
    pub description: String,
    pub members: Vec<MemberEntry>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct MemberEntry {
    pub name: String,
    pub description: String,
}

/// The latest sessions.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SessionList {
    /// Newest first.
    pub sessions: Vec<SessionEntry>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SessionEntry {
    /// The id, for `status`, `continue` and `cancel`.
    pub session: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// `working`, `waiting`, `failed`, `idle`, `interrupted` or `closed`.
    pub activity: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_prompt: Option<String>,
    /// The last line that the team's lead wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_line: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    pub created_at: String,
}

impl From<SessionRow> for SessionEntry {
    fn from(row: SessionRow) -> Self {
        let at = |at: Timestamp| at.to_string();
        Self {
            session: row.id.to_string(),
            name: row.name.to_string(),
            team: row.team,
            activity: match row.state {
                SessionState::Closed => "closed".to_owned(),
                SessionState::Open => row.activity.name().to_owned(),
            },
            first_prompt: row.first_prompt,
            last_line: row.last_line,
            failure: row.failure,
            created_at: at(row.created_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outcome(fields: Value) -> Outcome {
        let mut outcome = json!({"agent_id": "a1", "prompt_id": "p1", "head": 9});
        let all = outcome.as_object_mut().unwrap();
        all.extend(fields.as_object().unwrap().clone());
        serde_json::from_value(outcome).unwrap()
    }

    #[test]
    fn every_outcome_has_a_state_and_a_way_on() {
        for (fields, expected, told) in [
            (json!({"state": "working"}), State::Working, "`status`"),
            (
                json!({"state": "waiting"}),
                State::InputRequired,
                "`answer`",
            ),
            (
                json!({"state": "over", "outcome": "completed", "message": "done"}),
                State::Completed,
                "`continue`",
            ),
            (
                json!({"state": "over", "outcome": "aborted"}),
                State::Cancelled,
                "`reason`",
            ),
            (
                json!({"state": "over", "outcome": "rewound"}),
                State::Cancelled,
                "`reason`",
            ),
            (
                json!({"state": "over", "outcome": "limit"}),
                State::Failed,
                "`reason`",
            ),
            (
                json!({"state": "over", "outcome": "of 2031"}),
                State::Failed,
                "`reason`",
            ),
        ] {
            let work = Work::new("s1", outcome(fields), Now::default());
            assert_eq!(work.state, expected);
            assert!(work.next.contains(told), "{}", work.next);
            let has_reason = matches!(expected, State::Failed | State::Cancelled);
            assert_eq!(work.reason.is_some(), has_reason, "{work:?}");
            assert_eq!(work.has_failed(), expected == State::Failed);
        }
    }

    #[test]
    fn failed_work_says_why() {
        let error = json!({"reason": "no key", "code": "auth", "retryable": false, "inputs": []});
        let fields = json!({"state": "over", "outcome": "error", "error": error});
        let work = Work::new("s1", outcome(fields), Now::default());
        assert_eq!(work.reason.as_deref(), Some("no key"));
    }

    #[test]
    fn large_request_is_shown_whole_or_not_at_all() {
        for (size, is_shown) in [(MOST_REQUEST / 2, true), (MOST_REQUEST, false)] {
            let request = json!({"tool": "bash", "args": {"command": "x".repeat(size)}});
            let row = json!({
                "id": "c1", "session_id": "s1", "agent_id": "a1", "seq": 1, "kind": "approval", "state": "open",
                "title": "bash", "request": request, "digest": "5e0c", "opened_at": "2026-01-01T00:00:00.000Z",
            });
            let row: WaitRow = serde_json::from_str(&row.to_string()).unwrap();
            let wait = OpenWait::from(row);
            assert_eq!(wait.request == request, is_shown);
            let text = wait.request.as_str().unwrap_or("`planck waits");
            assert!(text.contains("`planck waits"), "{text}");
        }
    }

    #[test]
    fn only_the_end_of_a_long_reply_is_told() {
        let text = "é".repeat(MOST_SO_FAR + 5);
        let part = json!({"part": 0, "type": "text", "text": text});
        let thought = json!({"part": 1, "type": "thinking", "text": "hm"});
        let running = json!({"turn": 1, "request": 1, "parts": [part, thought], "tools": []});
        let running: Running = serde_json::from_value(running).unwrap();
        assert_eq!(so_far(&running).unwrap(), "é".repeat(MOST_SO_FAR));
    }
}
