//! Work as a task of MCP (SEP-2663). The id of a task names its session and prompt, so any front
//! answers for any task, also after the node or the front that began it has died.

use std::{fmt, str::FromStr, time::Duration};

use planck_common::{
    CallId, InputId, SessionId, Timestamp,
    command::{Answer, ReadEvents},
    envelope::Envelope,
    wait::WaitDecision,
};
use rmcp::model::{
    DetailedTask, ElicitResult, ElicitationAction, GetTaskResult, InputRequest, InputRequests,
    InputResponses, Task, TaskPayload, TaskStatus,
};
use serde_json::{Value, json, value::to_raw_value};

use super::{
    call::{Begun, Call, LOOK, in_time, look, work_result},
    progress::short,
    work::{OpenWait, State, Work},
};
use crate::problem::Problem;

/// How often a client should look at a task.
const POLL: Duration = Duration::from_secs(2);
/// The maximum number of characters of a question to the user.
const QUESTION: usize = 4_000;
/// The maximum number of answers in one request.
const MOST_ANSWERS: usize = 100;
/// The beginning of the year 10000 in milliseconds.
const LATEST: i64 = 253_402_300_800_000;

/// `SESSION.PROMPT.MILLISECONDS`: no id has a dot. The last part is when the task was created.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TaskId {
    session: SessionId,
    prompt: InputId,
    created: Timestamp,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{}.{}",
            self.session,
            self.prompt,
            self.created.millis()
        )
    }
}

impl FromStr for TaskId {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let parts: Vec<&str> = text.splitn(4, '.').collect();
        let parsed = match parts.as_slice() {
            [session, prompt, created] => read(session, prompt, created),
            _ => None,
        };
        parsed.ok_or_else(|| {
            let shown: String = text.chars().take(80).collect();
            Problem::bad_request(format!(
                "there is no task `{shown}`: the id of a task is the `taskId` that began it"
            ))
        })
    }
}

fn read(session: &str, prompt: &str, created: &str) -> Option<TaskId> {
    let created: i64 = created.parse().ok()?;
    Some(TaskId {
        session: SessionId::parse(session).ok()?,
        prompt: InputId::parse(prompt).ok()?,
        // The years of this time have four digits.
        created: (0..LATEST)
            .contains(&created)
            .then(|| Timestamp::from_millis(created))?,
    })
}

impl TaskId {
    fn task(&self, updated: Timestamp) -> Task {
        let poll = u64::try_from(POLL.as_millis()).unwrap_or(u64::MAX);
        let (created, updated) = (
            self.created.to_string(),
            updated.max(self.created).to_string(),
        );
        Task::new(self.to_string(), TaskStatus::Working, created, updated)
            .with_poll_interval_ms(poll)
    }
}

/// Returns the task of work that has begun now.
pub fn begun(begun: &Begun) -> Task {
    let now = Timestamp::now();
    let id = TaskId {
        session: begun.session.clone(),
        prompt: begun.prompt.clone(),
        created: now,
    };
    let told = format!("session `{}`; `status` shows more", id.session);
    id.task(now).with_status_message(told)
}

/// Returns the state of a task. `can_ask` is whether the client can put a question to its user.
pub async fn get(call: &Call, id: &str, can_ask: bool) -> Result<GetTaskResult, Problem> {
    let id: TaskId = id.parse()?;
    let client = call.front.client();
    let looked = async {
        let work = look(client, &id.session, Some(&id.prompt), None).await?;
        Ok::<_, Problem>((work, last_event(call, &id.session).await?))
    };
    let (work, updated) = in_time(LOOK, "ask for the task again", looked).await?;
    let task = id
        .task(updated)
        .with_status_message(short(&told(&work), 300));
    let payload = match work.state {
        State::Working => TaskPayload::Working,
        State::InputRequired => TaskPayload::InputRequired {
            input_requests: match can_ask {
                true => work.waits.iter().filter_map(question).collect(),
                false => InputRequests::new(),
            },
        },
        State::Cancelled => TaskPayload::Cancelled,
        // A call whose work failed is complete: its result says that it failed.
        State::Completed | State::Failed => TaskPayload::Completed {
            result: result(&work)?,
        },
    };
    Ok(GetTaskResult::new(DetailedTask::new(task, payload)))
}

/// Returns what a client may show of the work.
fn told(work: &Work) -> String {
    match work.state {
        State::Working => work
            .so_far
            .clone()
            .unwrap_or_else(|| "the work goes on".to_owned()),
        State::InputRequired => {
            let titles: Vec<&str> = work.waits.iter().map(|wait| wait.title.as_str()).collect();
            format!("{} ({})", titles.join("; "), work.next)
        }
        State::Completed => "the work is done".to_owned(),
        State::Failed | State::Cancelled => work.reason.clone().unwrap_or_default(),
    }
}

