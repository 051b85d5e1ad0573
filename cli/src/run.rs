//! The command `planck run`.

use std::{
    io::{IsTerminal as _, Read},
    path::PathBuf,
    time::Instant,
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use planck_common::{SessionId, command::WaitRow, message::Part, spec::OutputSpec, usage};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    args::GlobalArgs,
    ask::{Asker, can_ask},
    attachment,
    choose::{PromptedSession, SessionChoice, shape_in},
    connect::ConnectedClient,
    exit::{Exit, UsageError, until_terminated},
    log::Logs,
    output::{Stream, json, say, warn},
    render::{Style, consumed, rounded, style},
    waits::{left_open, open_waits},
    watch::{EventDisplay, OnWait, WatchOutcome, WorkEnd, interrupts, watch},
};
use planck_client::Client;
use planck_node::config::Config;

/// The maximum size in bytes of a prompt on standard input. The rest of a longer input is ignored.
const LONGEST_PROMPT: u64 = 8 * 1024 * 1024;

/// The format of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum AnswerFormat {
    #[default]
    Text,
    /// One object at the end: session, model, answer, outcome, usage, duration_ms
    Json,
    /// Every event as it is published, one per line
    Jsonl,
}

#[derive(Debug, Args)]
#[command(after_help = "\
On a terminal this shows all that the agents do. Elsewhere the answer alone goes to standard
output and everything else to standard error; where both are one file, all of it goes there.

Examples:
  planck run \"What is in this folder?\"
  planck run --continue \"And sort it by file\"
  planck run \"What is wrong in @src/main.rs?\"
  planck run --team examples/teams/build-a-cli \"A tool that counts words\"
  answer=$(planck run -q \"Name three rivers, a line each\")
  (echo \"Review this change:\"; git diff) | planck run -p > review.md
  planck run -o json \"How many TODOs are here?\" | jq -r .answer
  planck run --output-schema todos.json \"Which TODOs are here?\" | jq .todos")]
pub struct RunArgs {
    #[command(flatten)]
    which: SessionChoice,
    /// Write only the answer to standard output
    #[arg(short, long)]
    print: bool,
    /// Write only the answer, warnings and errors
    #[arg(short, long)]
    quiet: bool,
    /// If agents wait for an answer and this is no terminal, stay instead of ending with exit code 5
    #[arg(long)]
    wait: bool,
    /// Answer with a JSON object that fits the JSON Schema in this file; exit code 6 if there is none
    #[arg(long, value_name = "FILE")]
    output_schema: Option<PathBuf>,
    /// The format of the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: AnswerFormat,
    /// The prompt; read from standard input if it is absent or `-`
    prompt: Option<String>,
}

/// The streams to which the parts of a run's output are written. `None` means that the part is not
/// written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    /// The stream for the text and the tool calls of the agents.
    transcript: Option<Stream>,
    /// The stream for the lines about the session and the model at the start and at the end.
    frame: Option<Stream>,
    answer: bool,
}

/// The object that `-o json` writes.
#[derive(Debug, Serialize)]
struct RunReport<'a> {
    session: &'a str,
    model: &'a str,
    answer: Option<&'a str>,
    /// The answer in the shape that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a RawValue>,
    outcome: WatchOutcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<RunFailure<'a>>,
    /// What waits, if the outcome is `waiting`.
    #[serde(skip_serializing_if = "<[WaitRow]>::is_empty")]
    waits: &'a [WaitRow],
    usage: usage::Usage,
    duration_ms: u64,
}

#[derive(Debug, Serialize)]
struct RunFailure<'a> {
    code: &'a str,
    reason: &'a str,
}

