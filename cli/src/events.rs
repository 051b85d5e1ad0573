//! The command `planck events`.

use clap::Args;
use futures_util::StreamExt as _;
use planck_common::{envelope::Envelope, subject::Topic};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    args::GlobalArgs,
    connect,
    exit::{Exit, UsageError},
    output::{EventFormat, EventOutput, Stream, json_text, say},
    render::{Style, style::one_line},
};
use planck_bus::Delivery;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck events                              # the events of all sessions
  planck events 'agent.*' -o jsonl | jq -r .type
  planck events 'cluster.>'                  # what nodes decide")]
pub struct EventsArgs {
    /// A subject, wildcards allowed; by default the events of all sessions
    subject: Option<String>,
    #[command(flatten)]
    output: EventOutput,
}

impl EventsArgs {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let config = global.config()?;
        let subject = self
            .subject
            .unwrap_or_else(|| Topic::AllSessions.to_string());
        if subject
            .split('.')
            .any(|word| word.is_empty() || word.contains(char::is_whitespace))
        {
            return Err(UsageError(format!(
                "`{subject}` is no subject; write words with dots between, as in `agent.>`"
            ))
            .into());
        }
        let bus = connect::to_others(&config, "planck events").await?;
        let bus = bus.ok_or_else(|| {
            UsageError("nothing is published without NATS or `planck serve`; set NATS_URL".into())
        })?;
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut published = bus.observe(&subject).await?;
        loop {
            let delivery = tokio::select! {
                delivery = published.next() => delivery,
                _ = interrupted.recv() => None,
            };
            let Some(delivery) = delivery else {
                return Ok(Exit::Done);
            };
            let delivery = delivery?;
            match self.output.output {
                EventFormat::Jsonl => json_text(&json_line(&delivery))?,
                EventFormat::Text => say(&line(&delivery, width()))?,
            }
        }
    }
}

/// Returns the width to which lines are cut. For a file or a pipe there is no limit.
fn width() -> usize {
    match Stream::Out.is_terminal() {
        true => Style::of_stdout().width,
        false => usize::MAX,
    }
}

/// Returns a message as JSON on a single line. A line end in JSON is whitespace between tokens, so
/// a space can replace it.
fn json_line(delivery: &Delivery) -> String {
    String::from_utf8_lossy(&delivery.payload).replace(['\n', '\r'], " ") + "\n"
}

/// Returns the line that describes a message.
fn line(delivery: &Delivery, width: usize) -> String {
    let text = String::from_utf8_lossy(&delivery.payload);
    match serde_json::from_str::<Envelope>(&text) {
        Ok(event) => {
            let time = event.at.to_string();
            let time = time.get(11..23).unwrap_or_default();
            let seq = event.seq.map_or(String::new(), |seq| format!(" #{seq}"));
            let head = format!(
                "{time} {} {}{seq}",
                one_line(&event.agent_id, 36),
                one_line(&event.kind, 24)
            );
            let room = width.saturating_sub(head.chars().count() + 1);
            format!("{head} {}\n", one_line(event.data.get(), room))
        }
        Err(_) => format!(
            "{} {}\n",
            one_line(&delivery.subject, 60),
            one_line(&text, width)
        ),
    }
}
