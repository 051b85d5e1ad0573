//! Compares values with a schema within bounds of time and memory. A quick check runs on the thread
//! of its caller, any other one on a thread of its own.

use std::{sync::Arc, thread, time::Duration};

use planck_common::json_text::shape;
use serde_json::{Value, value::RawValue};
use tokio::{
    sync::{Semaphore, SemaphorePermit, oneshot},
    time::timeout,
};

use super::CompiledSchema;

/// The work of the largest check that runs on the thread of its caller, where it takes a few
/// milliseconds. The work of a check is the number of parts of the schema times the number of bytes
/// of the value, because each part may be compared with each value in it.
const QUICK: u64 = 512 << 10;

/// The work of the largest check. It takes a few seconds.
const MOST: u64 = 512 << 20;

/// The work of the largest check whose mistakes are listed. Each mistake may contain a copy of the
/// value.
const EXPLAINED: u64 = 1 << 20;

/// How deep the calls of a quick check may be nested, in levels of schemas. The library compares
/// nested values by recursion.
const QUICK_LEVELS: usize = 512;

/// The stack of a thread that checks, for the deepest schema and the deepest value that the parser
/// accepts. Memory is used only as far as the thread needs it.
const STACK: usize = 256 << 20;

/// How long the caller of a check waits.
const DEADLINE: Duration = Duration::from_secs(2);

/// The number of checks that run on threads of their own at once. A check that has passed its
/// deadline counts until it ends.
static CHECKS: Semaphore = Semaphore::const_new(2);

impl CompiledSchema {
    /// Returns the result of a call of this tool whose arguments do not fit, or `None` if they fit.
    pub async fn refusal(self: &Arc<Self>, tool: &str, args: &RawValue) -> Option<String> {
        refusal(tool, &self.mistakes(args.get()).await)
    }

    /// Like [`Self::refusal`], without waiting. Returns `None` also if the check is not quick.
    pub fn quick_refusal(&self, tool: &str, args: &str) -> Option<String> {
        self.is_quick(args)
            .then(|| refusal(tool, &self.find(args)))?
    }

    /// Returns one line for each of the first mistakes in a value, or no lines if it fits.
    pub async fn mistakes(self: &Arc<Self>, value: &str) -> Vec<String> {
        if self.is_quick(value) {
            return self.find(value);
        }
        if self.work(value) > MOST {
            return vec![format!(
                "{} bytes are too many to be compared with a schema of {} parts; give less",
                value.len(),
                self.size.parts
            )];
        }
        let (schema, value) = (Arc::clone(self), value.to_owned());
        within_deadline(move || schema.find(&value)).await
    }

    fn work(&self, value: &str) -> u64 {
        self.size.parts.saturating_mul(value.len() as u64)
    }

    fn is_quick(&self, value: &str) -> bool {
        let levels = match self.size.is_recursive {
            true => shape(value.as_bytes())
                .depth
                .saturating_mul(self.size.depth as usize),
            false => 0,
        };
        self.work(value) <= QUICK && levels <= QUICK_LEVELS
    }

    pub(super) fn find(&self, value: &str) -> Vec<String> {
        let parsed: Value = match serde_json::from_str(value) {
            Ok(parsed) => parsed,
            Err(why) => return vec![format!("not JSON: {why}")],
        };
        // Whether the value fits is decided before any mistake is collected, because the library
        // decides it without copies, and collects all mistakes at once.
        if self.validator.is_valid(&parsed) {
            return Vec::new();
        }
        if self.work(value) > EXPLAINED {
            return vec!["the value does not fit the schema, and is too large to say where".into()];
        }
        match self.explained(&parsed) {
            mistakes if mistakes.is_empty() => {
                vec![
                    "a part of the value does not fit, about which the schema refers to itself"
                        .into(),
                ]
            }
            mistakes => mistakes,
        }
    }
}

fn refusal(tool: &str, mistakes: &[String]) -> Option<String> {
    if mistakes.is_empty() {
        return None;
    }
    Some(format!(
        "`{tool}` was not run, its arguments do not fit:\n- {}",
        mistakes.join("\n- ")
    ))
}

/// Runs a check on a thread of its own, and returns what it found or why it found nothing.
async fn within_deadline(check: impl FnOnce() -> Vec<String> + Send + 'static) -> Vec<String> {
    match timeout(DEADLINE, on_own_thread(check)).await {
        Ok(Ok(mistakes)) => mistakes,
        Ok(Err(why)) => vec![format!("it could not be checked: {why}")],
        Err(_) => vec![format!(
            "it could not be checked within {} s; give less",
            DEADLINE.as_secs()
        )],
    }
}

/// Runs a check on a thread of its own. If the caller stops waiting, the check still counts as one
/// that runs.
async fn on_own_thread<T: Send + 'static>(
    check: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let place: SemaphorePermit<'static> = CHECKS.acquire().await.map_err(|why| why.to_string())?;
    let (done, checked) = oneshot::channel();
    thread::Builder::new()
        .name("schema".into())
        .stack_size(STACK)
        .spawn(move || {
            let _unread = done.send(check());
            drop(place);
        })
        .map_err(|why| why.to_string())?;
    checked.await.map_err(|_| "the check failed".into())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_check_that_does_not_end_is_an_error() {
        let (end, ended) = mpsc::channel::<()>();
        let endless = within_deadline(move || {
            let _dropped = ended.recv();
            Vec::new()
        });
        let told = endless.await.join("\n");
        assert!(told.contains("within 2 s"), "{told}");
        assert!(CHECKS.available_permits() < 2, "it still counts");
        drop(end);
    }

    #[tokio::test]
    async fn a_check_that_panics_is_an_error() {
        let panics = within_deadline(|| vec![std::env::var("no such variable").unwrap()]).await;
        assert_eq!(panics, ["it could not be checked: the check failed"]);
    }
}
