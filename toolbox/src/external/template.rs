//! The command line of a tool. Parsing splits the line into words as a shell does. A call then
//! replaces each `{{argument}}` within its word. The value of an argument always stays within one
//! word, and Planck starts the program without a shell.

use serde_json::{Map, Value};

/// The characters, in addition to letters and digits, that may stand next to an argument in its
/// word. They allow `--name={{name}}` and `{{dir}}/{{file}}`, but no script.
const BESIDE: &str = "-_=+./:@%,";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandTemplate {
    words: Vec<Vec<TemplatePiece>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePiece {
    Text(String),
    Argument(String),
}

impl CommandTemplate {
    /// Parses a command. `properties` are the names of the tool's arguments, or `None` if they are
    /// not known.
    pub fn parse(command: &str, properties: Option<&[String]>) -> Result<Self, String> {
        let words = shlex::split(command).ok_or("its quotes do not match")?;
        if let Some(operator) = words.iter().find(|word| is_operator(word)) {
            return Err(format!(
                "`{operator}` means something to a shell only; write `sh -c '…' sh {{{{argument}}}}` and use \"$1\""
            ));
        }
        let words = words
            .iter()
            .map(|word| pieces(word))
            .collect::<Result<Vec<_>, _>>()?;
        match words.first().map(Vec::as_slice) {
            Some([TemplatePiece::Text(_)]) => {}
            Some(_) => return Err("the program must be named outright, not by an argument".into()),
            None => return Err("it names no program".into()),
        }
        let template = Self { words };
        match properties.and_then(|known| {
            template
                .arguments()
                .find(|name| !known.iter().any(|property| property == name))
        }) {
            Some(stray) => Err(format!(
                "`{{{{{stray}}}}}` is not a property of `parameters`"
            )),
            None => Ok(template),
        }
    }

    /// Returns the words of the command for a call. A missing or null argument is replaced by an
    /// empty text.
    ///
    /// Refuses a word that begins with an argument if the program would take the word for an
    /// option. The argument comes from the model or from something that the model has read, and an
    /// option can name a file to write or a program to run. Numbers are not checked. Words after
    /// `--` are not checked either, because programs accept no options there. `may_be_options`
    /// names the arguments that the author of the tool allows to be options.
    pub fn fill(
        &self,
        args: &Map<String, Value>,
        may_be_options: &[String],
    ) -> Result<Vec<String>, String> {
        let mut after_dashes = false;
        let mut filled = Vec::with_capacity(self.words.len());
        for word in &self.words {
            let text: String = word.iter().map(|piece| piece.fill(args)).collect();
            if let Some(name) =
                option_in(word, args).filter(|name| !after_dashes && !may_be_options.contains(name))
            {
                return Err(format!(
                    "not run: `{name}` begins with `-`, which the program would take for an option; write it otherwise \
                     (a path as `./-name`), or the tool's author allows it by \"options\": [\"{name}\"] in its TOOL.json"
                ));
            }
            after_dashes |= matches!(word.as_slice(), [TemplatePiece::Text(text)] if text == "--");
            filled.push(text);
        }
        Ok(filled)
    }

    pub fn arguments(&self) -> impl Iterator<Item = &str> {
        self.words.iter().flatten().filter_map(|piece| match piece {
            TemplatePiece::Argument(name) => Some(name.as_str()),
            TemplatePiece::Text(_) => None,
        })
    }
}

impl TemplatePiece {
    fn fill(&self, args: &Map<String, Value>) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Argument(name) => match args.get(name) {
                None | Some(Value::Null) => String::new(),
                // NUL ends a word of a command, so it cannot be part of an argument.
                Some(Value::String(text)) => text.replace('\0', ""),
                Some(other) => other.to_string(),
            },
        }
    }
}

/// Returns the argument whose value turns this word into an option. A lone `-` is not an option,
/// because programs take it for standard input.
fn option_in<'a>(word: &'a [TemplatePiece], args: &Map<String, Value>) -> Option<&'a String> {
    let mut pieces = word.iter();
    let (name, first) = loop {
        match pieces.next()? {
            TemplatePiece::Text(text) if text.is_empty() => {}
            TemplatePiece::Text(_) => return None,
            piece @ TemplatePiece::Argument(name) => {
                let text = piece.fill(args);
                if !text.is_empty() {
                    break (name, text);
                }
            }
        }
    };
    let is_text = !args.get(name).is_some_and(Value::is_number);
    let goes_on = first.len() > 1 || pieces.next().is_some();
    (is_text && first.starts_with('-') && goes_on).then_some(name)
}

