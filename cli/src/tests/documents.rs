//! Checks that the pages name only commands and options that exist. The command lines of a shell
//! block are parsed as a shell and the program parse them. A span within prose may have
//! placeholders or leave arguments out, so only its subcommands and options are looked up.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Arg, Command, CommandFactory as _, Parser as _, error::ErrorKind};
use pulldown_cmark::{CodeBlockKind, Event, Options, Tag, TagEnd};

use super::Planck;

/// A mode that `main` takes before the arguments are parsed.
const UNPARSED: &str = "reap";

/// Pages on which each span that is an option means an option of `planck`.
const ABOUT_OPTIONS: &[&str] = &["docs/cli.md", "docs/approvals.md", "docs/day.md"];

#[test]
fn pages_name_only_commands_and_options_that_exist() {
    let mut pages = vec![
        "README.md".into(),
        "CONTRIBUTING.md".into(),
        "SECURITY.md".into(),
    ];
    pages.extend(
        ["client", "scripted-model", "sidecar-sdk"].map(|crate_| format!("{crate_}/README.md")),
    );
    pages.extend(below("docs"));
    let mut found = Vec::new();
    for page in pages {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        let about_options = ABOUT_OPTIONS.contains(&page.as_str());
        let mistakes = mistakes(&text, about_options).into_iter();
        found.extend(mistakes.map(|mistake| format!("{page}: {mistake}")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn examples_of_the_help_are_parsed() {
    let found = examples(&Planck::command()).join("\n");
    assert!(found.is_empty(), "{found}");
}

#[test]
fn mistakes_in_a_page_are_found() {
    let page = r#"
Type `planck sesion ls`, `planck session
lst`, `planck run --sesion x`, `planck nodes drain NODE --wait` or `planck reap --inside`.
`planck session rewind NAME --to MESSAGE`, `planck COMMAND --help`, `planck serve key NAME`,
`planck serve keys` and `planck session prune --older-than 30d`. With `--continue` or `--contniue`.

| `planck waits -o table\|json` | `planck waits --wach` |
|---|---|

```sh
planck run -q "planck is no command here" && planck team validat   # planck nonsense
answer=$(planck run --quiett "How many?") || curl -H "Bearer $(planck serve kye)" localhost
(echo "Review:"; git diff) | planck run -p > review.md
planck session rewind bold-oak 17
docker-compose run --rm planck modell ls; useradd --home-dir /var/lib/planck --shell sh planck
NATS_URL=x planck --strikt node
helm install planck deploy/helm/planck
```

```text
$ planck doctor --strikt
  planck nonsense
```
"#;
    let named: Vec<String> = mistakes(page, true)
        .into_iter()
        .map(|mistake| mistake.split(": ").next().unwrap_or_default().into())
        .collect();
    assert_eq!(
        named,
        [
            "`planck sesion ls`",
            "`planck session lst`",
            "`planck run --sesion x`",
            "`planck nodes drain NODE --wait`",
            "`planck serve keys`",
            "`--contniue`",
            "`planck waits --wach`",
            "`planck team validat`",
            "`planck run --quiett How many?`",
            "`planck serve kye`",
            "`planck session rewind bold-oak 17`",
            "`planck modell ls`",
            "`planck --strikt node`",
            "`planck doctor --strikt`",
        ]
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the pages below a folder, as paths from the root of the workspace.
fn below(folder: &str) -> Vec<String> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let path = format!("{folder}/{}", entry.unwrap().file_name().to_string_lossy());
        if root().join(&path).is_dir() {
            pages.extend(below(&path));
        } else if path.ends_with(".md") {
            pages.push(path);
        }
    }
    pages.sort();
    pages
}

/// Returns the mistakes of the examples in the help of a command and of those below it.
fn examples(command: &Command) -> Vec<String> {
    let help = command.get_after_help().map(ToString::to_string);
    let help = help.unwrap_or_default();
    let (_, lines) = help.split_once("Examples:").unwrap_or_default();
    let lines = typed("sh", lines);
    let mut found: Vec<String> = lines
        .iter()
        .flat_map(|line| mistakes_of_line(line))
        .collect();
    found.extend(command.get_subcommands().flat_map(examples));
    found
}

/// Returns the mistakes of a page in its order. `about_options`: each span that is an option means
/// an option of `planck`.
fn mistakes(page: &str, about_options: bool) -> Vec<String> {
    let mut root = Planck::command();
    root.build();
    let mut found = Vec::new();
    let mut block: Option<(String, String)> = None;
    for event in pulldown_cmark::Parser::new_ext(page, Options::ENABLE_TABLES) {
        match (event, &mut block) {
            (Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))), _) => {
                block = Some((language.to_string(), String::new()));
            }
            (Event::End(TagEnd::CodeBlock), _) => {
                let (language, text) = block.take().unwrap_or_default();
                found.extend(
                    typed(&language, &text)
                        .iter()
                        .flat_map(|line| mistakes_of_line(line)),
                );
            }
            (Event::Text(text), Some((_, block))) => block.push_str(&text),
            (Event::Code(span), None) if about_options && span.starts_with('-') => {
                let option = span.split(' ').next().unwrap_or_default();
                let missing = (!has_option_below(&root, option)).then_some(option);
                found.extend(
                    missing.map(|option| format!("`{option}`: no command has this option")),
                );
            }
            (Event::Code(span), None) => found.extend(mistake_of_span(&root, &span)),
            _ => (),
        }
    }
    found
}

/// Returns the lines of a block that a person types, with continued lines joined.
fn typed(language: &str, block: &str) -> Vec<String> {
    let block = block.replace("\\\n", " ");
    let lines = block.lines();
    match language {
        "sh" => lines.map(str::to_owned).collect(),
        "text" => lines
            .filter_map(|line| line.strip_prefix("$ "))
            .map(str::to_owned)
            .collect(),
        _ => Vec::new(),
    }
}

/// Parses each `planck` command of a line of shell.
fn mistakes_of_line(line: &str) -> Vec<String> {
    let (line, inner) = substituted(line);
    let words = shlex::split(&line).unwrap_or_default();
    let mut found = Vec::new();
    for command in words.split(|word| matches!(word.as_str(), "|" | "||" | "&" | "&&" | ";")) {
        let Some(arguments) = arguments(command) else {
            continue;
        };
        let parsed =
            Planck::try_parse_from(["planck"].into_iter().chain(arguments.iter().copied()));
        let is_help = |error: &clap::Error| {
            matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            )
        };
        if let Some(error) = parsed.err().filter(|error| !is_help(error)) {
            let why = error.to_string();
            let why = why.lines().next().unwrap_or_default();
            found.push(format!("`planck {}`: {why}", arguments.join(" ")));
        }
    }
    found.extend(inner.iter().flat_map(|inner| mistakes_of_line(inner)));
    found
}

