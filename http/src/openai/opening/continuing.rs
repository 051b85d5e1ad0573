//! Continues a session that the client names: by a response, by the session's id or name, or by the
//! results of tool calls.

use planck_common::{
    CallId, InputId, Seq, SessionName,
    command::{Answer, ListWaits},
    wait::{WaitDecision, WaitKind},
};
use serde_json::value::RawValue;

use super::{KnownSession, OpenedResponse, PendingPrompt, attached, found, known, opened};
use crate::{
    front::Front,
    key::Caller,
    openai::{
        ask::{Ask, ClientToolResult, ContinuedSession},
        error::OpenAiError,
        history::{Fit, LoggedTurn, LoggedTurns, asks, latest_turns, turn_after, turns_after},
        ids::{ResponseId, ToolCallId},
        segment::{Beginning, Segment},
    },
};

impl PendingPrompt<'_> {
    /// Continues a session after a response, which must be the latest one.
    pub(super) async fn after_response(
        self,
        id: &ResponseId,
    ) -> Result<OpenedResponse, OpenAiError> {
        let session = known(self.client, &id.session).await?;
        let begun = turn_after(self.client, &id.session, &session.agent, id.place).await?;
        let Some((_, turns)) = begun else {
            return Err(OpenAiError::conflict(
                "response_not_started",
                format!(
                    "response `{id}` has not begun, or a rewind hid it; wait, and send the request again"
                ),
            ));
        };
        if let [_, second] = turns.turns.as_slice()
            && self.is_again(second, ResponseId::prompt(&session.id, second.place))
        {
            return attached(&session, Some(second));
        }
        let latest = self.latest(&session, turns.last()).await?;
        if latest != *id {
            return Err(OpenAiError::conflict(
                "previous_response_not_latest",
                format!("`{id}` is not the latest response of its session, which is `{latest}`"),
            ));
        }
        self.after(&session, &turns).await
    }

    /// Returns the id of the last response of the last turn.
    async fn latest(
        &self,
        session: &KnownSession,
        turn: Option<&LoggedTurn>,
    ) -> Result<ResponseId, OpenAiError> {
        let opened = attached(session, turn)?;
        let mut segment = Segment::open(self.front, &opened).await?;
        segment.load_turn().await?;
        Ok(ResponseId {
            after: segment.last_beginning(),
            ..opened.id
        })
    }

    /// Returns whether a turn is the one for which this request was sent before.
    fn is_again(&self, turn: &LoggedTurn, input: InputId) -> bool {
        let origin = &self.ask.origin;
        (origin.is_retry || origin.idempotency_key.is_some())
            && turn.input == input
            && asks(turn, &self.text)
    }

    /// Continues the session with this id or name.
    pub(super) async fn in_session(
        self,
        name: &str,
        may_start: bool,
    ) -> Result<OpenedResponse, OpenAiError> {
        crate::body::id(name)?;
        let Some(info) = found(self.client.session(name).await)? else {
            let new = SessionName::parse(name).ok().filter(|_| may_start);
            let new =
                new.ok_or_else(|| OpenAiError::not_found(format!("there is no session `{name}`")))?;
            return self.start(None, Some(new)).await;
        };
        let session = KnownSession::try_from(info)?;
        let (client, agent) = (self.client, &session.agent);
        let latest = latest_turns(client, &session.id, agent, session.head).await?;
        if self.ask.history.is_empty() {
            if let Some(turn) = latest.last()
                && self.is_again(turn, ResponseId::prompt(&session.id, turn.place))
            {
                return attached(&session, Some(turn));
            }
            return self.after(&session, &latest).await;
        }
        let turns = turns_after(client, &session.id, agent, 0).await?;
        match self.fit(&turns.turns) {
            Fit::Next => self.after(&session, &turns).await,
            Fit::Asked => attached(&session, turns.last()),
            Fit::Other => Err(OpenAiError::conflict(
                "history_differs",
                format!(
                    "the messages are not those of session `{name}`: send only the new message, or leave the session out to start a new one"
                ),
            )),
        }
    }

    /// Sends the prompt after the turns of a session.
    pub(super) async fn after(
        self,
        session: &KnownSession,
        turns: &LoggedTurns,
    ) -> Result<OpenedResponse, OpenAiError> {
        if session.has_waits {
            self.check_results(session).await?;
        }
        self.check_tools(session).await?;
        self.prompt(session, turns.end).await
    }

    /// Refuses a prompt while the turn waits for the results of the client's tools, because the
    /// prompt would wait with it.
    async fn check_results(&self, session: &KnownSession) -> Result<(), OpenAiError> {
        let filter = ListWaits {
            kind: Some(WaitKind::ClientTool),
            session: Some(session.id.to_string()),
            ..ListWaits::default()
        };
        if self.client.waits(&filter).await?.waits.is_empty() {
            return Ok(());
        }
        Err(OpenAiError::conflict(
            "results_missing",
            format!(
                "session `{}` waits for the results of your tool calls; send those first",
                session.id
            ),
        ))
    }

    /// Refuses tools that the session was not started with.
    async fn check_tools(&self, session: &KnownSession) -> Result<(), OpenAiError> {
        if self.ask.tools.is_empty() {
            return Ok(());
        }
        let agent = self.client.agent(&session.agent).await?;
        let unknown = self
            .ask
            .tools
            .iter()
            .find(|tool| !agent.tools.contains(&tool.name));
        match unknown {
            None => Ok(()),
            Some(tool) => Err(OpenAiError::parameter(
                "tools",
                format!(
                    "session `{}` was started without the tool `{}`; name all tools in the first request of a session",
                    session.id, tool.name
                ),
            )),
        }
    }

    /// Refuses the request if its place was continued with another prompt.
    pub(super) async fn check(
        &self,
        session: &KnownSession,
        place: Seq,
        input: &InputId,
    ) -> Result<(), OpenAiError> {
        let turns = turns_after(self.client, &session.id, &session.agent, place).await?;
        let begun = turns.turns.iter().find(|turn| turn.input == *input);
        let other = begun.filter(|turn| !turn.asked.is_empty() && !asks(turn, &self.text));
        match other {
            None => Ok(()),
            Some(_) => {
                let id = opened(session, place, input.clone(), Beginning::Turn).id;
                Err(OpenAiError::conflict(
                    "already_continued",
                    format!("another prompt was sent here before, to which `{id}` is the response"),
                ))
            }
        }
    }
}

