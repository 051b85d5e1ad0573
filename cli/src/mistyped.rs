//! Suggestions for mistyped words.

use clap::{
    Command, CommandFactory as _,
    error::{ContextKind, ContextValue, Error, ErrorKind},
};

use planck_common::similar::nearest;

use super::Planck;

/// The hint for a word after `planck` that is not similar to any command. Such a word may be the
/// first one of a prompt.
const PROMPT: &str = "a prompt is given to a command: planck run \"What is in this folder?\"";

/// Words of similar programs that people type after a command, each with what does the same here.
const ELSEWHERE: [(&str, &str, &str); 8] = [
    ("planck", "--resume", "planck chat --continue"),
    ("planck", "--continue", "planck chat --continue"),
    ("planck", "-c", "planck chat --continue"),
    ("planck", "--model", "planck chat --model P:ID"),
    (
        "planck",
        "login",
        "keys are read from the environment or the configuration: planck init",
    ),
    (
        "planck",
        "resume",
        "planck chat --continue, or planck session resume NAME",
    ),
    (
        "events",
        "--session",
        "planck session attach NAME shows the events of one session",
    ),
    ("serve", "--port", "planck serve --listen 127.0.0.1:PORT"),
];

/// The hint for a second word of a prompt.
const QUOTES: &str = "quotes make several words one prompt: planck run \"What is in this folder?\"";

/// Prints the error in the arguments, or the help or version that the user asked for, and ends the
/// process.
pub fn exit(error: Error) -> ! {
    with_suggestion(error).exit()
}

/// Adds a suggestion to the error. The measure of similarity in clap does not suggest `run` for
/// `rnu`.
fn with_suggestion(mut error: Error) -> Error {
    if let Some(hint) = from_elsewhere(&error) {
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::SuggestedArg);
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![hint.into()]),
        );
        return error;
    }
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
    let names = command.get_subcommands().map(Command::get_name);
    let (kind, suggestion) = match nearest(word, names) {
        Some(name) => (
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(vec![name.to_owned()]),
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

/// Returns the hint for a word or flag that a similar program has there, or that is a part of a
/// prompt.
fn from_elsewhere(error: &Error) -> Option<&'static str> {
    let word = match error.kind() == ErrorKind::UnknownArgument {
        true => error.get(ContextKind::InvalidArg),
        false => error.get(ContextKind::InvalidSubcommand),
    };
    let Some(ContextValue::String(word)) = word else {
        return None;
    };
    let planck = Planck::command();
    let command = command_of(error, &planck).get_name();
    let mut known = ELSEWHERE.iter();
    let known = known.find(|(after, name, _)| *after == command && name == word);
    let is_word = error.kind() == ErrorKind::UnknownArgument && !word.starts_with('-');
    let quotes = (command == "run" && is_word).then_some(QUOTES);
    known.map(|(.., hint)| *hint).or(quotes)
}

/// Returns the command whose subcommand is unknown, according to the usage line of the error.
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

    fn error_text(line: &str) -> String {
        let error = Planck::try_parse_from(line.split(' ')).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
        with_suggestion(error).to_string()
    }

    #[test]
    fn a_mistyped_command_gets_a_suggestion() {
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
            let error = error_text(line);
            assert!(
                error.contains("unrecognized subcommand") && error.contains(&format!("'{meant}'")),
                "{line}: {error}"
            );
        }
    }

    #[test]
    fn a_word_of_another_program_gets_the_way_here() {
        for (line, way) in [
            ("planck --resume", "planck chat --continue"),
            ("planck login", "planck init"),
            ("planck run what is here", QUOTES),
            ("planck run -q what is here", QUOTES),
            ("planck events --session a", "planck session attach NAME"),
            ("planck serve --port 8401", "--listen 127.0.0.1:PORT"),
        ] {
            let error = error_text(line);
            assert!(
                error.contains(way) && !error.contains("a prompt is given"),
                "{line}: {error}"
            );
        }
        let error = error_text("planck session --resume");
        assert!(!error.contains("planck chat"), "{error}");
    }

    #[test]
    fn a_word_unlike_any_command_gets_no_suggestion() {
        for (line, is_prompt) in [
            ("planck fix the bug", true),
            ("planck x", true),
            ("planck session zzz", false),
        ] {
            let error = error_text(line);
            assert!(
                !error.contains("similar") && error.contains(PROMPT) == is_prompt,
                "{line}: {error}"
            );
        }
    }
}