impl RunArgs {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let argument = self.prompt.as_deref().filter(|text| *text != "-");
        let text = words(argument)?;
        let prompt = match argument {
            Some(_) => attachment::parts(&self.which.files_dir(), &text)?,
            // A text on standard input may be of others, who must not choose files to send.
            None => vec![Part::text(text)],
        };
        let shape = self.output_schema.as_deref().map(shape_in).transpose()?;
        let config = self
            .which
            .admit(global.config_to_act(self.which.model.as_ref())?);
        let logs = Logs::start_if_asked(&config)?;
        let link = self.which.link(&config).await?;
        let done = until_terminated(Box::pin(self.follow(&link, &config, prompt, shape))).await;
        link.close().await;
        logs.end().await;
        done
    }

    fn layout(&self, is_terminal: bool, is_shared: bool) -> Layout {
        let frame = if self.quiet { None } else { Some(Stream::Err) };
        match (self.output, self.print) {
            (AnswerFormat::Jsonl, _) => Layout {
                transcript: None,
                frame: None,
                answer: false,
            },
            (AnswerFormat::Text, false) if (is_terminal || is_shared) && !self.quiet => Layout {
                transcript: Some(Stream::Out),
                frame: Some(Stream::Out),
                answer: false,
            },
            (AnswerFormat::Text | AnswerFormat::Json, _) => Layout {
                transcript: frame.filter(|_| !is_terminal),
                frame,
                answer: true,
            },
        }
    }

    /// Returns the stream on which the person at the terminal is asked, if there is one. A program
    /// that reads events answers by itself.
    fn questions(&self, layout: Layout, is_terminal: impl Fn(Stream) -> bool) -> Option<Stream> {
        let events = matches!(self.output, AnswerFormat::Jsonl);
        let stream = layout.transcript.unwrap_or(Stream::Err);
        (!events && is_terminal(stream)).then_some(stream)
    }

    fn on_wait(&self, layout: Layout, client: &Client, session: &SessionId) -> OnWait {
        let stream = self.questions(layout, Stream::is_terminal);
        match stream.filter(|_| can_ask()) {
            Some(stream) => OnWait::Ask(Box::new(Asker::new(client, session, stream, false))),
            None if self.wait => OnWait::Stay,
            None => OnWait::Leave,
        }
    }

    async fn follow(
        &self,
        link: &ConnectedClient,
        config: &Config,
        prompt: Vec<Part>,
        shape: Option<OutputSpec>,
    ) -> anyhow::Result<Exit> {
        let client = &link.client;
        let (mut interrupted, layout, began) = (
            interrupts()?,
            self.layout(Stream::Out.is_terminal(), Stream::are_one()),
            Instant::now(),
        );
        let mut display = match self.output {
            AnswerFormat::Jsonl => EventDisplay::Jsonl,
            AnswerFormat::Text | AnswerFormat::Json => EventDisplay::screen(layout.transcript),
        };
        let (talk, work) = self.which.send(client, config, prompt, shape).await?;
        frame(layout.frame, &talk.title())?;
        if layout.frame.is_some() {
            talk.say_if_offline(link).await?;
        }
        let mut on_wait = self.on_wait(layout, client, &work.session);
        let watching = watch(client, &work, &mut interrupted, &mut display, &mut on_wait);
        let watched = Box::pin(watching).await?;
        let waits = match watched.ended.outcome == WatchOutcome::Waiting {
            true => open_waits(client, &work.session).await?,
            false => Vec::new(),
        };
        let duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        if layout.answer {
            let usage = display.usage();
            self.answer(&talk, &watched.ended, &waits, usage, duration_ms)?;
        }
        let took = style::duration(duration_ms);
        frame(
            layout.frame,
            &format!(
                "session {} · model {} · {took} · {}",
                talk.name,
                talk.model,
                consumed(&display.usage())
            ),
        )?;
        if watched.ended.outcome == WatchOutcome::Waiting {
            warn(&left_open(&talk.name, &waits, link.is_alone()));
        }
        let exit = watched.exit();
        // A node that does not know shapes ignores the one of the prompt.
        let lacks_shape = self.output_schema.is_some() && watched.ended.output.is_none();
        Ok(if exit == Exit::Done && lacks_shape {
            Exit::Shapeless
        } else {
            exit
        })
    }

    fn answer(
        &self,
        talk: &PromptedSession,
        ended: &WorkEnd,
        waits: &[WaitRow],
        usage: usage::Usage,
        duration_ms: u64,
    ) -> anyhow::Result<()> {
        let answer = ended.answer.as_deref();
        match self.output {
            AnswerFormat::Json => json(&RunReport {
                session: &talk.name,
                model: &talk.model,
                answer,
                output: ended.output.as_deref(),
                outcome: ended.outcome,
                error: ended.error.as_ref().map(|error| RunFailure {
                    code: &error.code,
                    reason: &error.reason,
                }),
                waits,
                usage: rounded(usage),
                duration_ms,
            }),
            AnswerFormat::Text | AnswerFormat::Jsonl => {
                let output = ended.output.as_deref().map(RawValue::get);
                let text = output.or(answer).map_or(String::new(), |answer| {
                    format!("{}\n", answer.trim_end_matches('\n'))
                });
                Ok(say(&text)?)
            }
        }
    }
}

