//! The commands `planck waits` and `planck answer`.

use std::collections::{BTreeSet, HashMap};

use clap::Args;
use futures_util::StreamExt as _;
use planck_common::{
    SessionId, Timestamp,
    command::{Answer, ListWaits, SessionInfo, WaitRow},
    wait::{WaitDecision, WaitKind, WaitScope, WaitState},
};
use serde_json::value::{RawValue, to_raw_value};

use super::{
    connect::ConnectedClient,
    exit::{Exit, NotFound, UsageError},
    output::{Format, Output, say, warn},
    place::ConfigPlace,
    render::style::{counted, cut, duration},
};
use planck_client::Client;
use planck_host::environment;

/// The number of characters of an id that the list shows. More are shown if two ids begin alike.
const SHORT: usize = 8;

/// The number of waits in one request.
const PAGE: u32 = 500;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck waits
  planck waits --session bold-oak -o json
  planck answer 67f260c4 allow")]
pub struct WaitsArgs {
    /// Only waits of this session
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck answer 67f260c4 allow
  planck answer 67f260c4 allow --session       # and later calls like this one
  planck answer 67f260c4 deny --reason \"not on a Friday\"
  planck answer 9c1e \"Use the blue one.\"")]
pub struct AnswerArgs {
    /// The wait's id, or as many of its first characters as make it clear
    wait: String,
    /// `allow`, `deny`, or the answer to a question; for a limit its new value
    answer: String,
    /// Why it is denied; the model reads this
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Allow later calls of the session, too, if the wait's rule matches them
    #[arg(long)]
    session: bool,
    /// Run the call with these arguments in place of the model's
    #[arg(long, value_name = "JSON")]
    args: Option<String>,
}

impl WaitsArgs {
    pub async fn perform(self, place: &ConfigPlace) -> anyhow::Result<Exit> {
        let config = place.config()?;
        let link = ConnectedClient::look(&config).await?;
        let waits = every_wait(&link.client, open(self.session)).await;
        let mut names = WaiterNames::default();
        if let (Ok(waits), Format::Table) = (&waits, self.output.output) {
            names.learn(&link.client, waits).await;
        }
        link.close().await;
        let waits = waits?;
        let length = short(&waits);
        let rows = waits.iter().map(|wait| row(wait, length, &names)).collect();
        self.output
            .list(&waits, &["wait", "kind", "for", "session", "what"], rows)?;
        Ok(Exit::Done)
    }
}

impl AnswerArgs {
    pub async fn perform(self, place: &ConfigPlace) -> anyhow::Result<Exit> {
        let config = place.config_to_act(None)?;
        let link = ConnectedClient::answer(&config).await?;
        let answered = self.answer(&link.client).await;
        let is_of_store = link.is_of_store();
        let mut names = WaiterNames::default();
        if let (Ok((_, wait)), true) = (&answered, is_of_store) {
            names.learn(&link.client, std::slice::from_ref(wait)).await;
        }
        link.close().await;
        let (decision, wait) = answered?;
        say(&format!("{}: {}\n", decision.name(), wait.title))?;
        if is_of_store {
            let session = names.session(&wait);
            warn(&format!(
                "planck: the answer is stored; the session continues where it is open, or with `planck chat --session {session}`"
            ));
        }
        Ok(Exit::Done)
    }

    /// Sends the answer. Returns the decision that holds, and the wait.
    async fn answer(&self, client: &Client) -> anyhow::Result<(WaitDecision, WaitRow)> {
        let wait = self.find(client).await?;
        let answer = self.to_send(&wait)?;
        let answered = client.answer(&wait.session_id, &answer).await?;
        Ok((answered.decision, wait))
    }

    /// Returns the wait that the command line names: an open one, or else one that is over.
    async fn find(&self, client: &Client) -> anyhow::Result<WaitRow> {
        for state in [WaitState::Open, WaitState::Answered, WaitState::Closed] {
            let filter = ListWaits {
                state: Some(state),
                id: Some(self.wait.clone()),
                ..ListWaits::default()
            };
            let mut waits = every_wait(client, filter).await?;
            if waits.len() > 1 {
                let count = waits.len();
                let why = format!(
                    "{count} waits begin with `{}`; write more of the id",
                    self.wait
                );
                return Err(UsageError(why).into());
            }
            if let Some(wait) = waits.pop() {
                return Ok(wait);
            }
        }
        let why = format!(
            "no wait begins with `{}`; `planck waits` lists them",
            self.wait
        );
        Err(NotFound(why).into())
    }

