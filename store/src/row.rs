//! Reads the columns of rows by name, and converts rows to the types of this crate. Both stores read
//! rows with it, so they accept the same values.

use std::{fmt::Display, path::Path, str::FromStr};

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use sqlx::{ColumnIndex, Decode, Row, Type};

use planck_common::{
    CallId, SessionId, TeamId, Timestamp,
    command::{AgentState, InputMode, SessionState, WaitRow},
    envelope::{EventPlace, RowPosition, Writer},
    event::{EventKind, InputKind, WorkerExit},
    message::Sender,
    spec::{AgentRole, AgentSpec},
    usage::Usage,
    wait::{WaitAnswer, WaitDecision, WaitOpened, WaitState},
};

use crate::{
    AgentRecord, CallBaseline, HeldLease, InputOutcome, InputReader, LogRow, NewInput,
    SessionRecord, StoreError, StoredInput, TaskRecord, WorkInput, WorkRows,
    inbox::{MOST_INPUTS, UnreadAmount},
    waits::{WaitAndAnswer, nobody_answered},
};

/// A row whose columns are read by name. A value that cannot be read means that the database is
/// damaged.
pub struct RowReader<'a, R> {
    pub row: &'a R,
    /// The file that has the row, if the database is a file.
    pub file: Option<&'a Path>,
}

impl<R> Clone for RowReader<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for RowReader<'_, R> {}

/// Returns the message about damaged content of the file at `path`.
pub fn damaged_file(path: &Path, what: impl Display) -> String {
    format!(
        "cannot use {}: it is damaged: {what}; put it aside, or recover it with `sqlite3 FILE .recover`",
        path.display()
    )
}

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
    pub fn get<T>(&self, column: &str) -> Result<T, StoreError>
    where
        T: Decode<'a, R::Database> + Type<R::Database>,
    {
        self.row
            .try_get(column)
            .map_err(|error| self.malformed(column, error))
    }

    /// Returns the error for a column that cannot be read. It names the record by its id or number,
    /// and its session if the row has it.
    fn malformed(&self, column: &str, error: impl Display) -> StoreError {
        let text = |column| self.row.try_get::<&str, _>(column).ok();
        let mut what = format!("malformed {column}");
        if let Some(id) = text("id") {
            what += &format!(" of {id}");
        } else if let Ok(seq) = self.row.try_get::<i64, _>("seq") {
            what += &format!(" of row {seq}");
        }
        if let Some(session) = text("session_id") {
            what += &format!(" in session {session}");
        }
        let what = format!("{what}: {error}");
        StoreError::Broken(match self.file {
            Some(path) => damaged_file(path, what),
            None => format!("cannot use the database: it is damaged: {what}"),
        })
    }

    pub fn text(&self, column: &str) -> Result<String, StoreError> {
        self.get::<&str>(column).map(str::to_owned)
    }

    fn optional_text(&self, column: &str) -> Result<Option<String>, StoreError> {
        Ok(self.get::<Option<&str>>(column)?.map(str::to_owned))
    }

    /// Parses a text column.
    pub fn parse<T: FromStr<Err: Display>>(&self, column: &str) -> Result<T, StoreError> {
        let text: &str = self.get(column)?;
        text.parse().map_err(|error| self.malformed(column, error))
    }

    pub fn parse_optional<T: FromStr<Err: Display>>(
        &self,
        column: &str,
    ) -> Result<Option<T>, StoreError> {
        let text: Option<&str> = self.get(column)?;
        text.map(str::parse)
            .transpose()
            .map_err(|error| self.malformed(column, error))
    }

    /// Converts a text column to a value of a closed set with `find`. Fails for an unknown name,
    /// which a newer version may have written.
    pub fn named<T>(
        &self,
        column: &str,
        find: impl Fn(&str) -> Option<T>,
    ) -> Result<T, StoreError> {
        let text: &str = self.get(column)?;
        find(text).ok_or_else(|| self.malformed(column, format!("unknown `{text}`")))
    }

    fn json<T: DeserializeOwned>(&self, column: &str) -> Result<T, StoreError> {
        let text: &str = self.get(column)?;
        serde_json::from_str(text).map_err(|error| self.malformed(column, error))
    }

    fn optional_json<T: DeserializeOwned>(&self, column: &str) -> Result<Option<T>, StoreError> {
        let text: Option<&str> = self.get(column)?;
        text.map(|text| serde_json::from_str(text).map_err(|error| self.malformed(column, error)))
            .transpose()
    }

    /// Reads a count or a row number. Fails if the number is negative, or too large to be exact in
    /// JSON.
    pub fn number(&self, column: &str) -> Result<i64, StoreError> {
        const LARGEST: i64 = 1 << 53;
        let number = self.get(column)?;
        if (0..=LARGEST).contains(&number) {
            Ok(number)
        } else {
            Err(self.malformed(column, format!("{number} is no count")))
        }
    }

    pub fn amount(&self, column: &str) -> Result<u64, StoreError> {
        Ok(self.number(column)?.unsigned_abs())
    }

    /// Reads a number of a column that has 32 bits.
    pub fn small(&self, column: &str) -> Result<u32, StoreError> {
        let number: i32 = self.get(column)?;
        u32::try_from(number).map_err(|error| self.malformed(column, error))
    }

    fn optional_small(&self, column: &str) -> Result<Option<u32>, StoreError> {
        let number: Option<i32> = self.get(column)?;
        number
            .map(u32::try_from)
            .transpose()
            .map_err(|error| self.malformed(column, error))
    }

    pub fn timestamp(&self, column: &str) -> Result<Timestamp, StoreError> {
        // 9999-12-31T23:59:59.999Z, the latest time that can be formatted as text.
        const LATEST: i64 = 253_402_300_799_999;
        let millis = self.number(column)?;
        if millis <= LATEST {
            Ok(Timestamp::from_millis(millis))
        } else {
            Err(self.malformed(column, format!("{millis} is no time")))
        }
    }

    pub fn usage(&self) -> Result<Usage, StoreError> {
        let cost_usd: f64 = self.get("cost_usd")?;
        if !cost_usd.is_finite() {
            return Err(self.malformed("cost_usd", "it is no number"));
        }
        Ok(Usage {
            input_tokens: self.amount("input_tokens")?,
            output_tokens: self.amount("output_tokens")?,
            cache_read_tokens: self.amount("cache_read_tokens")?,
            cache_write_tokens: self.amount("cache_write_tokens")?,
            cost_usd,
        })
    }
}