fn is_operator(word: &str) -> bool {
    matches!(
        word,
        "|" | "||" | "&" | "&&" | ";" | ">" | ">>" | "<" | "2>" | "2>&1"
    )
}

fn pieces(word: &str) -> Result<Vec<TemplatePiece>, String> {
    let mut pieces = Vec::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").ok_or_else(|| {
            format!("`{word}` opens `{{{{` and does not close it in the same word")
        })?;
        pieces.extend((!before.is_empty()).then(|| TemplatePiece::Text(before.into())));
        pieces.push(TemplatePiece::Argument(name.into()));
        rest = after;
    }
    pieces
        .extend((!rest.is_empty() || pieces.is_empty()).then(|| TemplatePiece::Text(rest.into())));
    let spliced = pieces.len() > 1
        && pieces
            .iter()
            .any(|piece| matches!(piece, TemplatePiece::Text(text) if !is_harmless(text)));
    match spliced {
        true => Err(format!(
            "`{word}` would put an argument into the text of a script; give it as a word of its own"
        )),
        false => Ok(pieces),
    }
}

fn is_harmless(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_alphanumeric() || BESIDE.contains(c))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(command: &str) -> Vec<String> {
        let args = json!({"path": "a b'; rm -rf ~ #", "n": 3, "deep": {"x": [1]}, "none": null});
        CommandTemplate::parse(command, None)
            .unwrap()
            .fill(args.as_object().unwrap(), &[])
            .unwrap()
    }

    #[test]
    fn an_argument_cannot_become_an_option() {
        let args = json!({"ref": "--output=/tmp/x", "n": -5, "in": "-", "none": ""});
        let fill = |command: &str, options: &[String]| {
            CommandTemplate::parse(command, None)
                .unwrap()
                .fill(args.as_object().unwrap(), options)
        };
        for command in [
            "git log -1 {{ref}}",
            "git log {{ref}}/{{n}}",
            "git log {{none}}{{ref}}",
            "x {{ref}} -- {{ref}}",
        ] {
            let refused = fill(command, &[]).unwrap_err();
            assert!(
                refused.contains("`ref` begins with `-`") && refused.contains("options"),
                "{command}: {refused}"
            );
        }
        assert_eq!(
            fill("git log {{ref}}", &["ref".into()]).unwrap()[2],
            "--output=/tmp/x"
        );
        for command in [
            "git log --ref={{ref}}",
            "git log -- {{ref}}",
            "head {{n}}",
            "cat {{in}}",
            "x ./{{ref}}",
            "x {{none}}",
        ] {
            assert!(fill(command, &[]).is_ok(), "{command}");
        }
    }

    #[test]
    fn an_argument_is_one_word_whatever_it_holds() {
        assert_eq!(
            filled("grep -n '{{path}}' x"),
            ["grep", "-n", "a b'; rm -rf ~ #", "x"]
        );
        assert_eq!(
            filled("run --path={{path}} -n{{n}} {{deep}}"),
            ["run", "--path=a b'; rm -rf ~ #", "-n3", r#"{"x":[1]}"#]
        );
        assert_eq!(
            filled("run {{none}} {{absent}} end"),
            ["run", "", "", "end"]
        );
        assert_eq!(
            filled("sh -c 'cat \"$1\" | wc -l' sh {{path}}"),
            ["sh", "-c", "cat \"$1\" | wc -l", "sh", "a b'; rm -rf ~ #"]
        );
        assert_eq!(filled("run ''"), ["run", ""]);
    }

    #[test]
    fn syntax_that_needs_a_shell_is_refused() {
        for (command, why) in [
            ("sh -c 'cat {{path}}'", "text of a script"),
            ("cat {{path}} | wc", "means something to a shell"),
            ("cat 'x", "quotes do not match"),
            ("", "names no program"),
            ("{{path}} x", "named outright"),
            ("cat {{path", "does not close"),
        ] {
            let told = CommandTemplate::parse(command, None).unwrap_err();
            assert!(told.contains(why), "{command}: {told}");
        }
        assert!(
            CommandTemplate::parse("cat {{pth}}", Some(&["path".into()]))
                .unwrap_err()
                .contains("`{{pth}}` is not a property")
        );
    }
}