/// Writes a line about the session to a stream, if there is one.
fn frame(to: Option<Stream>, text: &str) -> std::io::Result<()> {
    to.map_or(Ok(()), |to| {
        to.draw(&(Style::of(to).paint(style::Paint::Dim, text) + "\n"))
    })
}

/// Returns the prompt from the argument or from standard input.
fn words(given: Option<&str>) -> anyhow::Result<String> {
    let text = match given {
        Some(text) => text.to_owned(),
        None if std::io::stdin().is_terminal() => String::new(),
        None => {
            let read = longest_text(std::io::stdin()).context("cannot read standard input")?;
            read.ok_or_else(|| {
                UsageError(format!(
                    "the prompt on standard input is longer than {} MiB; write it to a file in the working directory, and name the file in a shorter prompt",
                    LONGEST_PROMPT >> 20
                ))
            })?
        }
    };
    if text.trim().is_empty() {
        return Err(UsageError(
            "no prompt; write it after `planck run`, or use `planck chat`".into(),
        )
        .into());
    }
    Ok(text)
}

/// Reads a text to its end. Returns `None` if it has more than [`LONGEST_PROMPT`] bytes.
fn longest_text(from: impl Read) -> std::io::Result<Option<String>> {
    let mut text = String::new();
    let read = from.take(LONGEST_PROMPT + 1).read_to_string(&mut text)?;
    Ok((read as u64 <= LONGEST_PROMPT).then_some(text))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn prompt_that_is_too_long_is_refused_and_not_cut() {
        let longest = vec![b'x'; usize::try_from(LONGEST_PROMPT).unwrap()];
        let read = longest_text(&longest[..]).unwrap();
        assert_eq!(read.map(|text| text.len()), Some(longest.len()));
        assert_eq!(longest_text((&longest[..]).chain(&b"y"[..])).unwrap(), None);
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    #[test]
    fn a_transcript_never_shares_standard_output_with_an_answer() {
        let (out, err) = (Some(Stream::Out), Some(Stream::Err));
        for (line, is_terminal, transcript, frame, answer) in [
            ("run x", true, out, out, false),
            ("run x", false, err, err, true),
            ("run -p x", true, None, err, true),
            ("run -p x", false, err, err, true),
            ("run -q x", true, None, None, true),
            ("run -p -q x", false, None, None, true),
            ("run -o json x", false, err, err, true),
            ("run -o json -q x", true, None, None, true),
            ("run -o jsonl x", false, None, None, false),
        ] {
            let run = Line::try_parse_from(line.split(' ')).unwrap().run;
            assert_eq!(
                run.layout(is_terminal, false),
                Layout {
                    transcript,
                    frame,
                    answer
                },
                "{line}, terminal: {is_terminal}"
            );
        }
    }

    #[test]
    fn questions_appear_where_a_person_reads_and_never_between_events() {
        let (out, err) = (Some(Stream::Out), Some(Stream::Err));
        for (line, terminals, asks_on) in [
            ("run x", &[Stream::Out, Stream::Err][..], out),
            ("run -p x", &[Stream::Out, Stream::Err], err),
            ("run -q x", &[Stream::Out, Stream::Err], err),
            ("run -o json x", &[Stream::Out, Stream::Err], err),
            ("run -o jsonl x", &[Stream::Out, Stream::Err], None),
            ("run x", &[Stream::Err], err),
            ("run -q x", &[Stream::Err], err),
            ("run x", &[Stream::Out], out),
            ("run -p x", &[Stream::Out], None),
            ("run x", &[], None),
        ] {
            let run = Line::try_parse_from(line.split(' ')).unwrap().run;
            let layout = run.layout(terminals.contains(&Stream::Out), false);
            let stream = run.questions(layout, |stream| terminals.contains(&stream));
            assert_eq!(stream, asks_on, "{line}, terminals: {terminals:?}");
        }
    }

    #[test]
    fn an_answer_is_written_once_if_both_outputs_are_one_file() {
        for (line, answer) in [("run x", false), ("run -p x", true), ("run -q x", true)] {
            let run = Line::try_parse_from(line.split(' ')).unwrap().run;
            assert_eq!(run.layout(false, true).answer, answer, "{line}");
        }
    }
}