/// Takes the commands in `$(…)` out of a line, and separates `;` from words.
fn substituted(line: &str) -> (String, Vec<String>) {
    let (mut line, mut inner) = (line.replace("; ", " ; "), Vec::new());
    while let Some(begin) = line.find("$(") {
        let mut open = 0_usize;
        let end = line
            .char_indices()
            .skip_while(|(at, _)| *at <= begin)
            .find(|(_, c)| {
                match c {
                    '(' => open += 1,
                    ')' => open -= 1,
                    _ => (),
                }
                open == 0
            });
        let end = end.map_or(line.len(), |(at, _)| at);
        inner.push(line[begin + 2..end].to_owned());
        line.replace_range(begin..(end + 1).min(line.len()), "SUBSTITUTED");
    }
    (line, inner)
}

/// Returns the arguments of `planck` in a command, or `None` if the command does not run it. The
/// name is also that of a user, of a folder or of a chart, after which no subcommand follows.
fn arguments(command: &[String]) -> Option<Vec<&str>> {
    let is_planck = |word: &String| word == "planck" || word.ends_with("/planck");
    let at = command.iter().position(is_planck)?;
    let arguments = command.get(at + 1..)?.iter().map(String::as_str);
    let arguments: Vec<&str> = arguments.take_while(|word| !is_redirection(word)).collect();
    let first = arguments.first()?;
    let is_first = command.iter().take(at).all(|word| word.contains('='));
    (is_bare(first) || first.starts_with('-') && is_first).then_some(arguments)
}

fn is_redirection(word: &str) -> bool {
    word.trim_start_matches(|c: char| c.is_ascii_digit())
        .starts_with(['>', '<'])
}

fn is_bare(word: &str) -> bool {
    !word.starts_with('-') && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
}

/// Looks up the subcommands and options that a span of prose names.
fn mistake_of_span(root: &Command, span: &str) -> Option<String> {
    let words: Vec<String> = span.split_whitespace().map(str::to_owned).collect();
    let arguments = arguments(&words)?;
    let (mut command, mut words) = (
        root,
        arguments.iter().map(|word| word.trim_matches(['[', ']'])),
    );
    while let Some(word) = words.next() {
        let why = if word == "--" || word == UNPARSED {
            return None;
        } else if word.starts_with('-') {
            let option = command
                .get_arguments()
                .find(|option| is_named(option, word));
            if option.is_some_and(|option| option.get_action().takes_values())
                && !word.contains('=')
            {
                words.next();
            }
            option.is_none().then_some("option")
        } else if is_bare(word) && command.has_subcommands() {
            let below = command.find_subcommand(word);
            command = below.unwrap_or(command);
            below.is_none().then_some("command")
        } else {
            None
        };
        if let Some(why) = why {
            return Some(format!(
                "`planck {}`: there is no {why} `{word}`",
                arguments.join(" ")
            ));
        }
    }
    None
}

fn has_option_below(command: &Command, name: &str) -> bool {
    command.get_arguments().any(|option| is_named(option, name))
        || command
            .get_subcommands()
            .any(|below| has_option_below(below, name))
}

/// Whether an option has this name, which may be followed by `=` and a value.
fn is_named(option: &Arg, name: &str) -> bool {
    let name = name.split('=').next().unwrap_or_default();
    match name.strip_prefix("--") {
        Some(long) => option.get_long() == Some(long),
        None => name.chars().nth(1) == option.get_short(),
    }
}
