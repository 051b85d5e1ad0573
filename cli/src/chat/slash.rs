//! The commands of a chat: lines that begin with `/` and a word of letters. Such a line is never
//! sent to a model.

use std::path::Path;

use planck_common::{Seq, SessionId, command::SessionInfo, similar::nearest};

use crate::{
    choose::{PromptedSession, shape_in},
    model,
    output::{or_dash, say},
    permissions,
    render::{consumed, style::counted},
    session::{agents, change, rename},
};
use planck_client::Client;

const HELP: &str = "\
/help              these lines
/model [P:ID]      the models that are known; with a name, the lead uses it from now on
/permissions       which calls run, ask or are refused, and what answers have allowed
/team              the agents
/session           the session, and how to go on with it elsewhere
/abort             end what runs; also while it runs
/rewind [MESSAGE]  the messages to go back to; with a number, hide it and all after it
/schema [FILE]     answer with a JSON object that fits the JSON Schema in FILE, from now on; without
                   a file: in text again
/rename TITLE      give the session a title that lists show
/cost              the tokens and the cost of the session
/quit              leave; the session stays
@path              attaches a file: text, an image or a PDF. Tab completes it.
@\"a path\"          the same for a name with blanks
A line that ends with \\ goes on in the next. Pasted lines are one prompt.
Ctrl-C ends a turn or empties the line; twice on an empty line it leaves, like Ctrl-D.
A line that begins with a space is no command.
";

