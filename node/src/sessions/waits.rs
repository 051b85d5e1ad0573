//! Lists and answers waits. Any node does both, because the answer is a row in SQL that the agent
//! reads.

use planck_common::{
    command::{Answer, Answered, ListWaits, Waits},
    reply::Refusal,
};

use super::Sessions;
use crate::store::SessionRecord;

impl Sessions {
    pub async fn waits(&self, _filter: ListWaits) -> Result<Waits, Refusal> {
        Err(Refusal::internal("not built yet"))
    }

    pub async fn answer(
        &self,
        _session: &SessionRecord,
        _answer: Answer,
    ) -> Result<Answered, Refusal> {
        Err(Refusal::internal("not built yet"))
    }
}
