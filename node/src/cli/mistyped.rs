//! Words that are no command.

use clap::{
    Command, CommandFactory as _,
    error::{ContextKind, ContextValue, Error, ErrorKind},
};

use super::Planck;

/// A word that is like no command may be the first one of a prompt.
const PROMPT: &str = "a prompt is given to a command: planck run \"What is in this folder?\"";

/// Ends the process with what is wrong with the arguments, or with the help that they ask for.
pub fn exit(error: Error) -> ! {
    with_suggestion(error).exit()
}

/// clap measures how alike two words are as a whole, so that it knows no `run` in `rnu`. Two letters
/// that are swapped, and one that is wrong, missing or too many, are what people mistype.
fn with_suggestion(mut error: Error) -> Error {
    if error.kind() != ErrorKind::InvalidSubcommand
        || error.get(ContextKind::SuggestedSubcommand).is_some()
    {
        return error;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let planck = Planck::command();
    let command = command_of(&error, &planck);
    let meant = command
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .filter(|name| strsim::osa_distance(word, name) <= 1 + name.len() / 5)
        .min_by_key(|name| strsim::osa_distance(word, name));
    let (kind, suggestion) = match meant {
        Some(name) => (
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(vec![name]),
        ),
        None if command.get_name() == planck.get_name() => (
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![PROMPT.into()]),
        ),
        None => return error,
    };
    error.insert(kind, suggestion);
    error
}

/// The command whose subcommand is wrong: the usage names it.
fn command_of<'a>(error: &Error, planck: &'a Command) -> &'a Command {
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        Some(_) | None => return planck,
    };
    let words = usage
        .split_whitespace()
        .skip_while(|word| *word != "planck");
    words
        .skip(1)
        .map_while(|word| planck.find_subcommand(word))
        .last()
        .unwrap_or(planck)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn told(line: &str) -> String {
        let error = Planck::try_parse_from(line.split(' ')).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
        with_suggestion(error).to_string()
    }

    #[test]
    fn mistyped_command_is_told_what_it_may_mean() {
        for (line, meant) in [
            ("planck rnu", "run"),
            ("planck rn hello", "run"),
            ("planck chta", "chat"),
            ("planck sesion ls", "session"),
            ("planck dcotor", "doctor"),
            ("planck node-", "node"),
            ("planck session sl", "ls"),
            ("planck session atach x", "attach"),
            ("planck nodes drian n1", "drain"),
        ] {
            let told = told(line);
            assert!(
                told.contains("unrecognized subcommand") && told.contains(&format!("'{meant}'")),
                "{line}: {told}"
            );
        }
    }

    #[test]
    fn word_like_no_command_gets_no_similar_one() {
        for (line, is_prompt) in [
            ("planck fix the bug", true),
            ("planck x", true),
            ("planck session zzz", false),
        ] {
            let told = told(line);
            assert!(
                !told.contains("similar") && told.contains(PROMPT) == is_prompt,
                "{line}: {told}"
            );
        }
    }
}
