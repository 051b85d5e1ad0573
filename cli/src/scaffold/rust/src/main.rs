//! The sidecar `SIDECAR_NAME`. A tool is an async function. The struct of its arguments defines the
//! schema that the model sees.

use std::time::Duration;

use planck_sidecar::{Context, Error, Sidecar, Tool};
use schemars::JsonSchema;
use serde::Deserialize;

const STEPS: u32 = 10;

#[derive(Deserialize, JsonSchema)]
struct SortWords {
    /// The text whose words to sort
    text: String,
    /// How long to take over it
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 3600.0))]
    seconds: f64,
}

/// Sorts the words of a text. The model reads the text of a returned error.
async fn sort_words(context: Context, args: SortWords) -> Result<String, String> {
    let pause = Duration::from_secs_f64(args.seconds.clamp(0.0, 3600.0) / f64::from(STEPS));
    for step in 0..STEPS {
        // A progress report also extends the time for which the node waits.
        context.progress(
            format!("step {} of {STEPS}", step + 1),
            Some(f64::from(100 * step / STEPS)),
        );
        // When the answer is no longer wanted, this function has one second to return. Then the SDK
        // drops it.
        tokio::select! {
            () = context.cancelled() => return Err(format!("cancelled at step {}", step + 1)),
            () = tokio::time::sleep(pause) => (),
        }
    }
    let mut words: Vec<&str> = args.text.split_whitespace().collect();
    if words.is_empty() {
        return Err("the text has no words; give one that has".into());
    }
    words.sort_unstable();
    Ok(words.join(" "))
}

fn sidecar() -> Result<Sidecar, Error> {
    let sorting = Tool::new("sort_words", "Sorts the words of a text.", sort_words).pure();
    Ok(Sidecar::new("SIDECAR_NAME", "0.1.0")?.tool(sorting))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    sidecar()?.run().await
}

/// The tests need neither a node nor NATS, because the harness calls the tools through the code
/// that answers a node.
#[cfg(test)]
mod tests {
    use planck_sidecar::Harness;

    use super::*;

    #[tokio::test]
    async fn it_sorts_and_reports_progress() -> Result<(), Error> {
        let answer = Harness::of(sidecar()?)
            .request("sort_words", r#"{"text":"to be or not"}"#)
            .send()
            .await;
        assert_eq!(answer.said, Ok("be not or to".into()));
        assert_eq!(answer.progress.len(), STEPS as usize);
        Ok(())
    }

    #[tokio::test]
    async fn what_it_cannot_do_is_an_error_for_the_model() -> Result<(), Error> {
        let harness = Harness::of(sidecar()?);
        for (args, words) in [
            (r#"{"text":" "}"#, "no words"),
            (r#"{"text":7}"#, "the arguments do not fit"),
        ] {
            let error = harness
                .call("sort_words", args)
                .await
                .err()
                .unwrap_or_default();
            assert!(error.contains(words), "{error}");
        }
        Ok(())
    }

    #[tokio::test]
    async fn it_stops_when_the_answer_is_no_longer_wanted() -> Result<(), Error> {
        let harness = Harness::of(sidecar()?);
        let call = harness
            .request("sort_words", r#"{"text":"a","seconds":60}"#)
            .call_id("slow")
            .send();
        let cancel = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            harness.cancel("slow");
        };
        let (answer, ()) = tokio::join!(call, cancel);
        assert_eq!(answer.said, Err("cancelled at step 1".into()));
        Ok(())
    }
}