    fn to_send(&self, wait: &WaitRow) -> Result<Answer, UsageError> {
        let decision = decision(wait.kind, &self.answer)?;
        let value = match (decision, wait.kind) {
            (WaitDecision::Answer, _) => Some(value_of(&self.answer, wait.schema.is_some())?),
            (WaitDecision::Allow, WaitKind::Budget) => Some(json("the limit", &self.answer)?),
            _ => None,
        };
        let args = self.args.as_deref().map(|args| json("--args", args));
        Ok(Answer {
            wait: wait.id.clone(),
            decision,
            args: args.transpose()?,
            value,
            reason: self.reason.clone(),
            scope: self.session.then_some(WaitScope::Session),
            digest: Some(wait.digest.clone()),
            by: own_name(),
        })
    }
}

/// Returns the name that the prompts, rewinds and answers of this user carry.
pub fn own_name() -> Option<String> {
    environment::variable("USER").and_then(|name| name.into_string().ok())
}

/// Returns the lines that say what waits in a session, and how to answer and continue. Without a
/// cluster (`is_alone`) no process reads the answer until the session is opened again.
pub fn left_open(session: &str, waits: &[WaitRow], is_alone: bool) -> String {
    let length = short(waits);
    let line = |wait: &WaitRow| {
        let id: String = wait.id.chars().take(length).collect();
        let how = match wait.kind {
            WaitKind::Approval | WaitKind::Change => "allow|deny",
            WaitKind::Question | WaitKind::ClientTool => "TEXT",
            WaitKind::Budget => "NEW-LIMIT|deny",
        };
        format!("  planck answer {id} {how}    {}\n", cut(&wait.title, 120))
    };
    let what = match waits.len() {
        0 => "nothing any more".to_owned(),
        count => counted(count, "answer"),
    };
    let then = match is_alone {
        true => format!("after that, `planck chat --session {session}` continues"),
        false => format!("`planck session attach {session}` shows how it continues"),
    };
    let lines: String = waits.iter().map(line).collect();
    format!("planck: session {session} waits for {what}\n{lines}  {then}")
}

/// Reads the open waits of a session.
pub async fn open_waits(client: &Client, session: &str) -> anyhow::Result<Vec<WaitRow>> {
    every_wait(client, open(Some(session.to_owned()))).await
}

/// Returns the filter for the open waits of a session, or of all sessions.
fn open(session: Option<String>) -> ListWaits {
    ListWaits {
        state: Some(WaitState::Open),
        session,
        ..ListWaits::default()
    }
}

/// Reads every wait that a filter selects, page by page.
async fn every_wait(client: &Client, mut filter: ListWaits) -> anyhow::Result<Vec<WaitRow>> {
    filter.limit = Some(PAGE);
    let mut waits = Vec::new();
    loop {
        let page = client.waits(&filter).await?;
        waits.extend(page.waits);
        if page.next.is_none() {
            return Ok(waits);
        }
        filter.after = page.next;
    }
}

/// Returns the decision that a word means for a wait of this kind.
fn decision(kind: WaitKind, word: &str) -> Result<WaitDecision, UsageError> {
    match (kind, word) {
        (_, "deny") => Ok(WaitDecision::Deny),
        (WaitKind::Approval | WaitKind::Change, "allow") => Ok(WaitDecision::Allow),
        (WaitKind::Budget, "allow") => Err(UsageError(
            "write the new limit in place of `allow`, such as 10".into(),
        )),
        (WaitKind::Budget, _) => Ok(WaitDecision::Allow),
        (WaitKind::Question | WaitKind::ClientTool, _) => Ok(WaitDecision::Answer),
        (WaitKind::Approval | WaitKind::Change, other) => Err(UsageError(format!(
            "an approval or a change is answered with `allow` or `deny`, not with `{}`",
            cut(other, 40)
        ))),
    }
}

/// Returns the value of an answer. A wait with a schema takes JSON, if the text is JSON.
pub fn value_of(text: &str, has_schema: bool) -> Result<Box<RawValue>, UsageError> {
    let as_json = has_schema
        .then(|| serde_json::from_str(text).ok())
        .flatten();
    match as_json {
        Some(value) => Ok(value),
        None => to_raw_value(text).map_err(|error| UsageError(error.to_string())),
    }
}

fn json(what: &str, text: &str) -> Result<Box<RawValue>, UsageError> {
    serde_json::from_str(text).map_err(|error| UsageError(format!("{what} is no JSON: {error}")))
}

/// Returns how many characters of each id distinguish the waits.
fn short(waits: &[WaitRow]) -> usize {
    let mut ids: Vec<&str> = waits.iter().map(|wait| wait.id.as_str()).collect();
    ids.sort_unstable();
    let same = |(one, other): (&&str, &&str)| {
        let pairs = one.bytes().zip(other.bytes());
        pairs.take_while(|(one, other)| one == other).count()
    };
    let longest = ids.iter().zip(ids.iter().skip(1)).map(same).max();
    SHORT.max(longest.map_or(0, |same| same + 1))
}

