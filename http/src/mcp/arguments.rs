//! The arguments of the tools. Their schemas are what clients show to models, so the comments of the
//! fields are written for a model that knows nothing of Planck.

use std::time::Duration;

use planck_common::{
    CallId, InputId,
    spec::OutputSpec,
    wait::{WaitDecision, WaitScope},
};
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::progress::short;
use crate::{body, problem::Problem};

/// How long a call waits for the work unless it says otherwise. Clients cut calls off after 60 s.
const WAIT: Duration = Duration::from_secs(45);
/// The maximum number of characters of why an argument is refused.
const LONGEST_WHY: usize = 400;
/// The maximum of `wait_seconds`.
const MOST_WAIT: u32 = 50;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoArguments {}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunTeam {
    /// The task, with everything the team needs to know. The team does not see this conversation.
    pub prompt: String,
    /// The name of a team from `list_teams`. Without it, one agent with the default settings works.
    pub team: Option<String>,
    /// The name of the workspace from `list_teams` in which the team works: a folder on the machines
    /// that run the agents. It may be left out if `list_teams` says where the team works otherwise.
    pub workspace: Option<String>,
    /// A JSON Schema (2020-12) whose `type` is `object`. The result then has an `output` that
    /// satisfies it.
    pub output_schema: Option<Map<String, Value>>,
    /// How many seconds to wait for the end of the work: 45 by default, 50 at most. With 0 the call
    /// returns as soon as the work has begun. The work goes on in any case.
    #[schemars(range(max = MOST_WAIT))]
    pub wait_seconds: Option<u32>,
    /// A new text of 1 to 64 of the characters `A-Z a-z 0-9 _ -` that names this run. If the call
    /// fails or its connection is lost, repeat it with the same key: then nothing is started twice.
    pub request_key: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Continue {
    /// The `session` of an earlier result.
    pub session: String,
    /// The next message to the team, which remembers the session.
    pub prompt: String,
    /// A JSON Schema (2020-12) whose `type` is `object`. The result then has an `output` that
    /// satisfies it.
    pub output_schema: Option<Map<String, Value>>,
    /// How many seconds to wait for the end of the work: 45 by default, 50 at most.
    #[schemars(range(max = MOST_WAIT))]
    pub wait_seconds: Option<u32>,
    /// A new text of 1 to 64 of the characters `A-Z a-z 0-9 _ -` that names this prompt. If the call
    /// fails or its connection is lost, repeat it with the same key: then the prompt is sent once.
    pub request_key: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Status {
    /// The `session` of an earlier result, or of `list_sessions`.
    pub session: String,
    /// The `prompt_id` of an earlier result. Without it, the result is about everything that the
    /// session still has to do or, if that is nothing, about its latest prompt.
    pub prompt_id: Option<String>,
    /// How many seconds to wait while the work goes on: 45 by default, 50 at most. With 0 the call
    /// returns at once.
    #[schemars(range(max = MOST_WAIT))]
    pub wait_seconds: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListSessions {
    /// How many sessions to list: 10 by default, 50 at most.
    #[schemars(range(min = 1, max = 50))]
    pub limit: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerWait {
    /// The `session` of the result that has the wait.
    pub session: String,
    /// The `id` of the wait.
    pub wait: String,
    /// `allow` or `deny` for a wait of the kind `approval`, `change` or `budget`; `answer` or `deny`
    /// for a `question`; `answer` or `error` for a `client_tool`.
    pub decision: Decision,
    /// With `answer`, the answer: a text, or any JSON that satisfies the wait's `schema`. With `allow`
    /// for a `budget`, the new limit.
    pub value: Option<Value>,
    /// Why, for `deny` and `error`. The agent reads it.
    pub reason: Option<String>,
    /// With `allow` for an `approval`: the arguments with which the tool runs in place of the agent's.
    pub args: Option<Map<String, Value>>,
    /// With `allow` for an `approval`: `session` also allows later calls of the session that the
    /// wait's `rule` matches.
    pub scope: Option<Scope>,
    /// The `digest` of the wait. Send it so that the answer counts only for what was shown.
    pub digest: Option<String>,
    /// The `prompt_id` of the result that has the wait.
    pub prompt_id: Option<String>,
    /// How many seconds to wait for the work that continues: 45 by default, 50 at most.
    #[schemars(range(max = MOST_WAIT))]
    pub wait_seconds: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Allow,
    Deny,
    Answer,
    Error,
}

impl From<Decision> for WaitDecision {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Allow => Self::Allow,
            Decision::Deny => Self::Deny,
            Decision::Answer => Self::Answer,
            Decision::Error => Self::Error,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    Once,
    Session,
}

impl From<Scope> for WaitScope {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Once => Self::Once,
            Scope::Session => Self::Session,
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// The `session` of an earlier result.
    pub session: String,
    /// The `prompt_id` whose work ends. Without it, all that the agents have begun ends, and prompts
    /// that no agent has read yet run afterwards.
    pub prompt_id: Option<String>,
    /// Why, for the log of the session.
    pub reason: Option<String>,
}

/// Reads the arguments of a call. The error for an unknown argument lists the known ones.
pub fn read<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, Problem> {
    serde_path_to_error::deserialize(Value::Object(arguments)).map_err(|error| {
        // The texts may quote what was sent.
        let place = short(&error.path().to_string(), LONGEST_WHY);
        let why = short(&error.into_inner().to_string(), LONGEST_WHY);
        Problem::bad_request(match place.as_str() {
            "." | "?" => format!("the arguments cannot be used: {why}"),
            _ => format!("the argument `{place}` cannot be used: {why}"),
        })
    })
}

/// Returns how long a call waits.
pub fn wait(seconds: Option<u32>) -> Result<Duration, Problem> {
    match seconds {
        None => Ok(WAIT),
        Some(seconds) if seconds <= MOST_WAIT => Ok(Duration::from_secs(seconds.into())),
        Some(seconds) => Err(Problem::bad_request(format!(
            "`wait_seconds` is {seconds}, and at most {MOST_WAIT}; call `status` to wait longer"
        ))),
    }
}

/// Checks the id or name of a session.
pub fn session(text: &str) -> Result<(), Problem> {
    body::id(text)
}

pub fn prompt_id(text: Option<&str>) -> Result<Option<InputId>, Problem> {
    text.map(InputId::parse)
        .transpose()
        .map_err(|error| Problem::bad_request(format!("`prompt_id` cannot be used: {error}")))
}

pub fn wait_id(text: &str) -> Result<CallId, Problem> {
    CallId::parse(text)
        .map_err(|error| Problem::bad_request(format!("`wait` cannot be used: {error}")))
}

/// Parses a `request_key` as the id for which it stands.
pub fn request_key<T: std::str::FromStr>(key: Option<&str>) -> Result<Option<T>, Problem> {
    let parse = |key: &str| {
        key.parse().map_err(|_| {
            Problem::bad_request(
                "`request_key` cannot be used: it has 1 to 64 of the characters `A-Z a-z 0-9 _ -`",
            )
        })
    };
    key.map(parse).transpose()
}

/// Refuses a prompt without a word.
pub fn prompt(text: &str) -> Result<(), Problem> {
    match text.trim().is_empty() {
        true => Err(Problem::bad_request("the `prompt` is empty")),
        false => Ok(()),
    }
}

pub fn shape(schema: Option<Map<String, Value>>) -> Option<OutputSpec> {
    schema.map(|schema| OutputSpec {
        schema: Value::Object(schema),
        name: None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused<T: DeserializeOwned>(arguments: Value) -> String {
        let arguments = arguments.as_object().unwrap().clone();
        match read::<T>(arguments) {
            Ok(_) => String::new(),
            Err(problem) => problem.detail().to_owned(),
        }
    }

    #[test]
    fn unknown_argument_is_refused_with_the_known_ones() {
        let why = refused::<RunTeam>(json!({"prompt": "a", "dir": "/"}));
        assert!(
            why.contains("`dir`") && why.contains("`workspace`"),
            "{why}"
        );
        let why = refused::<NoArguments>(json!({"limit": 1}));
        assert!(why.contains("`limit`"), "{why}");
        let why = refused::<RunTeam>(json!({"team": "a"}));
        assert!(why.contains("`prompt`"), "{why}");
        let why = refused::<AnswerWait>(json!({"session": "a", "wait": "b", "decision": "yes"}));
        assert!(
            why.contains("`decision`") && why.contains("`allow`"),
            "{why}"
        );
        assert_eq!(refused::<RunTeam>(json!({"prompt": "a", "team": null})), "");
        let long = "x".repeat(1 << 20);
        for wrong in [
            json!({"prompt": "a", "wait_seconds": long}),
            json!({&long: 1}),
        ] {
            assert!(refused::<RunTeam>(wrong).len() < 1_000);
        }
    }

    #[test]
    fn wait_is_shorter_than_the_patience_of_clients() {
        assert_eq!(wait(None).unwrap(), WAIT);
        assert_eq!(wait(Some(0)).unwrap(), Duration::ZERO);
        assert_eq!(wait(Some(MOST_WAIT)).unwrap().as_secs(), 50);
        assert!(wait(Some(51)).unwrap_err().detail().contains("`status`"));
    }

    #[test]
    fn ids_are_checked_before_they_are_used() {
        for wrong in ["", "..", "a.b", "a b", "a*", "a>", &"x".repeat(65)] {
            assert!(session(wrong).is_err(), "{wrong}");
            assert!(prompt_id(Some(wrong)).is_err(), "{wrong}");
            assert!(wait_id(wrong).is_err(), "{wrong}");
            assert!(request_key::<InputId>(Some(wrong)).is_err(), "{wrong}");
        }
        assert!(prompt(" \n").is_err());
    }
}
