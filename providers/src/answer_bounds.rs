//! Limits the size of one answer. Without a limit, a faulty or malicious server could fill the
//! memory of a node.

use std::collections::HashMap;

use planck_agent::model::{Chunk, Failure, FailureKind};

/// The limits of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerBounds {
    /// The maximum number of bytes of texts, thoughts, signatures and redacted thoughts, and of the
    /// ids, names and arguments of calls.
    pub bytes: usize,
    pub calls: usize,
}

impl Default for AnswerBounds {
    /// Allows 8 MiB and 128 calls. The longest answers of current models have about 0.5 MiB.
    fn default() -> Self {
        Self {
            bytes: 8 << 20,
            calls: 128,
        }
    }
}

/// The maximum number of parts in one answer. Each part costs memory even if it is empty.
pub const MOST_PARTS: usize = 4_096;

/// The maximum number of bytes in the arguments of one call. Arguments are parsed to be checked, and
/// can then take a hundred times the memory.
pub const MOST_ARGUMENT_BYTES: usize = 1 << 20;

/// Counts the size of an answer while it is read, and compares it with the limits.
#[derive(Debug, Default)]
pub struct Allowance {
    bounds: AnswerBounds,
    bytes: usize,
    calls: usize,
    /// The part of the last call that was counted.
    last_call: Option<usize>,
    /// The number of bytes of arguments, by the part of their call.
    arguments: HashMap<usize, usize>,
}

impl Allowance {
    pub fn new(bounds: AnswerBounds) -> Self {
        Self {
            bounds,
            bytes: 0,
            calls: 0,
            last_call: None,
            arguments: HashMap::new(),
        }
    }

    /// Counts chunks and returns whether any of them has content. Empty chunks do not count as
    /// progress of the stream. Fails if the answer exceeds a limit.
    pub fn take(&mut self, chunks: &[Chunk]) -> Result<bool, Failure> {
        let (bytes, calls) = (self.bytes, self.calls);
        for chunk in chunks {
            self.add(chunk)?;
        }
        Ok((self.bytes, self.calls) != (bytes, calls))
    }

    fn add(&mut self, chunk: &Chunk) -> Result<(), Failure> {
        // A second chunk for the part of a call only gives the call its late name.
        if let Chunk::Call { part, .. } = chunk
            && self.last_call.is_none_or(|last| *part > last)
        {
            self.calls += 1;
            self.last_call = Some(*part);
        }
        self.bytes = self.bytes.saturating_add(chunk.bytes());
        let AnswerBounds { bytes, calls } = self.bounds;
        if self.bytes > bytes {
            let most = if bytes & 0xf_ffff == 0 {
                format!("{} MiB", bytes >> 20)
            } else {
                format!("{bytes} bytes")
            };
            return Err(over(&format!("is longer than {most}")));
        }
        if self.calls > calls {
            return Err(over(&format!("has more than {calls} tool calls")));
        }
        if chunk.part() >= MOST_PARTS {
            return Err(over(&format!("has more than {MOST_PARTS} parts")));
        }
        if let Chunk::Args { part, json } = chunk {
            let bytes = self.arguments.entry(*part).or_default();
            *bytes = bytes.saturating_add(json.len());
            if *bytes > MOST_ARGUMENT_BYTES {
                let most = MOST_ARGUMENT_BYTES >> 20;
                return Err(over(&format!(
                    "has a call with more than {most} MiB of arguments"
                )));
            }
        }
        Ok(())
    }
}

/// Returns the failure for an answer that exceeded a limit. The agent discards the answer and does
/// not repeat the request.
pub fn over(how: &str) -> Failure {
    let message = format!("the answer {how} and was cut; none of it is kept");
    Failure::new(FailureKind::AnswerLimit, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(length: usize) -> Chunk {
        Chunk::Text {
            part: 0,
            text: "x".repeat(length),
        }
    }

    #[test]
    fn an_answer_beyond_a_limit_is_cut() {
        let bounds = AnswerBounds::default();
        let mut allowance = Allowance::new(bounds);
        assert_eq!(allowance.take(&[text(bounds.bytes)]), Ok(true));
        assert!(
            allowance
                .take(&[text(1)])
                .unwrap_err()
                .message
                .contains("8 MiB")
        );
        let call = |part| Chunk::Call {
            part,
            id: "i".into(),
            name: "n".into(),
        };
        let calls: Vec<Chunk> = (0..bounds.calls).map(call).collect();
        let mut allowance = Allowance::default();
        assert_eq!(allowance.take(&calls), Ok(true));
        assert_eq!(allowance.take(&calls[..1]), Ok(true), "named again");
        assert_eq!(
            allowance.take(&[call(bounds.calls)]).unwrap_err().kind,
            FailureKind::AnswerLimit
        );
        let empty = Chunk::Thinking {
            part: MOST_PARTS,
            text: String::new(),
        };
        assert!(
            Allowance::default()
                .take(&[empty])
                .unwrap_err()
                .message
                .contains("parts")
        );
        let mut small = Allowance::new(AnswerBounds {
            bytes: 100,
            calls: 1,
        });
        assert_eq!(small.take(&[text(98), call(0)]), Ok(true));
        assert!(
            small
                .take(&[text(1)])
                .unwrap_err()
                .message
                .contains("longer than 100 bytes")
        );
    }

    #[test]
    fn the_arguments_of_one_call_are_limited() {
        let args = |part, length| Chunk::Args {
            part,
            json: "x".repeat(length),
        };
        let mut allowance = Allowance::default();
        let half = MOST_ARGUMENT_BYTES / 2;
        for part in [0, 1, 0, 1] {
            assert_eq!(allowance.take(&[args(part, half)]), Ok(true));
        }
        let failure = allowance.take(&[args(0, 1)]).unwrap_err();
        assert_eq!(failure.kind, FailureKind::AnswerLimit);
        assert!(
            failure.message.contains("1 MiB of arguments"),
            "{failure:?}"
        );
    }

    #[test]
    fn empty_pieces_are_not_content() {
        let empty = [
            text(0),
            Chunk::Args {
                part: 1,
                json: String::new(),
            },
        ];
        assert_eq!(Allowance::default().take(&empty), Ok(false));
        assert_eq!(Allowance::default().take(&[]), Ok(false));
    }
}