/// Answers the waits of the calls. The response is what the turn says after them.
pub async fn send_results(
    front: &Front,
    caller: &Caller,
    ask: &Ask,
    results: Vec<ClientToolResult>,
) -> Result<OpenedResponse, OpenAiError> {
    let first = results.first().map(|result| result.id.clone());
    let first = first.ok_or_else(|| OpenAiError::parameter("input", "there are no results"))?;
    check_place(&first, &results, &ask.target)?;
    let session = known(front.client(), &first.session).await?;
    let mut opened = after_call(front, &session, &first).await?;
    let mut segment = Segment::open(front, &opened).await?;
    let after = segment.find().await?;
    segment.load_turn().await?;
    let is_known = |call: &CallId| results.iter().any(|result| result.id.call == *call);
    if let Some(missing) = segment.open_calls().iter().find(|call| !is_known(call)) {
        let missing = ToolCallId {
            call: missing.clone(),
            ..first
        };
        return Err(OpenAiError::parameter(
            "input",
            format!("the result of the call `{missing}` is missing; send all results together"),
        ));
    }
    for result in &results {
        let text = planck_common::event::json(&result.text);
        let answer = Answer {
            wait: result.id.call.clone(),
            decision: WaitDecision::Answer,
            args: None,
            value: RawValue::from_string(text).ok(),
            reason: None,
            scope: None,
            digest: None,
            by: caller.name.clone(),
        };
        front.client().answer(&session.id, &answer).await?;
    }
    opened.id.after = after;
    opened.beginning = after.map_or(Beginning::Turn, Beginning::Reply);
    opened.warnings.clone_from(&ask.warnings);
    Ok(opened)
}

/// Waits until the turn that has got the results ends, because a prompt follows it. If the turn calls
/// tools of the client again, it is aborted: a client that has sent its next prompt answers no calls.
pub async fn finish(front: &Front, opened: &OpenedResponse) -> Result<(), OpenAiError> {
    let mut segment = Segment::open(front, opened).await?;
    while segment.next().await?.is_some() {}
    segment.load_turn().await?;
    if !segment.open_calls().is_empty() {
        let reason = Some("the client sent its next message instead of results".to_owned());
        let (client, session) = (front.client(), &opened.id.session);
        client.abort_session(session, &opened.input, reason).await?;
    }
    Ok(())
}

/// Checks that all results are for one turn, and for the response that the request continues.
fn check_place(
    first: &ToolCallId,
    results: &[ClientToolResult],
    target: &ContinuedSession,
) -> Result<(), OpenAiError> {
    let is_here = |id: &ToolCallId| (&id.session, id.place) == (&first.session, first.place);
    let fits = match target {
        ContinuedSession::Response(id) => (&id.session, id.place) == (&first.session, first.place),
        ContinuedSession::History | ContinuedSession::Session { .. } => true,
    };
    if fits && results.iter().all(|result| is_here(&result.id)) {
        return Ok(());
    }
    Err(OpenAiError::parameter(
        "input",
        "the results are for calls of different responses; send those of one response together",
    ))
}

async fn after_call(
    front: &Front,
    session: &KnownSession,
    call: &ToolCallId,
) -> Result<OpenedResponse, OpenAiError> {
    let begun = turn_after(front.client(), &session.id, &session.agent, call.place).await?;
    let (turn, _) =
        begun.ok_or_else(|| OpenAiError::not_found(format!("there is no call `{call}`")))?;
    let beginning = Beginning::Call(call.call.clone());
    Ok(opened(session, call.place, turn.input, beginning))
}

/// Finds a response by its id.
pub async fn find(front: &Front, id: &ResponseId) -> Result<OpenedResponse, OpenAiError> {
    let client = front.client();
    let session = known(client, &id.session).await?;
    let input = match turn_after(client, &id.session, &session.agent, id.place).await? {
        Some((turn, _)) => turn.input,
        None => waiting(front, &session, id).await?,
    };
    let beginning = id.after.map_or(Beginning::Turn, Beginning::Reply);
    let mut opened = opened(&session, id.place, input, beginning);
    opened.id = id.clone();
    Ok(opened)
}

/// Returns the prompt of a response that has not begun, because the prompt waits for the agent.
/// Such a response follows the latest turn.
async fn waiting(
    front: &Front,
    session: &KnownSession,
    id: &ResponseId,
) -> Result<InputId, OpenAiError> {
    let latest = latest_turns(front.client(), &session.id, &session.agent, session.head).await?;
    // The turn may have begun meanwhile.
    let mut turns = latest.turns.iter();
    if let Some(turn) = turns.find(|turn| turn.place == id.place) {
        return Ok(turn.input.clone());
    }
    if id.place == latest.end && id.after.is_none() {
        return Ok(ResponseId::prompt(&session.id, latest.end));
    }
    Err(OpenAiError::not_found(format!(
        "there is no response `{id}`, or a rewind hid it"
    )))
}
