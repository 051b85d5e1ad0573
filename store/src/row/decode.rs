//! Converts rows to the types of this crate.

use planck_common::{
    CallId, SessionId, TeamId, Timestamp,
    command::{InputMode, SessionState, WaitRow},
    envelope::{EventPlace, RowPosition, Writer},
    event::{EventKind, InputKind, WorkerExit},
    message::Sender,
    spec::AgentSpec,
    wait::{WaitAnswer, WaitDecision, WaitOpened, WaitState},
};
use serde_json::value::RawValue;
use sqlx::{ColumnIndex, Decode, Row, Type};

use super::RowReader;
use crate::{
    AgentRecord, CallBaseline, HeldLease, InputOutcome, InputReader, LogRow, NewInput,
    SessionRecord, StoreError, StoredInput, TaskRecord, WorkInput, WorkRows,
    inbox::MOST_INPUTS,
    stored,
    unread::Unread,
    waits::{WaitAndAnswer, nobody_answered},
};

impl<'a, R> RowReader<'a, R>
where
    R: Row,
    for<'c> &'c str: ColumnIndex<R>,
    &'a str: Decode<'a, R::Database> + Type<R::Database>,
    bool: Decode<'a, R::Database> + Type<R::Database>,
    i32: Decode<'a, R::Database> + Type<R::Database>,
    i64: Decode<'a, R::Database> + Type<R::Database>,
    f64: Decode<'a, R::Database> + Type<R::Database>,
{
    pub fn session(&self) -> Result<SessionRecord, StoreError> {
        Ok(SessionRecord {
            id: self.parse("id")?,
            name: self.parse("name")?,
            state: self.named("state", stored::session_state)?,
            spec: self.json("spec")?,
            head: self.number("next_seq")?.max(1) - 1,
            agents: self.small("agents")?,
            totals: self.usage()?,
            metadata: self.json("metadata")?,
            created_at: self.timestamp("created_at")?,
            updated_at: self.timestamp("updated_at")?,
            owner: self.parse_optional("owner")?,
        })
    }

    pub fn agent(&self, session: SessionId, team: TeamId) -> Result<AgentRecord, StoreError> {
        let mut spec: AgentSpec = self.json("spec")?;
        spec.name = self.text("name")?;
        Ok(AgentRecord {
            session,
            id: self.parse("id")?,
            team,
            spec,
            state: self.named("state", stored::agent_state)?,
            totals: self.usage()?,
            node: self.parse_optional("node_id")?,
            epoch: self.number("epoch")?,
            last_seq: self.number("last_seq")?,
            incarnation: self.number("incarnation")?,
        })
    }

    pub fn exit(&self) -> Result<WorkerExit, StoreError> {
        Ok(WorkerExit {
            id: self.parse("id")?,
            name: self.text("name")?,
            reason: self.text("reason")?,
        })
    }

    pub fn lease(&self) -> Result<HeldLease, StoreError> {
        Ok(HeldLease {
            epoch: self.number("epoch")?,
            last_seq: self.number("last_seq")?,
            incarnation: self.number("incarnation")?,
        })
    }

    pub fn input(&self) -> Result<StoredInput, StoreError> {
        let sender = self.sender()?;
        // The column holds the name of who sent a prompt if no agent is the sender.
        let by = match &sender {
            Some(_) => None,
            None => self.optional_text("sender_name")?,
        };
        let input = NewInput {
            id: self.parse("id")?,
            agent: self.parse("agent_id")?,
            kind: self.named("kind", InputKind::find)?,
            mode: self.named("mode", InputMode::find)?,
            sender,
            by,
            reply_to: self.parse_optional("reply_to")?,
            content: self.text("content")?,
            fresh: self.get("fresh")?,
            at: self.timestamp("at")?,
        };
        Ok(StoredInput {
            input,
            head: self.number("head")?,
            turn: self.optional_small("turn")?,
            outcome: self.outcome("outcome")?,
            answer: self.optional_text("answer")?,
            waiting: self.get("waiting")?,
        })
    }

    /// Reads the outcome of an input.
    pub fn outcome(&self, column: &str) -> Result<Option<InputOutcome>, StoreError> {
        Ok(self.get::<Option<&str>>(column)?.map(InputOutcome::from))
    }

    fn sender(&self) -> Result<Option<Sender>, StoreError> {
        let Some(id) = self.parse_optional("sender")? else {
            return Ok(None);
        };
        let name = self.optional_text("sender_name")?.unwrap_or_default();
        Ok(Some(Sender { id, name }))
    }

    pub fn task(&self) -> Result<TaskRecord, StoreError> {
        Ok(TaskRecord {
            id: self.parse("id")?,
            from: self.sender()?,
            consumed: self.get("consumed")?,
            responded: self.get("responded")?,
        })
    }

    pub fn unread(&self) -> Result<Unread, StoreError> {
        Ok(Unread {
            agent_bytes: self.number("agent_bytes")?,
            agent_inputs: self.number("agent_inputs")?,
            session_bytes: self.number("session_bytes")?,
        })
    }

    /// Returns the result of [`Inbox::work`](super::Inbox::work) for an input from its rows, of
    /// which there may be one more than it has.
    pub fn work(rows: &[Self], of_input: bool) -> Result<Option<WorkRows>, StoreError> {
        let Some(first) = rows.first() else {
            return Ok(None);
        };
        let is_closed = first.named("state", stored::session_state)? == SessionState::Closed;
        let mut work = WorkRows {
            root: None,
            rest: Vec::with_capacity(rows.len()),
            is_cut: rows.len() > MOST_INPUTS,
            head: first.number("log_head")?,
            is_shut: is_closed && !first.get::<bool>("held")?,
        };
        for row in rows.iter().take(MOST_INPUTS) {
            if row.get::<Option<&str>>("id")?.is_none() {
                continue;
            }
            match row.get("is_root")? {
                true => work.root = Some(row.work_input()?),
                false => work.rest.push(row.work_input()?),
            }
        }
        Ok(Some(work).filter(|work| !of_input || work.root.is_some()))
    }

    fn work_input(&self) -> Result<WorkInput, StoreError> {
        let outcome = self.outcome("outcome")?;
        let reader = match &outcome {
            None => Some(InputReader {
                state: self.named("agent_state", stored::agent_state)?,
                open_waits: self.amount("open_waits")?,
                answers: self.amount("answers")?,
                calls: self.amount("calls")?,
            }),
            Some(_) => None,
        };
        Ok(WorkInput {
            id: self.parse("id")?,
            agent: self.parse("agent_id")?,
            sender: self.parse_optional("sender")?,
            cause: self.optional_small("cause")?,
            is_later: self.get("is_later")?,
            head: self.number("head")?,
            turn: self.optional_small("turn")?,
            outcome,
            waiting: self.get("waiting")?,
            reader,
        })
    }

    fn place(&self) -> Result<EventPlace, StoreError> {
        Ok(EventPlace {
            turn: self.small("turn")?,
            request: self.small("request")?,
            at: self.timestamp("at")?,
        })
    }

    /// Returns the row, or `None` if only a newer version knows its kind.
    pub fn log_row(&self) -> Result<Option<LogRow>, StoreError> {
        let Some(kind) = EventKind::find(self.get("kind")?) else {
            return Ok(None);
        };
        Ok(Some(LogRow {
            seq: self.number("seq")?,
            kind,
            place: self.place()?,
            body: self.text("body")?,
        }))
    }

    /// Returns a row of the log as the envelope of its event.
    pub fn envelope(
        &self,
        session: &SessionId,
        team: &TeamId,
    ) -> Result<Box<RawValue>, StoreError> {
        let position = RowPosition {
            seq: self.number("seq")?,
            prev: self.number("prev")?,
            hidden_by: self.get("hidden_by")?,
        };
        let (kind, body) = (self.get("kind")?, self.get("body")?);
        let writer = self.writer(session, team)?;
        self.raw(writer.stored(kind, self.place()?, position, body))
    }

    /// Returns a row of the log as its message.
    pub fn message(&self, session: &SessionId, team: &TeamId) -> Result<Box<RawValue>, StoreError> {
        let (seq, at) = (self.number("seq")?, self.timestamp("at")?);
        let writer = self.writer(session, team)?;
        self.raw(writer.message(seq, at, self.get("body")?))
    }

    fn writer(&self, session: &SessionId, team: &TeamId) -> Result<Writer, StoreError> {
        Ok(Writer {
            agent_id: self.parse("agent_id")?,
            session_id: session.clone(),
            team_id: team.clone(),
            node_id: self.parse("node_id")?,
            epoch: self.number("epoch")?,
        })
    }

    fn raw(&self, text: String) -> Result<Box<RawValue>, StoreError> {
        RawValue::from_string(text).map_err(|error| self.malformed("body", error))
    }

    /// Returns a wait with its answer, from a row of the table `waits` and the body of the row of
    /// the log that opened the wait.
    pub fn wait(&self, session: &SessionId) -> Result<WaitAndAnswer, StoreError> {
        let opened: WaitOpened = self.json("body")?;
        let (state, opened_at) = (
            self.named("state", WaitState::find)?,
            self.timestamp("opened_at")?,
        );
        let answer = self.wait_answer(opened_at, opened.expires_at)?;
        let said = answer.as_ref();
        let withdrawn = (state == WaitState::Withdrawn).then_some(WaitDecision::Withdrawn);
        let row = WaitRow {
            id: self.parse("id")?,
            session_id: session.clone(),
            agent_id: self.parse("agent_id")?,
            seq: self.number("seq")?,
            kind: opened.kind,
            state,
            title: opened.title,
            request: opened.request,
            digest: opened.digest,
            options: opened.options,
            schema: opened.schema,
            rule: opened.rule,
            opened_at,
            expires_at: opened.expires_at,
            decision: said.map(|answer| answer.decision).or(withdrawn),
            reason: said.and_then(|answer| answer.reason.clone()),
            answered_by: said.and_then(|answer| answer.by.clone()),
            answered_at: said.map(|answer| answer.at),
        };
        Ok((row, answer))
    }

    /// Returns the answer of a wait, with the id of the wait.
    pub fn answer(&self) -> Result<(CallId, WaitAnswer), StoreError> {
        let expires_at: Option<i64> = self.get("expires_at")?;
        let expires_at = expires_at.map(Timestamp::from_millis);
        let answer = self.wait_answer(self.timestamp("opened_at")?, expires_at)?;
        let answer = answer.ok_or_else(|| self.malformed("answer", "there is none"))?;
        Ok((self.parse("id")?, answer))
    }

    /// Returns the answer of a wait. The reason of an expired wait says how long it was open, which
    /// the statement that expires waits does not write.
    fn wait_answer(
        &self,
        opened_at: Timestamp,
        expires_at: Option<Timestamp>,
    ) -> Result<Option<WaitAnswer>, StoreError> {
        if self.get::<Option<&str>>("answer")?.is_none() {
            return Ok(None);
        }
        let mut answer: WaitAnswer = self.json("answer")?;
        if answer.decision == WaitDecision::Expired {
            answer.reason = Some(nobody_answered(opened_at, expires_at));
        }
        Ok(Some(answer))
    }

    pub fn baseline(&self) -> Result<CallBaseline, StoreError> {
        Ok(CallBaseline {
            call: self.parse("call_id")?,
            agent: self.parse("agent_id")?,
            epoch: self.number("epoch")?,
            roots: self.text("roots")?,
        })
    }
}