// Converts rows to the types of this crate.

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
            state: self.named("state", session_state)?,
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
            state: self.named("state", agent_state)?,
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
            output: self.optional_json("output")?,
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

    pub fn unread(&self) -> Result<UnreadAmount, StoreError> {
        Ok(UnreadAmount {
            agent_bytes: self.number("agent_bytes")?,
            agent_inputs: self.number("agent_inputs")?,
            session_bytes: self.number("session_bytes")?,
        })
    }

    /// Returns the result of [`Inbox::work`](Inbox::work) for an input from its rows, of
    /// which there may be one more than it has.
    pub fn work(rows: &[Self], of_input: bool) -> Result<Option<WorkRows>, StoreError> {
        let Some(first) = rows.first() else {
            return Ok(None);
        };
        let is_closed = first.named("state", session_state)? == SessionState::Closed;
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
                state: self.named("agent_state", agent_state)?,
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

// The names under which values of closed sets are stored.

pub const fn session_state_name(state: SessionState) -> &'static str {
    match state {
        SessionState::Open => "open",
        SessionState::Closed => "closed",
    }
}

pub fn session_state(name: &str) -> Option<SessionState> {
    [SessionState::Open, SessionState::Closed]
        .into_iter()
        .find(|state| session_state_name(*state) == name)
}

pub fn agent_state(name: &str) -> Option<AgentState> {
    use AgentState::{Compacting, ExecutingTools, Idle, Stopped, Streaming, Waiting};
    [
        Idle,
        Streaming,
        ExecutingTools,
        Waiting,
        Compacting,
        Stopped,
    ]
    .into_iter()
    .find(|state| state.name() == name)
}

pub const fn role_name(role: AgentRole) -> &'static str {
    match role {
        AgentRole::Orchestrator => "orchestrator",
        AgentRole::Worker => "worker",
    }
}