/// A parsed command with its argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlashCommand<'a> {
    Help,
    Model(Option<&'a str>),
    Permissions(Option<&'a str>),
    Team,
    Session,
    Abort,
    Rewind(Option<&'a str>),
    Rename(Option<&'a str>),
    Schema(Option<&'a str>),
    Cost,
    Quit,
    Unknown(&'a str),
}

impl<'a> SlashCommand<'a> {
    pub const NAMES: [&'static str; 11] = [
        "abort",
        "cost",
        "help",
        "model",
        "permissions",
        "quit",
        "rename",
        "rewind",
        "schema",
        "session",
        "team",
    ];

    /// Parses a line as a command. Returns `None` if the line does not begin with `/`, or if its
    /// first word has characters other than letters, as a path has.
    pub fn of(line: &'a str) -> Option<Self> {
        let rest = line.strip_prefix('/')?;
        let (name, argument) = rest
            .trim_end()
            .split_once(char::is_whitespace)
            .unwrap_or((rest.trim_end(), ""));
        if !name.chars().all(|c| c.is_ascii_alphabetic()) {
            return None;
        }
        let argument = Some(argument.trim()).filter(|argument| !argument.is_empty());
        Some(match name {
            "help" => Self::Help,
            "model" => Self::Model(argument),
            "permissions" => Self::Permissions(argument),
            "team" => Self::Team,
            "session" => Self::Session,
            "abort" => Self::Abort,
            "rewind" => Self::Rewind(argument),
            "rename" => Self::Rename(argument),
            "schema" => Self::Schema(argument),
            "cost" => Self::Cost,
            "quit" | "exit" => Self::Quit,
            _ => Self::Unknown(name),
        })
    }

    /// Returns whether the command only tells something about a session.
    pub fn is_report(&self) -> bool {
        matches!(
            self,
            Self::Permissions(_) | Self::Team | Self::Session | Self::Cost
        )
    }

    /// Returns what a command tells about a session. Returns `None` for a command that does something
    /// else.
    pub async fn report(
        &self,
        client: &Client,
        session: &SessionId,
    ) -> anyhow::Result<Option<String>> {
        Ok(Some(match self {
            Self::Permissions(_) => permissions::of_session(client, session).await?,
            Self::Team => agents(&client.session(session).await?.agents),
            Self::Session => about(&client.session(session).await?),
            Self::Cost => format!("{}\n", consumed(&client.session(session).await?.usage)),
            Self::Help
            | Self::Model(_)
            | Self::Abort
            | Self::Rewind(_)
            | Self::Rename(_)
            | Self::Schema(_)
            | Self::Quit
            | Self::Unknown(_) => return Ok(None),
        }))
    }

    /// Performs the command. Returns `true` if the chat should end.
    pub async fn perform(
        self,
        client: &Client,
        talk: &mut PromptedSession,
        dir: &Path,
    ) -> anyhow::Result<bool> {
        if let Some(report) = self.report(client, &talk.id).await? {
            say(&report)?;
        }
        match self {
            Self::Team | Self::Session | Self::Cost | Self::Permissions(None) => {}
            Self::Help => say(HELP)?,
            Self::Model(None) => {
                let models = client.models().await?.models;
                let now = format!("the model is {}\n", talk.model);
                say(&(model::list(&models) + &now + "change it with /model P:ID\n"))?;
            }
            Self::Model(Some(model)) => change_model(client, talk, model).await?,
            Self::Permissions(Some(_)) => say(
                "they stay as the session was started; another one starts with `planck chat --permissions MODE`\n",
            )?,
            Self::Abort => match client
                .abort_session(&talk.id, None, None)
                .await?
                .aborted
                .len()
            {
                0 => say("nothing runs\n")?,
                aborted => say(&format!("aborted {}\n", counted(aborted, "agent")))?,
            },
            Self::Rewind(None) => {
                change::list_messages(client, &talk.id).await?;
                say("go back with /rewind MESSAGE\n")?;
            }
            Self::Rewind(Some(message)) => rewind(client, talk, message).await?,
            Self::Rename(None) => say("write the title behind it: /rename Mend the parser\n")?,
            Self::Rename(Some(title)) => drop(rename(client, &talk.id, title).await?),
            Self::Schema(file) => give_shape(talk, dir, file)?,
            Self::Quit => return Ok(true),
            Self::Unknown(name) => {
                let hint = match nearest(name, Self::NAMES) {
                    Some(near) => format!("did you mean /{near}?"),
                    None => "/help lists the commands".to_owned(),
                };
                say(&format!("there is no /{name}; {hint}\n"))?
            }
        }
        Ok(false)
    }
}

async fn rewind(client: &Client, talk: &PromptedSession, message: &str) -> anyhow::Result<()> {
    match message.parse::<Seq>() {
        Ok(message) => change::rewind_to(client, &talk.id, message).await,
        Err(_) => Ok(say(&format!(
            "`{message}` is no message's number; /rewind lists them\n"
        ))?),
    }
}

/// Gives the answers to later prompts the shape in a file, or none.
fn give_shape(talk: &mut PromptedSession, dir: &Path, file: Option<&str>) -> anyhow::Result<()> {
    talk.output = file.map(|file| shape_in(&dir.join(file))).transpose()?;
    let told = match file {
        Some(file) => format!("the answers fit {file}; /schema ends this\n"),
        None => "the answers are text\n".to_owned(),
    };
    Ok(say(&told)?)
}

async fn change_model(
    client: &Client,
    talk: &mut PromptedSession,
    name: &str,
) -> anyhow::Result<()> {
    let models = client.models().await?.models;
    let change = model::choose(&models, &talk.model, name)?;
    talk.change_model(client, &change).await?;
    Ok(say(&format!("the model is {} from now on\n", talk.model))?)
}

fn about(info: &SessionInfo) -> String {
    let node = or_dash(info.owner.as_ref());
    let way = format!("planck chat --session {}", info.name);
    format!(
        "{} ({}) in {} {}, on node {node}\ngo on with `{way}`\n",
        info.name, info.id, info.workspace, info.dir
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_begin_with_a_slash_and_a_word_are_commands() {
        for (line, command) in [
            ("/help", Some(SlashCommand::Help)),
            ("/model", Some(SlashCommand::Model(None))),
            (
                "/model anthropic:x ",
                Some(SlashCommand::Model(Some("anthropic:x"))),
            ),
            ("/rewind 12", Some(SlashCommand::Rewind(Some("12")))),
            (
                "/rename the parser",
                Some(SlashCommand::Rename(Some("the parser"))),
            ),
            ("/quit", Some(SlashCommand::Quit)),
            ("/nope at all", Some(SlashCommand::Unknown("nope"))),
            ("/etc/hosts says what?", None),
            ("/usr2", None),
            ("what is /help", None),
            (" /help", None),
        ] {
            assert_eq!(SlashCommand::of(line), command, "{line}");
        }
        for name in SlashCommand::NAMES {
            assert!(
                !matches!(
                    SlashCommand::of(&format!("/{name}")),
                    None | Some(SlashCommand::Unknown(_))
                ),
                "{name}"
            );
            assert!(HELP.contains(&format!("/{name}")), "{name}");
        }
    }
}