fn result(work: &Work) -> Result<serde_json::Map<String, Value>, Problem> {
    let result = serde_json::to_value(work_result(work)?);
    match result {
        Ok(Value::Object(result)) => Ok(result),
        Ok(_) | Err(_) => Err(Problem::bad_request("the result of the task has no JSON")),
    }
}

/// Returns when the last event of a session happened.
async fn last_event(call: &Call, session: &SessionId) -> Result<Timestamp, Problem> {
    let client = call.front.client();
    let head = client.session(session).await?.head;
    let read = ReadEvents {
        from: Some(head.max(1)),
        limit: Some(1),
        agent: None,
    };
    let page = client.events(session, &read).await?;
    let event = page.events.last();
    let event = event.and_then(|event| serde_json::from_str::<Envelope>(event.get()).ok());
    Ok(event.map_or_else(Timestamp::now, |event| event.at))
}

/// Returns what an agent asks as a form for the user, unless it is too long for a form: what a user
/// allows is shown whole. The form's id has the digest, so that an answer counts only for what was
/// shown.
fn question(wait: &OpenWait) -> Option<(String, InputRequest)> {
    let message = format!("{}\n{}", wait.title, wait.request);
    if message.chars().count() > QUESTION {
        return None;
    }
    let decision = json!({"type": "string", "enum": ["allow", "deny"], "description": "Whether it may happen"});
    let reason = json!({"type": "string", "description": "Why not, which the agent reads"});
    let (properties, required) = match wait.kind.as_str() {
        "question" | "client_tool" => (json!({"value": value_field(wait)}), "value"),
        "budget" => {
            let value = json!({"type": "number", "description": "The new limit, if it is allowed"});
            (
                json!({"decision": decision, "value": value, "reason": reason}),
                "decision",
            )
        }
        _ => (json!({"decision": decision, "reason": reason}), "decision"),
    };
    let schema = json!({"type": "object", "properties": properties, "required": [required]});
    let params = json!({"mode": "form", "message": message, "requestedSchema": schema});
    let request = json!({"method": "elicitation/create", "params": params});
    let request = serde_json::from_value(request).ok()?;
    Some((format!("{}:{}", wait.id, wait.digest), request))
}

/// Returns the field of an answer. A form has texts, so an answer with a schema is JSON in a text.
fn value_field(wait: &OpenWait) -> Value {
    match (&wait.options, &wait.schema) {
        (_, Some(schema)) => {
            let text = format!("JSON that satisfies this schema: {schema}");
            json!({"type": "string", "description": text})
        }
        (Some(options), None) => {
            let text = format!("Suggested are: {}", options.join(", "));
            json!({"type": "string", "description": text})
        }
        (None, None) => json!({"type": "string", "description": "The answer"}),
    }
}

/// Passes the answers of a user on. An answer to what is not asked any more is ignored.
pub async fn update(call: &Call, id: &str, responses: InputResponses) -> Result<(), Problem> {
    let id: TaskId = id.parse()?;
    if responses.len() > MOST_ANSWERS {
        return Err(Problem::bad_request(format!(
            "there are {} answers, and at most {MOST_ANSWERS}",
            responses.len()
        )));
    }
    let looked = look(call.front.client(), &id.session, Some(&id.prompt), None);
    let work = in_time(LOOK, "send the answers again", looked).await?;
    for (key, response) in responses {
        // The client may have sent the same answers before.
        let Some(wait) = work
            .waits
            .iter()
            .find(|wait| key == format!("{}:{}", wait.id, wait.digest))
        else {
            continue;
        };
        if let Some(answer) = answer(wait, response, call.caller.clone().author(None))? {
            call.send_answer(&id.session, &answer).await?;
        }
    }
    Ok(())
}

/// Reads the answer to a wait. A user who closes the form has not answered.
fn answer(wait: &OpenWait, response: Value, by: Option<String>) -> Result<Option<Answer>, Problem> {
    let wrong = |why: &str| Problem::bad_request(format!("the answer to `{}`: {why}", wait.title));
    let response: ElicitResult = serde_json::from_value(response)
        .map_err(|error| wrong(&format!("it is no result of an elicitation: {error}")))?;
    let content = response.content.unwrap_or_default();
    let text = |name: &str| content.get(name).and_then(Value::as_str);
    let is_question = matches!(wait.kind.as_str(), "question" | "client_tool");
    let decision = match (&response.action, text("decision")) {
        (ElicitationAction::Accept, _) if is_question => WaitDecision::Answer,
        (ElicitationAction::Accept, Some("allow")) => WaitDecision::Allow,
        (ElicitationAction::Accept, Some("deny")) => WaitDecision::Deny,
        (ElicitationAction::Accept, _) => return Err(wrong("`decision` is `allow` or `deny`")),
        (ElicitationAction::Decline, _) if wait.kind == "client_tool" => WaitDecision::Error,
        (ElicitationAction::Decline, _) => WaitDecision::Deny,
        (_, _) => return Ok(None),
    };
    let value = match (decision, content.get("value")) {
        (WaitDecision::Answer, Some(Value::String(text))) if wait.schema.is_some() => {
            let read = serde_json::from_str(text);
            Some(read.map_err(|error| wrong(&format!("`value` is no JSON: {error}")))?)
        }
        (WaitDecision::Answer | WaitDecision::Allow, value) => value.cloned(),
        (_, _) => None,
    };
    let value = value.as_ref().map(to_raw_value).transpose();
    Ok(Some(Answer {
        wait: CallId::parse(&wait.id).map_err(|error| wrong(&error.to_string()))?,
        decision,
        args: None,
        value: value.map_err(|error| wrong(&error.to_string()))?,
        reason: text("reason").map(str::to_owned),
        scope: None,
        digest: Some(wait.digest.clone()),
        by,
    }))
}