fn row(wait: &WaitRow, length: usize, names: &WaiterNames) -> Vec<String> {
    let age = Timestamp::now().millis_since(wait.opened_at);
    vec![
        wait.id.chars().take(length).collect(),
        wait.kind.name().into(),
        duration(age),
        names.of(wait),
        cut(&wait.title, 80),
    ]
}

/// The number of sessions whose names are requested at once.
const AT_ONCE: usize = 16;

/// The names of the sessions and agents that wait.
#[derive(Debug, Default)]
struct WaiterNames(HashMap<SessionId, SessionInfo>);

impl WaiterNames {
    /// Requests the names that are not known yet. Those that cannot be had are shown as ids.
    async fn learn(&mut self, client: &Client, waits: &[WaitRow]) {
        let sessions: BTreeSet<&SessionId> = waits.iter().map(|wait| &wait.session_id).collect();
        let unknown = sessions.into_iter().filter(|id| !self.0.contains_key(*id));
        let asked = unknown.map(|id| async move { client.session(id).await.ok() });
        let asked: Vec<_> = asked.collect();
        let found: Vec<Option<SessionInfo>> = futures_util::stream::iter(asked)
            .buffered(AT_ONCE)
            .collect()
            .await;
        let found = found.into_iter().flatten();
        self.0.extend(found.map(|info| (info.id.clone(), info)));
    }

    fn session(&self, wait: &WaitRow) -> String {
        let info = self.0.get(&wait.session_id);
        info.map_or_else(|| wait.session_id.to_string(), |info| info.name.to_string())
    }

    /// Returns the name of the session, with that of the agent if the session has several.
    fn of(&self, wait: &WaitRow) -> String {
        let session = self.session(wait);
        let agents = self
            .0
            .get(&wait.session_id)
            .map(|info| info.agents.as_slice());
        let agents = agents.filter(|agents| agents.len() > 1).unwrap_or_default();
        match agents.iter().find(|agent| agent.id == wait.agent_id) {
            Some(agent) => format!("{session}/{}", agent.name),
            None => session,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(id: &str, kind: WaitKind) -> WaitRow {
        let row = serde_json::json!({
            "id": id, "session_id": "s1", "agent_id": "a1", "seq": 1, "kind": kind, "state": "open",
            "title": "bash: ls", "request": {}, "digest": "d", "opened_at": "2026-01-01T00:00:00.000Z",
        });
        serde_json::from_value(row).unwrap()
    }

    fn send(kind: WaitKind, word: &str) -> Result<Answer, UsageError> {
        let args = AnswerArgs {
            wait: "w".into(),
            answer: word.into(),
            reason: None,
            session: false,
            args: None,
        };
        args.to_send(&wait("w1", kind))
    }

    #[test]
    fn word_means_what_fits_the_kind_of_the_wait() {
        for (kind, word, decision, value) in [
            (WaitKind::Approval, "allow", WaitDecision::Allow, None),
            (WaitKind::Approval, "deny", WaitDecision::Deny, None),
            (WaitKind::Change, "allow", WaitDecision::Allow, None),
            (WaitKind::Change, "deny", WaitDecision::Deny, None),
            (
                WaitKind::Question,
                "blue",
                WaitDecision::Answer,
                Some(r#""blue""#),
            ),
            (
                WaitKind::Question,
                "7",
                WaitDecision::Answer,
                Some(r#""7""#),
            ),
            (WaitKind::Question, "deny", WaitDecision::Deny, None),
            (WaitKind::Budget, "10.5", WaitDecision::Allow, Some("10.5")),
            (WaitKind::Budget, "deny", WaitDecision::Deny, None),
        ] {
            let answer = send(kind, word).unwrap();
            assert_eq!(answer.decision, decision, "{kind:?} {word}");
            assert_eq!(answer.value.as_deref().map(RawValue::get), value);
        }
        for (kind, word) in [
            (WaitKind::Approval, "yes"),
            (WaitKind::Approval, ""),
            (WaitKind::Change, "keep"),
            (WaitKind::Budget, "allow"),
            (WaitKind::Budget, "much"),
        ] {
            assert!(send(kind, word).is_err(), "{kind:?} {word}");
        }
    }

    #[test]
    fn shown_ids_are_as_long_as_they_need_to_be() {
        let waits = |ids: &[&str]| -> Vec<WaitRow> {
            ids.iter().map(|id| wait(id, WaitKind::Approval)).collect()
        };
        assert_eq!(short(&waits(&[])), SHORT);
        assert_eq!(short(&waits(&["abcdefghij", "zbcdefghij"])), SHORT);
        assert_eq!(short(&waits(&["abcdefghij", "x", "abcdefghik"])), 10);
    }
}
