//! Continues a session that the client names, by a response or by the session's id or name.

use planck_common::{InputId, Seq, SessionName, command::ListWaits, wait::WaitKind};

use super::{Known, Opened, Opening, attached, found, known, opened};
use crate::openai::{
    error::ApiError,
    history::{Fit, asks},
    ids::ResponseId,
    log::{LoggedTurn, LoggedTurns, latest_turns, turn_after, turns_after},
    segment::{Beginning, Segment},
};

impl Opening<'_> {
    /// Continues a session after a response, which must be the latest one.
    pub(super) async fn after_response(self, id: &ResponseId) -> Result<Opened, ApiError> {
        let session = known(self.client, &id.session).await?;
        let begun = turn_after(self.client, &id.session, &session.agent, id.place).await?;
        let Some((_, turns)) = begun else {
            return Err(ApiError::conflict(
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
            return Err(ApiError::conflict(
                "previous_response_not_latest",
                format!("`{id}` is not the latest response of its session, which is `{latest}`"),
            ));
        }
        self.after(&session, &turns).await
    }

    /// Returns the id of the last response of the last turn.
    async fn latest(
        &self,
        session: &Known,
        turn: Option<&LoggedTurn>,
    ) -> Result<ResponseId, ApiError> {
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
    pub(super) async fn in_session(self, name: &str, may_start: bool) -> Result<Opened, ApiError> {
        crate::body::id(name)?;
        let Some(info) = found(self.client.session(name).await)? else {
            let new = SessionName::parse(name).ok().filter(|_| may_start);
            let new =
                new.ok_or_else(|| ApiError::not_found(format!("there is no session `{name}`")))?;
            return self.start(None, Some(new)).await;
        };
        let session = Known::try_from(info)?;
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
            Fit::Other => Err(ApiError::conflict(
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
        session: &Known,
        turns: &LoggedTurns,
    ) -> Result<Opened, ApiError> {
        if session.has_waits {
            self.check_results(session).await?;
        }
        self.check_tools(session).await?;
        self.prompt(session, turns.end).await
    }

    /// Refuses a prompt while the turn waits for the results of the client's tools, because the
    /// prompt would wait with it.
    async fn check_results(&self, session: &Known) -> Result<(), ApiError> {
        let filter = ListWaits {
            kind: Some(WaitKind::ClientTool),
            session: Some(session.id.to_string()),
            ..ListWaits::default()
        };
        if self.client.waits(&filter).await?.waits.is_empty() {
            return Ok(());
        }
        Err(ApiError::conflict(
            "results_missing",
            format!(
                "session `{}` waits for the results of your tool calls; send those first",
                session.id
            ),
        ))
    }

    /// Refuses tools that the session was not started with.
    async fn check_tools(&self, session: &Known) -> Result<(), ApiError> {
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
            Some(tool) => Err(ApiError::parameter(
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
        session: &Known,
        place: Seq,
        input: &InputId,
    ) -> Result<(), ApiError> {
        let turns = turns_after(self.client, &session.id, &session.agent, place).await?;
        let begun = turns.turns.iter().find(|turn| turn.input == *input);
        let other = begun.filter(|turn| !turn.asked.is_empty() && !asks(turn, &self.text));
        match other {
            None => Ok(()),
            Some(_) => {
                let id = opened(session, place, input.clone(), Beginning::Turn).id;
                Err(ApiError::conflict(
                    "already_continued",
                    format!("another prompt was sent here before, to which `{id}` is the response"),
                ))
            }
        }
    }
}