/// Ends the work of a task.
pub async fn cancel(call: &Call, id: &str) -> Result<(), Problem> {
    let id: TaskId = id.parse()?;
    call.abort(&id.session, Some(&id.prompt), None).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(kind: &str) -> OpenWait {
        OpenWait {
            id: "c1".into(),
            kind: kind.into(),
            title: "bash: git push".into(),
            request: json!({"tool": "bash"}),
            options: None,
            schema: None,
            rule: None,
            digest: "5e0c".into(),
            expires_at: None,
        }
    }

    #[test]
    fn id_of_a_task_is_read_as_it_was_written() {
        let id = TaskId {
            session: SessionId::parse("s-1").unwrap(),
            prompt: InputId::parse("p_1").unwrap(),
            created: Timestamp::from_millis(1_764_000_000_000),
        };
        assert_eq!(id.to_string().parse::<TaskId>().unwrap(), id);
        for wrong in [
            "",
            ".",
            "..",
            "s.p",
            "s.p.",
            "s..1",
            "s.p.1.2",
            "s.p.-1",
            "s.p.x",
            "s.*.1",
            "s.>.1",
            "../s.p.1",
            "s.p.99999999999999999",
        ] {
            let refused = wrong.parse::<TaskId>().unwrap_err();
            assert!(refused.detail().contains("`taskId`"), "{wrong}");
        }
    }

    #[test]
    fn form_asks_for_what_the_wait_needs() {
        for (kind, field) in [
            ("approval", "decision"),
            ("change", "decision"),
            ("budget", "decision"),
            ("question", "value"),
            ("client_tool", "value"),
        ] {
            let (key, form) = question(&wait(kind)).unwrap();
            assert_eq!(key, "c1:5e0c");
            let form = serde_json::to_value(form).unwrap();
            let schema = &form["params"]["requestedSchema"];
            assert_eq!(schema["required"], json!([field]), "{kind} {form}");
            assert!(
                form["params"]["message"]
                    .as_str()
                    .unwrap()
                    .contains("git push")
            );
        }
    }

    #[test]
    fn what_is_too_long_for_a_form_is_not_asked() {
        let long = OpenWait {
            request: json!({"tool": "bash", "args": {"command": "x".repeat(QUESTION)}}),
            ..wait("approval")
        };
        assert!(question(&long).is_none());
    }

    #[test]
    fn answer_of_a_user_is_a_decision() {
        let read = |kind: &str, response: Value| answer(&wait(kind), response, None);
        let accept = |content: Value| json!({"action": "accept", "content": content});
        let allow = accept(json!({"decision": "allow"}));
        for (kind, response, expected) in [
            ("approval", allow.clone(), Some(WaitDecision::Allow)),
            (
                "approval",
                accept(json!({"decision": "deny", "reason": "no"})),
                Some(WaitDecision::Deny),
            ),
            (
                "approval",
                json!({"action": "decline"}),
                Some(WaitDecision::Deny),
            ),
            ("approval", json!({"action": "cancel"}), None),
            (
                "question",
                accept(json!({"value": "blue"})),
                Some(WaitDecision::Answer),
            ),
            (
                "client_tool",
                json!({"action": "decline"}),
                Some(WaitDecision::Error),
            ),
        ] {
            let found = read(kind, response.clone()).unwrap();
            assert_eq!(
                found.map(|answer| answer.decision),
                expected,
                "{kind} {response}"
            );
        }
        let answer = read("approval", allow).unwrap().unwrap();
        assert_eq!(answer.digest.as_deref(), Some("5e0c"));
        for unclear in [
            accept(json!({})),
            accept(json!({"decision": "yes"})),
            json!({}),
            json!(7),
        ] {
            assert!(read("approval", unclear.clone()).is_err(), "{unclear}");
        }
        let limit = read(
            "budget",
            accept(json!({"decision": "allow", "value": 10.0})),
        );
        assert_eq!(limit.unwrap().unwrap().value.unwrap().get(), "10.0");
    }
}
