//! The names of the persons and programs that send commands, as the commands say them.

use planck_common::{command::MOST_BY, reply::Refusal};

use crate::nul;

/// Returns the name in a form that the store takes, or a refusal if the name is too long.
pub fn checked_author(by: Option<String>) -> Result<Option<String>, Refusal> {
    if by.as_ref().is_some_and(|by| by.len() > MOST_BY) {
        let why = format!("`by` is longer than {MOST_BY} bytes");
        return Err(Refusal::bad_request(why));
    }
    Ok(by.map(nul::replaced))
}
