//! The calls of a reply whose pieces are arriving. Servers mark the pieces of a call with an index,
//! an id and a name. Each of the three may be missing, late, repeated, or that of another call.

use planck_agent::model::Chunk;

use super::{CallDelta, ChatReply, thought_signature};
use crate::{
    answer_bounds::MOST_PARTS,
    decode::PartKind,
    lenient::{Balance, CallArguments, arguments, is_placeholder},
    wire::seal,
};

/// One piece of a call.
#[derive(Debug, Default)]
pub struct CallPiece {
    pub index: Option<usize>,
    /// The id, or an empty string.
    pub id: String,
    /// The name, or an empty string.
    pub name: String,
    pub args: Option<CallArguments>,
    /// Gemini's thought signature.
    pub token: Option<String>,
}

/// A call whose first piece has arrived. The pieces of several calls may be interleaved.
#[derive(Debug)]
pub struct PartialCall {
    pub part: usize,
    pub id: String,
    pub name: String,
    index: Option<usize>,
    /// Whether the call began under the index of an earlier call.
    shares_index: bool,
    args: Balance,
    has_args: bool,
    has_placeholder: bool,
}

/// What a piece tells about its call beyond arguments.
#[derive(Debug, PartialEq, Eq)]
pub enum Learned {
    Nothing,
    /// The call's id or name, which had not been known.
    Name,
    /// The call's own index. Before, the call had that of another call.
    Index,
}

impl PartialCall {
    /// Begins the call of a piece.
    pub fn new(piece: &CallPiece, part: usize, others: &[Self]) -> Self {
        let has_index = |call: &Self| piece.index.is_some() && call.index == piece.index;
        Self {
            part,
            id: piece.id.clone(),
            name: piece.name.clone(),
            index: piece.index,
            shares_index: others.iter().any(has_index),
            args: Balance::default(),
            has_args: false,
            has_placeholder: false,
        }
    }

    /// Returns whether no further arguments are expected.
    pub fn is_whole(&self) -> bool {
        !self.has_args || self.args.is_complete()
    }

    /// Returns whether `{}` came first and other arguments followed.
    pub fn had_placeholder(&self) -> bool {
        self.has_placeholder && self.has_args
    }

    /// Stores what a piece tells about its call.
    pub fn learn(&mut self, piece: &CallPiece) -> Learned {
        let mut learned = Learned::Nothing;
        if piece.index.is_some() && piece.index != self.index {
            if self.shares_index {
                learned = Learned::Index;
            }
            (self.index, self.shares_index) = (piece.index, false);
        }
        if self.id.is_empty() && !piece.id.is_empty() {
            self.id.clone_from(&piece.id);
            learned = Learned::Name;
        }
        if self.name.is_empty() && !piece.name.is_empty() {
            self.name.clone_from(&piece.name);
            learned = Learned::Name;
        }
        learned
    }

    /// Takes arguments, and returns those that are to be emitted. A placeholder is only remembered.
    pub fn take(&mut self, json: String) -> Option<String> {
        if json.is_empty() || (!self.has_args && is_placeholder(&json)) {
            self.has_placeholder |= !json.trim().is_empty();
            return None;
        }
        self.has_args = true;
        self.args.feed(&json);
        Some(json)
    }

    /// Ends the call. Returns an empty object if it has no arguments.
    pub fn finish(&mut self) -> Option<String> {
        if self.has_args {
            return None;
        }
        self.has_args = true;
        self.has_placeholder = false;
        self.args.feed("{}");
        Some("{}".to_owned())
    }

    /// Returns whether a piece continues this call, to which its id or index leads, rather than
    /// beginning another one. Some servers give all calls of an answer the same index and no ids, or
    /// the same id; others repeat the name in every piece, or give each piece an id of its own.
    fn goes_on(&self, piece: &CallPiece, json: &str) -> bool {
        let has_ids = !piece.id.is_empty() && !self.id.is_empty();
        let is_other = has_ids && piece.id != self.id;
        let is_complete = self.args.is_complete();
        if piece.name.is_empty() {
            return !(is_other && is_complete && !json.trim().is_empty());
        }
        if self.name.is_empty() {
            return !is_other;
        }
        let is_same_name = self.name == piece.name;
        if has_ids {
            return !is_other && (is_same_name || !self.has_args);
        }
        !is_complete && !self.has_placeholder && (self.has_args || is_same_name)
    }
}

