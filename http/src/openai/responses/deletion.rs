//! Deletes a response. A response is a turn of a session, so only the latest one can be taken out.

use planck_common::Seq;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::{
    error::ApiError,
    ids::ResponseId,
    log::{LoggedTurns, turn_after},
    opening::{Known, find, known},
    segment::Segment,
};
use crate::{
    front::Front,
    key::{Caller, Role},
};

/// The answer to a deletion.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DeletedResponse {
    id: String,
    /// Always `response`.
    object: &'static str,
    deleted: bool,
}

/// The way in which a response is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deletion {
    /// The session is deleted with it.
    Session,
    /// The session is rewound to this message.
    Rewind(Seq),
}

/// Deletes the turn of a response.
pub async fn delete(
    front: &Front,
    id: &ResponseId,
    caller: Caller,
) -> Result<DeletedResponse, ApiError> {
    let client = front.client();
    // The turn may have no such response, for example if it called no tools.
    Segment::open(front, &find(front, id).await?)
        .await?
        .find()
        .await?;
    let session = known(client, &id.session).await?;
    let begun = turn_after(client, &session.id, &session.agent, id.place).await?;
    let (_, turns) = begun.ok_or_else(|| not_started(id))?;
    match deletion(id, &session, &turns, caller.role)? {
        Deletion::Session => {
            let reason = caller.reason(Some(format!("response `{id}` was deleted")));
            client.delete(&session.id, reason).await?;
        }
        Deletion::Rewind(to) => {
            client.rewind(&session.id, to, caller.author(None)).await?;
        }
    }
    Ok(DeletedResponse {
        id: id.to_string(),
        object: "response",
        deleted: true,
    })
}

/// Decides how a response is deleted. `turns` are its turn and all later ones.
fn deletion(
    id: &ResponseId,
    session: &Known,
    turns: &LoggedTurns,
    role: Role,
) -> Result<Deletion, ApiError> {
    let [turn] = turns.turns.as_slice() else {
        return Err(ApiError::conflict(
            "response_not_latest",
            format!(
                "`{id}` is not the latest response of its session: delete the later ones first, or everything with `DELETE /v1/sessions/{}`",
                session.id
            ),
        ));
    };
    // The place 0 is that of the first turn.
    if id.place == 0 && session.is_own && role >= Role::Operate {
        return Ok(Deletion::Session);
    }
    turn.message
        .map(Deletion::Rewind)
        .ok_or_else(|| not_started(id))
}

fn not_started(id: &ResponseId) -> ApiError {
    ApiError::conflict(
        "response_not_started",
        format!("response `{id}` has not begun; wait until it has, and delete it then"),
    )
}

#[cfg(test)]
mod tests {
    use planck_common::{AgentId, InputId, SessionId};

    use super::*;
    use crate::openai::log::LoggedTurn;

    fn turns(starts: &[Seq]) -> LoggedTurns {
        let turn = |start: &Seq| LoggedTurn {
            place: start - 1,
            start: *start,
            input: InputId::parse("i").unwrap(),
            message: Some(start + 1),
            asked: String::new(),
            said: String::new(),
            latest: String::new(),
            is_over: true,
        };
        LoggedTurns {
            turns: starts.iter().map(turn).collect(),
            ..LoggedTurns::default()
        }
    }

    #[test]
    fn only_the_latest_response_is_deleted() {
        use Deletion::{Rewind, Session};
        for (place, is_own, role, starts, expected) in [
            (0, true, Role::Operate, &[3][..], Some(Session)),
            (0, true, Role::Use, &[3], Some(Rewind(4))),
            (0, false, Role::Operate, &[3], Some(Rewind(4))),
            (3, true, Role::Operate, &[7], Some(Rewind(8))),
            (0, true, Role::Operate, &[3, 7], None),
        ] {
            let session = Known {
                id: SessionId::parse("s").unwrap(),
                head: 9,
                agent: AgentId::parse("a").unwrap(),
                model: "planck".into(),
                is_own,
                has_waits: false,
                names: Vec::new(),
            };
            let id = ResponseId {
                session: session.id.clone(),
                place,
                after: None,
            };
            let decided = deletion(&id, &session, &turns(starts), role);
            assert_eq!(decided.ok(), expected, "{place} {is_own} {role:?}");
        }
    }
}