/// Returns the position of the call that a piece with the arguments `json` continues, or `None` if
/// the piece begins a call. The id decides before the index, except that servers which give several
/// calls the same id begin each of them with a name under an index of its own.
pub fn find(calls: &[PartialCall], piece: &CallPiece, json: &str) -> Option<usize> {
    let has_id = |call: &PartialCall| !piece.id.is_empty() && call.id == piece.id;
    let has_index = |call: &PartialCall| call.index == piece.index;
    let may_move =
        |call: &PartialCall| piece.index.is_none() || piece.name.is_empty() || call.shares_index;
    let exact = calls
        .iter()
        .rposition(|call| has_id(call) && has_index(call));
    let by_id = || {
        calls
            .iter()
            .rposition(|call| has_id(call) && may_move(call))
    };
    let by_index = || match piece.index {
        Some(_) => calls.iter().rposition(has_index),
        None => calls.len().checked_sub(1),
    };
    let at = exact.or_else(by_id).or_else(by_index)?;
    calls
        .get(at)
        .is_some_and(|call| call.goes_on(piece, json))
        .then_some(at)
}

impl ChatReply {
    pub(super) fn piece(&mut self, delta: CallDelta<'_>) -> CallPiece {
        let function = delta.function.unwrap_or_default();
        let args = function.arguments.map(arguments);
        if matches!(args, Some(CallArguments::Json(_))) {
            self.salvage("it sent arguments as JSON where text that holds JSON was due");
        }
        CallPiece {
            index: delta.index.number(),
            id: delta.id.text(),
            name: function.name.text(),
            args,
            token: delta.extra_content.and_then(thought_signature),
        }
    }

    /// Takes a piece of a call. An answer with more than [`MOST_PARTS`] calls is refused in any case,
    /// so their pieces are skipped: one event may have very many, and each is compared with all
    /// calls before it.
    pub(super) fn call(&mut self, mut piece: CallPiece, chunks: &mut Vec<Chunk>) {
        if self.calls.len() > MOST_PARTS {
            return;
        }
        self.has_content = true;
        let json = piece.args.take().map(CallArguments::into_json);
        let at = match find(&self.calls, &piece, json.as_deref().unwrap_or_default()) {
            Some(at) => at,
            None => self.begin_call(&piece, chunks),
        };
        let Some(call) = self.calls.get_mut(at) else {
            return;
        };
        let part = call.part;
        let learned = call.learn(&piece);
        if learned == Learned::Name {
            chunks.push(Chunk::Call {
                part,
                id: call.id.clone(),
                name: call.name.clone(),
            });
        }
        let had_placeholder = call.had_placeholder();
        if let Some(json) = json.and_then(|json| call.take(json)) {
            chunks.push(Chunk::Args { part, json });
        }
        let ends_placeholder = !had_placeholder && call.had_placeholder();
        if let Some(token) = piece.token {
            chunks.push(Chunk::Signature {
                part,
                signature: seal(&self.label, &token),
            });
        }
        match learned {
            Learned::Name => self.salvage("it sent a call's id or name after the call had begun"),
            Learned::Index => self.salvage("it sent one call under the index of another"),
            Learned::Nothing => {}
        }
        if ends_placeholder {
            self.salvage("it sent `{}` before a call's arguments");
        }
    }

    /// Begins the call of a piece, and returns its position.
    fn begin_call(&mut self, piece: &CallPiece, chunks: &mut Vec<Chunk>) -> usize {
        self.end_thinking(chunks);
        let part = self.parts.begin(PartKind::Call);
        chunks.push(Chunk::Call {
            part,
            id: piece.id.clone(),
            name: piece.name.clone(),
        });
        self.calls.push(PartialCall::new(piece, part, &self.calls));
        self.calls.len() - 1
    }
}
